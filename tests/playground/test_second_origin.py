"""The second origin: one page, without anything to steal. Source: the design's notes on shown content."""

import json

import httpx2
import pytest
from playground_support import Shown

from runner.playground.config import frames_origin
from runner.playground.frame_policy import connections_of, policy_of
from runner.settings.settings import Settings

ANCESTORS = "http://127.0.0.1:8000"


def directives(policy: str) -> dict[str, str]:
    return {name: value for name, _, value in (part.partition(" ") for part in policy.split("; "))}


@pytest.mark.kernel
def test_second_origin_has_own_name_and_serves_only_its_pages(shown: Shown) -> None:
    with shown.entered() as browser:
        origin = browser.get("/play/info").json()["frames"]

    with httpx2.Client(base_url=origin, timeout=180) as other:
        page, mcp, files = other.get("/still"), other.post("/play/mcp", json={}), other.get("/api/files")

    assert origin.startswith("http://localhost:")
    assert page.status_code == 200
    assert "set-cookie" not in page.headers
    assert directives(page.headers["content-security-policy"])["frame-ancestors"].startswith(shown.base)
    assert (mcp.status_code, files.status_code) == (404, 404)


def test_by_default_nothing_is_loaded_from_anywhere() -> None:
    policy = directives(policy_of({}, ANCESTORS))

    assert policy["connect-src"] == policy["frame-src"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'unsafe-inline'"


def test_resource_domains_alone_may_be_loaded() -> None:
    domains = {
        "connectDomains": ["https://api.example.com"],
        "resourceDomains": ["https://*.cdn.example.com"],
    }

    policy = directives(policy_of(domains, ANCESTORS))

    assert policy["connect-src"] == "https://api.example.com"
    assert policy["img-src"] == "data: blob: https://*.cdn.example.com"
    assert policy["frame-src"] == "'none'"


@pytest.mark.parametrize(
    "named",
    [
        "https://a.example; script-src *",
        "https://a.example 'unsafe-eval'",
        "*",
        "'self'",
        "data:",
        "https://a.example\r\nX: y",
        "javascript:alert(1)",
        "https://",
        7,
        None,
    ],
    ids=repr,
)
def test_invalid_origin_does_not_enter_the_policy(named: object) -> None:
    policy = {"connectDomains": [named], "frameDomains": named}

    assert policy_of(policy, ANCESTORS) == policy_of({}, ANCESTORS)
    assert connections_of(policy) == connections_of({})


def test_policy_connections_and_websockets_match_named_servers() -> None:
    policy = {
        "connectDomains": ["https://api.example.com:8443", "wss://api.example.com:8443", "ws://live.example"],
        "resourceDomains": ["https://*.cdn.example.com"],
    }

    named = connections_of(policy)

    assert connections_of({}).partition(";")[0] == "()"
    assert named.partition(";")[0] == (
        '("https://api.example.com:8443" "http://live.example" "https://*.cdn.example.com")'
    )


@pytest.mark.kernel
@pytest.mark.parametrize("query", ["{", "[]", "x" * 9000, json.dumps({"connectDomains": "https://a"})])
def test_a_malformed_question_gets_the_strictest_policy(shown: Shown, query: str) -> None:
    with shown.entered() as browser:
        origin = browser.get("/play/info").json()["frames"]

    with httpx2.Client(base_url=origin, timeout=180) as other:
        page = other.get("/widget", params={"csp": query})

    assert directives(page.headers["content-security-policy"])["connect-src"] == "'none'"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:8000", "http://localhost:9000"),
        ("localhost:8000", "http://127.0.0.1:9000"),
        ("[::1]:8000", "http://localhost:9000"),
        ("tools.example.com", None),
        ("", None),
    ],
)
def test_second_origin_never_has_the_page_name(host: str, expected: str | None) -> None:
    assert frames_origin(Settings(), host, 9000) == expected


def test_second_origin_of_public_address_is_the_configured_one() -> None:
    settings = Settings(playground_frames_url="https://frames.example.com")

    assert frames_origin(settings, "tools.example.com", None) == "https://frames.example.com"
