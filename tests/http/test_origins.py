"""Accepted values of `Origin`: this server's, and those the operator named, as a browser writes them."""

from pathlib import Path
from typing import Any

import pytest
from site_support import ADDRESS, Served

ALLOWED = "https://chat.example"
PATHS = ["/mcp", "/api/files", "/events?session=", "/healthz", "/api/session"]
FOREIGN = [
    "http://127.0.0.1:8001",
    "http://127.0.0.1",
    "http://localhost:8000",
    "http://localhost:6274",
    "http://[::1]:8000",
    "http://127.0.0.2:8000",
    "https://127.0.0.1:8000",
    "HTTP://127.0.0.1:8000",
    "http://127.0.0.1:8000/",
    "http://127.0.0.1.:8000",
    "http://localhost.:8000",
    "https://chat.example.",
    "https://CHAT.example",
    "https://chat.example:443",
    "http://chat.example",
    "https://a.chat.example",
    "null",
    "",
    "*",
]
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {}}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path, allowed_origins=(ALLOWED,))


def refused(served: Served, path: str, user: str | None = "ann", **headers: str) -> bool:
    with served.visitor(user, **ACCEPT, **headers) as visitor:
        posts = path in ("/mcp", "/api/session")
        answer = visitor.post(path, json=PING) if posts else visitor.head(path)
    return answer.status_code == 403


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("origin", FOREIGN)
def test_foreign_origin_refused_on_every_route_with_any_proof(served: Served, path: str, origin: str) -> None:
    assert refused(served, path, origin=origin)


@pytest.mark.parametrize("path", ["/mcp", "/api/files", "/healthz", "/api/session"])
@pytest.mark.parametrize("origin", [ADDRESS, ALLOWED, None], ids=str)
def test_its_own_an_allowed_one_and_none_are_answered(served: Served, path: str, origin: str | None) -> None:
    assert not refused(served, path, **({} if origin is None else {"origin": origin}))


@pytest.mark.parametrize("path", ["/mcp", "/api/files"])
@pytest.mark.parametrize(("origin", "allowed"), [(ALLOWED, ALLOWED), ("https://evil.example", None)])
def test_a_preflight_request_is_answered_to_allowed_origins_only(
    served: Served, path: str, origin: str, allowed: str | None
) -> None:
    asks = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, mcp-protocol-version",
    }
    with served.visitor(None, **asks) as visitor:
        answer = visitor.options(path)

    assert answer.status_code == (200 if allowed else 403)
    assert answer.headers.get("access-control-allow-origin") == allowed
    assert ("mcp-protocol-version" in answer.headers.get("access-control-allow-headers", "")) is bool(allowed)
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(("origin", "readable"), [(ALLOWED, ALLOWED), (ADDRESS, None)])
def test_an_answer_may_be_read_by_pages_of_allowed_origins(
    served: Served, origin: str, readable: str | None
) -> None:
    with served.visitor("ann", **ACCEPT, origin=origin) as visitor:
        answer = visitor.post("/mcp", json=PING)

    assert answer.headers.get("access-control-allow-origin") == readable


@pytest.mark.parametrize("host", ["localhost:8000", "[::1]:8000"])
def test_its_own_is_the_name_by_which_it_was_reached(served: Served, host: str) -> None:
    assert not refused(served, "/healthz", host=host, origin=f"http://{host}")
    assert refused(served, "/healthz", host=host, origin=ADDRESS)


def test_behind_a_proxy_its_own_is_the_public_address(tmp_path: Path) -> None:
    served = Served.at(tmp_path, public_url="https://tools.example")

    assert not refused(served, "/healthz", origin="https://tools.example")
    assert refused(served, "/healthz", origin="http://tools.example")


def test_two_origins_are_none(served: Served) -> None:
    with served.visitor("ann") as visitor:
        answer = visitor.get("/healthz", headers=[("origin", ADDRESS), ("origin", ALLOWED)])

    assert (answer.status_code, "allowed_origins" in answer.json()["error"]) == (403, True)


HTTPS = [
    (
        {"public_url": "https://tools.example", "allowed_hosts": ("tools.example",)},
        {"host": "tools.example"},
        True,
    ),
    ({"public_url": "https://tools.example"}, {}, False),
    (
        {"public_url": "https://tools.example", "allowed_hosts": ("tools.example",)},
        {"host": "tools.example", "x-forwarded-proto": "http"},
        False,
    ),
    ({}, {}, False),
    # What nobody has believed: here no web server stands in front that would.
    ({}, {"x-forwarded-proto": "https"}, False),
]


@pytest.mark.parametrize(("settings", "headers", "told"), HTTPS)
def test_a_browser_is_held_to_https_only_where_it_came_by_https(
    tmp_path: Path, settings: dict[str, Any], headers: dict[str, str], told: bool
) -> None:
    served = Served.at(tmp_path, **settings)
    with served.visitor("ann", **headers) as visitor:
        answers = [visitor.get(path) for path in ("/healthz", "/api/files", "/nothing")]

    assert [("strict-transport-security" in answer.headers) for answer in answers] == [told] * 3


def test_by_https_itself_it_is(tmp_path: Path) -> None:
    with Served.at(tmp_path).visitor("ann") as visitor:
        visitor.base_url = "https://127.0.0.1:8000"
        assert visitor.get("/healthz").headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.parametrize("path", ["/healthz", "/api/files", "/api/files/download/a?token=b", "/mcp", "/none"])
def test_no_page_of_another_site_may_show_or_run_an_answer(served: Served, path: str) -> None:
    with served.visitor("ann") as visitor:
        assert visitor.get(path).headers["cross-origin-resource-policy"] == "same-origin"
