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
def test_own_allowed_and_absent_origins_accepted(served: Served, path: str, origin: str | None) -> None:
    assert not refused(served, path, **({} if origin is None else {"origin": origin}))


@pytest.mark.parametrize("path", ["/mcp", "/api/files"])
@pytest.mark.parametrize(("origin", "allowed"), [(ALLOWED, ALLOWED), ("https://evil.example", None)])
def test_preflight_answered_to_allowed_origins_only(
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
def test_answer_readable_by_pages_of_allowed_origins(
    served: Served, origin: str, readable: str | None
) -> None:
    with served.visitor("ann", **ACCEPT, origin=origin) as visitor:
        answer = visitor.post("/mcp", json=PING)

    assert answer.headers.get("access-control-allow-origin") == readable


@pytest.mark.parametrize("host", ["localhost:8000", "[::1]:8000"])
def test_own_origin_is_name_used_to_reach_server(served: Served, host: str) -> None:
    assert not refused(served, "/healthz", host=host, origin=f"http://{host}")
    assert refused(served, "/healthz", host=host, origin=ADDRESS)


def test_own_origin_behind_proxy_is_public_address(tmp_path: Path) -> None:
    served = Served.at(tmp_path, public_url="https://tools.example")

    assert not refused(served, "/healthz", origin="https://tools.example")
    assert refused(served, "/healthz", origin="http://tools.example")


def test_two_origin_headers_refused(served: Served) -> None:
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


@pytest.mark.parametrize(("settings", "headers", "expected"), HTTPS)
def test_hsts_sent_only_to_https_browsers(
    tmp_path: Path, settings: dict[str, Any], headers: dict[str, str], expected: bool
) -> None:
    served = Served.at(tmp_path, **settings)
    with served.visitor("ann", **headers) as visitor:
        answers = [visitor.get(path) for path in ("/healthz", "/api/files", "/nothing")]

    assert [("strict-transport-security" in answer.headers) for answer in answers] == [expected] * 3


def test_hsts_sent_by_https_server(tmp_path: Path) -> None:
    with Served.at(tmp_path).visitor("ann") as visitor:
        visitor.base_url = "https://127.0.0.1:8000"
        assert visitor.get("/healthz").headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.parametrize("path", ["/healthz", "/api/files", "/api/files/download/a?token=b", "/mcp", "/none"])
def test_other_sites_may_not_embed_or_run_an_answer(served: Served, path: str) -> None:
    with served.visitor("ann") as visitor:
        assert visitor.get(path).headers["cross-origin-resource-policy"] == "same-origin"
