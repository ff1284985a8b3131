from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx2
import pytest
from fastmcp import FastMCP
from somebody import somebody
from starlette.applications import Starlette
from starlette.testclient import TestClient
from support import environment_in, serving_over_http

from runner.errors import StartError
from runner.http import readiness
from runner.http.origins import KnownOrigins
from runner.protocol.endpoint import set_up_endpoint
from runner.protocol.messages import MOST_VALUES
from runner.settings.settings import Settings

LIMIT = 6 * 1024 * 1024
HEADERS = {"accept": "application/json, text/event-stream"}
# A request that opens no session may be long.
ALONE = {**HEADERS, "mcp-protocol-version": "2026-07-28"}


def served(settings: Settings, *, failed: Mapping[str, str] | None = None) -> Starlette:
    async def faults() -> Mapping[str, str]:
        return failed or {}

    server: FastMCP[None] = FastMCP("test")
    app = server.http_app(host_origin_protection=False)
    app.router.routes.extend(readiness.routes(tier="process", version="1.2.3", faults=faults))
    app.add_middleware(KnownOrigins, settings=settings)
    set_up_endpoint(app, max_bytes=LIMIT, user=lambda: None, direct=None)
    return app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(served(Settings()), base_url="http://127.0.0.1:8000") as opened:
        yield opened


def posted(client: TestClient, size: int) -> int:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"padding": "a" * size}}}
    return client.post("/mcp", json=ping, headers=ALONE).status_code


def test_healthz_reports_tier_and_version(client: TestClient) -> None:
    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "ok", "tier": "process", "version": "1.2.3"},
    )
    assert answer.headers["cache-control"] == "no-store"


def test_readyz_is_503_and_names_each_faulty_part(client: TestClient) -> None:
    assert (client.get("/readyz").status_code, client.get("/readyz").json()) == (200, {"status": "ready"})

    failed = {"store": "its disk is full"}
    with TestClient(served(Settings(), failed=failed), base_url="http://127.0.0.1:8000") as starting:
        answer = starting.get("/readyz")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"status": "not ready", "failed": failed}


@pytest.mark.parametrize("path", ["/healthz", "/mcp"])
def test_foreign_host_name_refused_on_every_route(client: TestClient, path: str) -> None:
    ours = client.get(path, headers={"host": "localhost:8000", **HEADERS}).status_code
    rebound = client.get(path, headers={"host": "attacker.example:8000", **HEADERS}).status_code

    assert ours != 421
    assert rebound == 421


@pytest.mark.parametrize("path", ["/healthz", "/mcp"])
def test_foreign_origin_page_refused_on_every_route(client: TestClient, path: str) -> None:
    ours = client.get(path, headers={"origin": "http://127.0.0.1:8000", **HEADERS}).status_code
    foreign = client.get(path, headers={"origin": "https://attacker.example", **HEADERS}).status_code

    assert ours != 403
    assert foreign == 403


def test_server_on_all_addresses_refuses_rebound_name() -> None:
    app = served(Settings(host="0.0.0.0", user="alice"))

    with TestClient(app, base_url="http://172.17.0.2:8000") as client:
        published = client.get("/healthz", headers={"host": "localhost:8000"})
        own = client.get("/healthz")
        rebound = client.get(
            "/healthz", headers={"host": "attacker.example", "origin": "http://attacker.example"}
        )

    assert (published.status_code, own.status_code, rebound.status_code) == (200, 200, 421)


def test_configured_names_and_origins_accepted() -> None:
    settings = Settings(allowed_hosts=("tools.example",), allowed_origins=("https://chat.example",))

    with TestClient(served(settings), base_url="http://127.0.0.1:8000") as client:
        answer = client.get("/healthz", headers={"host": "tools.example", "origin": "https://chat.example"})

    assert answer.status_code == 200


