"""Bodies that never end, over a real server: bounded in memory, and no file above its user's quota."""

import json
import select
import socket
from collections.abc import Callable
from http.client import HTTPResponse
from urllib.parse import urlsplit

import httpx2
import pytest
from test_identity_readiness import login_provider

pytestmark = pytest.mark.kernel

MIB = 1024 * 1024


def open_request(url: str, head: str, length: int, body: bytes) -> socket.socket:
    """Begin a request, and send no more of its body."""
    address = urlsplit(url)
    assert address.hostname is not None and address.port is not None  # noqa: PT018
    one = socket.create_connection((address.hostname, address.port), timeout=120)
    one.sendall(
        f"{head} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Length: {length}\r\n\r\n".encode()
    )
    one.sendall(body)
    return one


def answer_to(one: socket.socket) -> tuple[int, str]:
    response = HTTPResponse(one)
    response.begin()
    with response:
        return response.status, json.loads(response.read())["error"]


def test_unfinished_bodies_have_a_bound_on_a_real_server(serve_to: Callable[..., str]) -> None:
    url = serve_to(RUNNER_USER="ann", RUNNER_MAX_PAYLOAD_BYTES=str(MIB), RUNNER_MAX_USER_BYTES="1000")

    held = [open_request(url, "POST /mcp", MIB, bytes(MIB - 1)) for _ in range(3)]
    # They come side by side; the one that is above the bound may be any of them.
    readable, _, _ = select.select(held, [], [], 60)
    [refused] = [answer_to(one) for one in readable]
    with open_request(url, "PUT /api/files?filename=a", 1001, b"") as upload:
        above = answer_to(upload)
    for one in held:
        one.close()

    assert (refused[0], above[0]) == (429, 507)
    assert "max_payload_bytes (1048576)" in refused[1]
    assert "limit of 1000 (max_user_bytes)" in above[1]


@pytest.mark.release
def test_login_endpoints_take_short_bodies_only(serve_to: Callable[..., str]) -> None:
    with login_provider() as provider:
        url = serve_to(
            RUNNER_AUTH__KIND="oauth_proxy",
            RUNNER_AUTH__ISSUER=provider.publish(introspection_endpoint=f"{provider.address}/introspection"),
            RUNNER_AUTH__CLIENT_ID="runner",
            RUNNER_IDENTITY_CLAIM="sub",
            RUNNER_PUBLIC_URL="http://127.0.0.1:8000",
        )
        register = url.removesuffix("/mcp") + "/register"
        client = {"redirect_uris": ["http://localhost:1/callback"], "token_endpoint_auth_method": "none"}

        few = httpx2.post(register, json=client, timeout=180)
        many = httpx2.post(register, json={**client, "client_name": "a" * MIB}, timeout=180)

    assert (few.status_code, many.status_code) == (201, 413)
    assert "log in" in many.json()["error"]
