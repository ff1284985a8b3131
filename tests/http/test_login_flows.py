"""From 401 to a call: official clients, a real OpenID provider, a real server, all over loopback."""

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from issuer import initialize
from oidc import Kept, called, called_by_inspector, called_by_node, openid_provider
from ports import free_port

pytestmark = [pytest.mark.needs_npm, pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

Serve = Callable[..., str]


@pytest.fixture
def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def provider(address: str) -> Iterator[str]:
    with openid_provider(address) as one:
        yield one


def port(address: str) -> tuple[str, str]:
    return "--port", address.rpartition(":")[2]


async def test_client_discovers_authorisation_server_and_calls(
    address: str, provider: str, serve_to: Serve
) -> None:
    url = serve_to(
        *port(address),
        RUNNER_AUTH__KIND="jwt",
        RUNNER_AUTH__KEYS=f"{provider}/jwks",
        RUNNER_AUTH__ISSUER=provider,
        RUNNER_AUTH__AUTHORIZATION_SERVERS=provider,
        RUNNER_AUTH__REQUIRED_SCOPES="call",
        RUNNER_IDENTITY_CLAIM="sub",
    )
    described = f"{address}/.well-known/oauth-protected-resource/mcp"

    refused = initialize(url)
    facts = httpx2.get(described, trust_env=False, timeout=180).json()
    at_root = httpx2.get(described.removesuffix("/mcp"), trust_env=False, timeout=180).json()
    files = httpx2.get(f"{address}/api/files", trust_env=False, timeout=180)
    storage = Kept()
    tools, reply = await called(url, "ann", storage)
    by_node = called_by_node(url, "bob")
    by_inspector = called_by_inspector(url, "carl")

    assert refused.status_code == 401
    assert f'resource_metadata="{described}"' in refused.headers["www-authenticate"]
    assert 'scope="call"' in refused.headers["www-authenticate"]
    assert f'resource_metadata="{described}"' in files.headers["www-authenticate"]
    assert (facts["resource"], facts["authorization_servers"]) == (url, [provider])
    assert at_root == facts
    assert {"whose", "change"} <= set(tools)
    assert "ann" in reply
    assert {"whose", "change"} <= set(by_node["tools"])
    assert "bob" in str(by_node["content"])
    assert "carl" in str(by_inspector["content"])


async def test_login_redirects_to_provider_and_survives_restart(
    address: str, provider: str, serve_to: Serve, tmp_path: Path
) -> None:
    settings = {
        "RUNNER_AUTH__KIND": "oidc",
        "RUNNER_AUTH__ISSUER": f"{provider}",
        "RUNNER_AUTH__CLIENT_ID": "runner",
    }
    url = serve_to(*port(address), **settings)
    storage = Kept()

    _, reply = await called(url, "ann", storage)
    serve_to.stop()  # type: ignore[attr-defined]
    assert serve_to(*port(address), **settings) == url
    _, again = await called(url, "nobody logs in", storage)
    by_node = called_by_node(url, "bob")
    by_inspector = called_by_inspector(url, "carl")

    assert "ann@example.com" in reply
    assert "ann@example.com" in again
    assert "bob@example.com" in str(by_node["content"])
    assert "carl@example.com" in str(by_inspector["content"])
    state = [path for path in (tmp_path / "state").rglob("*") if "login" in str(path)]
    files = [path for path in state if path.is_file()]
    assert len(files) > 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert storage.tokens is not None
    assert not any(storage.tokens.access_token in path.read_text() for path in files)


async def test_login_with_opaque_tokens_uses_introspection(
    address: str, provider: str, serve_to: Serve
) -> None:
    url = serve_to(
        *port(address),
        RUNNER_AUTH__KIND="oauth_proxy",
        RUNNER_AUTH__ISSUER=provider,
        RUNNER_AUTH__CLIENT_ID="runner",
        RUNNER_IDENTITY_CLAIM="sub",
    )
    storage = Kept()

    _, reply = await called(url, "ann", storage)

    assert "ann" in reply
    assert storage.tokens is not None
    assert initialize(url, storage.tokens.access_token).status_code == 200
    # The end of its signature changed: no user's.
    assert initialize(url, storage.tokens.access_token[:-8] + "A" * 8).status_code == 401
    elsewhere = {"redirect_uris": ["https://evil.example.com/callback"], "token_endpoint_auth_method": "none"}
    assert httpx2.post(f"{address}/register", json=elsewhere, trust_env=False, timeout=180).status_code == 400
    here = {**elsewhere, "redirect_uris": ["http://localhost:5/callback"]}
    assert httpx2.post(f"{address}/register", json=here, trust_env=False, timeout=180).status_code == 201