def test_body_above_sdk_limit_accepted_above_ours_refused(client: TestClient) -> None:
    small = posted(client, 10)

    assert posted(client, 5 * 1024 * 1024) == small
    assert posted(client, LIMIT) == 413


@pytest.mark.parametrize("version", [None, "2025-11-25", "2026-07-28"])
@pytest.mark.parametrize(
    ("body", "number"),
    [
        ('{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": MANY}}', 7),
        ('{"method": "ping", "params": {"a": MANY}, "jsonrpc": "2.0", "id": "x"}', "x"),
        ('{"jsonrpc": "2.0", "id": 7, "result": {"a": MANY}}', None),
        ("MANY", None),
    ],
)
def test_body_of_too_many_values_refused_before_parsing(
    client: TestClient, version: str | None, body: str, number: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A request that opens a session is shorter.
    in_session = {} if version == "2026-07-28" else {"mcp-session-id": "any"}
    headers = {**HEADERS, **in_session, **({"mcp-protocol-version": version} if version else {})}
    headers["content-type"] = "application/json"
    # Nothing reads a body: there is nothing to read with.
    monkeypatch.delattr("mcp.server.streamable_http.pydantic_core")
    monkeypatch.delattr("mcp.server._streamable_http_modern.json")

    answer = client.post("/mcp", content=body.replace("MANY", f"[{'1,' * MOST_VALUES}1]"), headers=headers)

    assert answer.status_code == 400
    assert answer.json()["id"] == number
    assert "is made of more than 1,000,000 values" in answer.json()["error"]["message"]


@pytest.mark.release
def test_server_refuses_million_value_body_and_continues(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    tools = tmp_path / "tools.py"
    tools.write_text('from fastmcp import FastMCP\n\nmcp = FastMCP("counts")\n')
    headers = {**HEADERS, "content-type": "application/json", "mcp-protocol-version": "2026-07-28"}
    many = '{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": [%s1]}}' % ("1," * 8_000_000)

    with (
        somebody() as user,
        serving_over_http(tools, environment_in(tmp_path), "--user", user) as url,
        httpx2.Client(headers=headers, timeout=180) as client,
    ):
        refused = client.post(url, content=many)
        healthy = client.get(url.removesuffix("/mcp") + "/healthz")

    assert (refused.status_code, refused.json()["id"]) == (400, 7)
    assert "is made of more than 1,000,000 values" in refused.json()["error"]["message"]
    assert healthy.status_code == 200


def test_text_of_millions_of_commas_is_one_value(client: TestClient) -> None:
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": {"padding": "a,[" * 1_200_000}}}

    assert client.post("/mcp", json=ping, headers=ALONE).status_code == posted(client, 10)


def test_body_limit_applies_to_server_with_tokens() -> None:
    from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

    verifier = StaticTokenVerifier({"0123456789abcdef": {"client_id": "alice", "scopes": []}})
    server: FastMCP[None] = FastMCP("test", auth=verifier)
    app = server.http_app(host_origin_protection=False)
    set_up_endpoint(app, max_bytes=LIMIT, user=lambda: None, direct=None)

    with TestClient(app, base_url="http://127.0.0.1:8000") as client:
        refused = posted(client, LIMIT)
        client.headers["authorization"] = "Bearer 0123456789abcdef"
        too_large, large = posted(client, LIMIT), posted(client, 5 * 1024 * 1024)

    assert (refused, too_large) == (401, 413)
    assert large not in (401, 413)


def test_app_without_body_limit_does_not_start() -> None:
    app = Starlette()
    set_up_endpoint(app, max_bytes=LIMIT, user=lambda: None, direct=None)

    with pytest.raises(StartError, match="no body limit to set"), TestClient(app):
        pass


def test_accepted_host_opens_nothing_for_another(client: TestClient) -> None:
    named = ["127.0.0.1:8000", "evil.example"] * 3
    statuses = [client.get("/healthz", headers={"host": host}).status_code for host in named]

    assert statuses == [200, 421] * 3
