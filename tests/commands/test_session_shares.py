"""Two users with MCP sessions over HTTP: neither can hold all that a server has."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from mcp_requests import INITIALIZED, initialize, plain
from support import TOOLS

from runner.protocol.endpoint import MOST_SESSIONS

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

VERSION = "2025-06-18"
USERS = {"ann": "a" * 32, "bob": "b" * 32}


@dataclass
class Client:
    """A user's program, which begins sessions and speaks in them."""

    http: httpx2.AsyncClient
    user: str

    def headers(self, session: str | None) -> dict[str, str]:
        named = {
            "authorization": f"Bearer {USERS[self.user]}",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
        }
        return named if session is None else named | {"mcp-session-id": session}

    async def begins(self) -> httpx2.Response:
        return await self.http.post("/mcp", json=initialize(VERSION), headers=self.headers(None))

    async def session(self) -> str:
        session = (await self.begins()).headers["mcp-session-id"]
        await self.http.post("/mcp", json=INITIALIZED, headers=self.headers(session))
        return session

    async def asks(self, session: str) -> int:
        answer = await self.http.post("/mcp", json=plain("echo"), headers=self.headers(session))
        return answer.status_code

    @contextlib.asynccontextmanager
    async def listening(self, session: str) -> AsyncIterator[None]:
        async with self.http.stream("GET", "/mcp", headers=self.headers(session)) as stream:
            assert stream.status_code == 200
            yield


@dataclass
class Served:
    """A server, and its users."""

    ann: Client
    bob: Client


Serves = Callable[[], "contextlib.AbstractAsyncContextManager[Served]"]


@pytest.fixture
def serves(folder: Path, serve_http: Callable[..., str]) -> Serves:
    """Start a server of two users."""
    tokens = folder / "tokens.json"
    tokens.write_text(json.dumps({token: user for user, token in USERS.items()}))
    tokens.chmod(0o600)

    @contextlib.asynccontextmanager
    async def serve() -> AsyncIterator[Served]:
        settings = {"RUNNER_USER": "", "RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(tokens)}
        url = serve_http(TOOLS / "usual.py", **settings)
        async with httpx2.AsyncClient(base_url=url.removesuffix("/mcp"), timeout=180) as http:
            yield Served(ann=Client(http, "ann"), bob=Client(http, "bob"))

    return serve


async def test_session_above_share_ends_users_longest_idle_session(
    serves: Serves,
) -> None:
    async with serves() as served:
        bobs = await served.bob.session()
        anns = [await served.ann.session() for _ in range(MOST_SESSIONS)]
        first = await served.ann.asks(anns[0])
        more = await served.ann.session()

        after = [await served.ann.asks(session) for session in (*anns[:3], anns[-1], more)]
        others = await served.bob.asks(bobs)

    # The first was used last.
    assert first == 200
    assert after == [200, 404, 200, 200, 200]
    assert others == 200


async def test_sessions_in_use_kept_and_other_users_start(serves: Serves) -> None:
    in_use = 5
    async with serves() as served, contextlib.AsyncExitStack() as open_streams:
        anns = [await served.ann.session() for _ in range(MOST_SESSIONS)]
        for session in anns[:in_use]:
            await open_streams.enter_async_context(served.ann.listening(session))
        more = await served.ann.session()
        others = await served.bob.asks(await served.bob.session())
        after = [await served.ann.asks(session) for session in (*anns[: in_use + 2], more)]

    assert others == 200
    assert after == [200] * in_use + [404, 200, 200]


async def test_request_without_session_uses_no_share(serves: Serves) -> None:
    async with serves() as served:
        anns = [await served.ann.session() for _ in range(MOST_SESSIONS - 1)]
        odd = [
            await served.ann.http.post("/mcp", content=b"{", headers=served.ann.headers(None))
            for _ in range(9)
        ]
        anns.append(await served.ann.session())
        after = [await served.ann.asks(session) for session in (anns[0], anns[-1])]

    assert {answer.status_code for answer in odd} == {400}
    assert after == [200, 200]
