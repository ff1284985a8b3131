"""Users named by a gateway, accepted from its own address only, at a real server."""

from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from issuer import initialize

pytestmark = pytest.mark.kernel

Serve = Callable[..., str]
ANN = {"x-forwarded-user": "ann"}


def sent(url: str, source: str, path: str = "/api/files", **headers: str) -> httpx2.Response:
    """Send a request from one of the loopback addresses."""
    transport = httpx2.HTTPTransport(local_address=source)
    with httpx2.Client(transport=transport, timeout=180) as client:
        return client.get(url.removesuffix("/mcp") + path, headers=headers)


@pytest.fixture
def gated(serve_to: Serve) -> str:
    return serve_to(
        RUNNER_USER="",
        RUNNER_AUTH__KIND="gateway",
        RUNNER_AUTH__GATEWAY_ADDRESSES="127.0.0.2,127.8.0.0/16",
    )


@pytest.mark.release
def test_gateway_user_accepted_from_gateway_address_only(gated: str, tmp_path: Path) -> None:
    starts = {}
    for source in ("127.0.0.2", "127.8.1.9", "127.0.0.1", "127.0.0.3"):
        starts[source] = sent(gated, source, **ANN).status_code
    claimed = sent(gated, "127.0.0.1", **ANN, **{"x-forwarded-for": "127.0.0.2"})
    through = sent(gated, "127.0.0.2", **ANN, **{"x-forwarded-for": "10.9.9.9"})

    assert starts == {"127.0.0.2": 200, "127.8.1.9": 200, "127.0.0.1": 403, "127.0.0.3": 403}
    assert (claimed.status_code, through.status_code) == (403, 200)
    assert sent(gated, "127.0.0.2").status_code == 401
    assert sent(gated, "127.0.0.1").status_code == 401
    assert sent(gated, "127.0.0.2", authorization="Bearer ann").status_code == 401
    assert initialize(gated, headers=ANN).status_code == 403
    log = (tmp_path / "log").read_text()
    assert "gateway header refused" in log
    assert "address=127.0.0.3" in log
    assert "header" in log.partition("wrong tokens or keys")[2]


def test_gateway_user_owns_its_files_alone(gated: str) -> None:
    with httpx2.Client(transport=httpx2.HTTPTransport(local_address="127.0.0.2"), timeout=180) as gateway:
        base = gated.removesuffix("/mcp")
        put = gateway.put(f"{base}/api/files?filename=a.txt", content=b"hello", headers=ANN)
        mine = gateway.get(f"{base}/api/files", headers=ANN).json()["files"]
        theirs = gateway.get(f"{base}/api/files", headers={"x-forwarded-user": "bob"}).json()["files"]
        twice = gateway.get(f"{base}/api/files", headers=[*ANN.items(), ("x-forwarded-user", "bob")])
        none = gateway.get(f"{base}/api/files", headers={"x-forwarded-user": ""})
        page = gateway.get(f"{base}/api/files", headers={**ANN, "sec-fetch-site": "cross-site"})
        mcp = gateway.post(
            gated,
            headers={**ANN, "accept": "application/json, text/event-stream"},
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "t", "version": "1"},
                },
            },
        )

    assert put.status_code == 201
    assert ([file["filename"] for file in mine], theirs) == (["a.txt"], [])
    assert (twice.status_code, none.status_code, page.status_code) == (400, 400, 403)
    assert mcp.status_code == 200
