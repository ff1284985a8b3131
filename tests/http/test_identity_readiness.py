"""Answers of `/readyz` while no token can be verified, by kind of identity, at a server with its page."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from issuer import FILE, Issuer
from ports import free_port
from support import becomes

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

Serve = Callable[..., str]


@dataclass
class Away:
    """A login provider that is there as a server starts, and whose keys and answers are not.

    Attributes:
        address: Where it is.
        answers: Status and content by path; what has none is answered 503.
    """

    address: str
    answers: dict[str, tuple[int, Any]]

    def publish(self, path: str = "", **endpoints: str) -> str:
        """Publish the metadata of an issuer, and return its address."""
        issuer = f"{self.address}{path}"
        usual = {"authorization_endpoint": f"{issuer}/auth", "token_endpoint": f"{issuer}/token"}
        well_known = f"/.well-known/oauth-authorization-server{path}"
        self.answers[well_known] = 200, {"issuer": issuer, **usual, **endpoints}
        return issuer


@contextmanager
def login_provider() -> Iterator[Away]:
    one = Away("", {})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = one.answers.get(self.path, (503, None))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Discard the message."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        one.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield one
        server.shutdown()


def ready(url: str) -> dict[str, Any]:
    answer = httpx2.get(url.removesuffix("/mcp") + "/readyz", trust_env=False, timeout=120)
    fields = dict(answer.json())
    assert answer.status_code == (200 if fields["status"] == "ready" else 503)
    return fields


def identity_fault(url: str) -> str | None:
    """Return what is said of the part `identity`, once the look at it has ended."""
    fault = ready(url).get("failed", {}).get("identity")
    return None if fault is None else str(fault)


async def says(url: str, *words: str) -> bool:
    return await becomes(lambda: all(word in (identity_fault(url) or "") for word in words))


@pytest.fixture
def url() -> str:
    return f"http://127.0.0.1:{free_port()}"


async def test_unfetchable_keys_reported_with_page_on_and_in_metrics(
    serve_to: Serve, issuer: Issuer, tmp_path: Path
) -> None:
    issuer.status = 503
    metrics = "127.0.0.1:0"
    url = serve_to(**issuer.settings(RUNNER_METRICS_ADDRESS=metrics))
    log = (tmp_path / "log").read_text()
    assert "Playground: " in log
    scraped = re.search(r"metrics at (\S+)", log)
    assert scraped is not None

    def exposed() -> str:
        return httpx2.get(scraped.group(1), trust_env=False, timeout=120).text

    assert await says(url, "auth.keys", "status 503")
    assert await becomes(lambda: 'toolcell_fault{part="identity"} 1.0' in exposed())
    assert "toolcell_ready 0.0" in exposed()
    issuer.status = 200
    assert await becomes(lambda: ready(url) == {"status": "ready"})
    assert await becomes(lambda: "toolcell_ready 1.0" in exposed())


async def test_unfetchable_keys_of_protected_resource_reported(
    serve_to: Serve, issuer: Issuer, url: str
) -> None:
    closed = f"http://127.0.0.1:{free_port()}/jwks"
    settings = issuer.settings(
        RUNNER_AUTH__KEYS=closed,
        RUNNER_AUTH__AUTHORIZATION_SERVERS="https://login.example.com",
        RUNNER_PUBLIC_URL=url,
    )

    served = serve_to(**settings)

    assert await says(served, "auth.keys", "connect")


async def test_unfetchable_keys_of_openid_configuration_reported(serve_to: Serve, url: str) -> None:
    with login_provider() as away:
        away.answers["/.well-known/openid-configuration"] = (
            200,
            {
                "issuer": away.address,
                "authorization_endpoint": f"{away.address}/auth",
                "token_endpoint": f"{away.address}/token",
                "jwks_uri": f"{away.address}/jwks",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            },
        )
        served = serve_to(
            RUNNER_AUTH__KIND="oidc",
            RUNNER_AUTH__ISSUER=f"{away.address}",
            RUNNER_AUTH__CLIENT_ID="runner",
            RUNNER_PUBLIC_URL=url,
        )

        assert await says(served, "auth.issuer", "status 503")
        away.answers["/jwks"] = 200, {"keys": []}
        assert await becomes(lambda: ready(served) == {"status": "ready"})


async def test_failed_introspection_and_refused_secret_reported(serve_to: Serve, url: str) -> None:
    with login_provider() as away:
        served = serve_to(
            RUNNER_AUTH__KIND="oauth_proxy",
            RUNNER_AUTH__ISSUER=away.publish(introspection_endpoint=f"{away.address}/introspection"),
            RUNNER_AUTH__CLIENT_ID="runner",
            RUNNER_PUBLIC_URL=url,
        )

        assert await says(served, "introspection_endpoint of auth.issuer", "status 503")
        away.answers["/introspection"] = 401, {"error": "invalid_client"}
        assert await says(served, "introspection_endpoint of auth.issuer", "refuses auth.client_id")
        away.answers["/introspection"] = 200, ["a page of somebody else"]
        assert await says(served, "introspection_endpoint of auth.issuer", "not about a token")
        away.answers["/introspection"] = 200, {"active": False}
        assert await becomes(lambda: ready(served) == {"status": "ready"})
    # It does not answer at all, and what it once said counts only for a while.
    assert await says(served, "introspection_endpoint of auth.issuer", "does not answer")


async def test_unfetchable_keys_of_file_auth_reported_as_tool_file(serve_to: Serve, tmp_path: Path) -> None:
    auth = (
        "from fastmcp.server.auth.providers.jwt import JWTVerifier\n"
        f'auth = JWTVerifier(jwks_uri="http://127.0.0.1:{free_port()}/jwks", '
        'issuer="https://issuer.example", audience="here")\n'
    )
    source = auth + FILE.replace('FastMCP("identities")', 'FastMCP("identities", auth=auth)')
    (tmp_path / "identities.py").write_text(source)

    served = serve_to(RUNNER_AUTH__KIND="file", RUNNER_USER="")

    assert await says(served, "tool file", "connect")
