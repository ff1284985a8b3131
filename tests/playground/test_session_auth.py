"""The Playground's way to MCP, `/play/mcp`, in process: its user, and the MCP sessions that end with it."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastmcp import FastMCP
from fastmcp.server.dependencies import get_access_token
from playground_support import answer, ask
from starlette.datastructures import Headers
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from runner.files.my_files import open_library
from runner.http.browser_session import begin_session
from runner.http.context import Site
from runner.http.identify import COOKIE
from runner.http.open_streams import OpenStreams
from runner.http.under_way import UnderWay
from runner.playground.bundle import Bundle
from runner.playground.config import Playground
from runner.playground.session_auth import DOOR, PlaygroundAuth
from runner.playground.start_key import Passes
from runner.server.web import build_app
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.identity import User, auth_provider, user_of

GATEWAY = "127.0.0.2"
BY_GATEWAY = Auth(kind="gateway", gateway_addresses=(GATEWAY,))


@pytest.fixture
def tokens(tmp_path: Path) -> Auth:
    file = tmp_path / "tokens.json"
    file.write_text(
        json.dumps({f"token-of-{user}-0123456789": user for user in ("ann.corp", "bob.corp.corp")})
    )
    file.chmod(0o600)
    return Auth(kind="static", tokens_file=file)


def site_in(folder: Path, auth: Auth, **more: Any) -> Site:
    (folder / "state").mkdir(exist_ok=True)
    settings = Settings(state_dir=folder / "state", store=(folder / "store").as_uri(), auth=auth, **more)
    return Site(
        settings=settings,
        library=open_library(settings),
        events=Events(),
        tokens=Tokens(settings.state_dir / "keys.json"),
    )


def browser(folder: Path, auth: Auth, **more: Any) -> TestClient:
    """Return a browser at a server whose only tool names its user."""
    site = site_in(folder, auth, **more)
    settings = site.settings
    mcp: FastMCP[None] = FastMCP("who", auth=auth_provider(settings))

    @mcp.tool
    def who() -> str:
        return user_of(settings, get_access_token()).name

    playground = Playground(facts=dict, bundle=Bundle(), frames_port=None, key=None)
    web = build_app(mcp, site, playground=playground, streams=OpenStreams())
    return TestClient(web, base_url="http://127.0.0.1:8000", client=(GATEWAY, 1))


@pytest.mark.parametrize("kind", ["static", "gateway"])
@pytest.mark.parametrize(("claimed", "name"), [("ann.corp", "ann"), ("bob.corp.corp", "bob.corp")])
def test_page_is_served_as_user_of_its_login(
    kind: str, claimed: str, name: str, tokens: Auth, tmp_path: Path
) -> None:
    credential = (
        {"x-forwarded-user": claimed}
        if kind == "gateway"
        else {"authorization": f"Bearer token-of-{claimed}-0123456789"}
    )
    auth = BY_GATEWAY if kind == "gateway" else tokens
    with browser(tmp_path, auth, identity_suffix=".corp") as page:
        session_user = page.post("/api/session", headers=credential).json()["user"]

        called = answer(ask(page, "tools/call", {"name": "who", "arguments": {}}, **credential))

    assert (session_user, called["content"][0]["text"]) == (name, name)


class Endpoint:
    """An MCP endpoint that opens a session for each request but `DELETE`."""

    def __init__(self) -> None:
        self.opened = 0
        self.deleted: list[str] = []

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["method"] == "DELETE":
            self.deleted.append(Headers(scope=scope)["mcp-session-id"])
            return
        self.opened += 1
        name = f"mcp-{self.opened}".encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"mcp-session-id", name)]})
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.anyio
async def test_sessions_end_at_logout_despite_those_of_others(tmp_path: Path) -> None:
    site, under_way, endpoint = site_in(tmp_path, BY_GATEWAY), UnderWay(), Endpoint()
    door = PlaygroundAuth(endpoint, site, Passes(), under_way, most_sessions=2)

    async def opened(user: str, *, times: int) -> User:
        login = await begin_session(site, User(user))
        cookie = (b"cookie", f"{COOKIE}={login.session}.{login.signed}".encode())
        headers = [(b"host", b"127.0.0.1"), cookie]
        scope = {"type": "http", "method": "POST", "path": DOOR, "scheme": "http", "app": None}
        for _ in range(times):
            await door({**scope, "headers": headers}, _nothing, _unheard)
        return User(user, login.session)

    bob = await opened("bob", times=1)
    ann = await opened("ann", times=4)
    await under_way.end(bob)
    of_bob = list(endpoint.deleted)
    await under_way.end(ann)

    # At its own limit, the oldest sessions of a user are forgotten.
    assert (of_bob, sorted(endpoint.deleted)) == (["mcp-1"], ["mcp-1", "mcp-4", "mcp-5"])


async def _nothing() -> Message:
    return {"type": "http.disconnect"}


async def _unheard(_: Message) -> None:
    return
