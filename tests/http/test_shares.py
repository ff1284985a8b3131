"""One user's requests under way have a bound, which is nobody else's."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastmcp import FastMCP
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from support import becomes, settings_in

from runner.files.my_files import open_library
from runner.http.context import Site
from runner.http.requests_per_user import MOST_REQUESTS
from runner.server.web import build_app
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.identity import auth_provider

pytestmark = pytest.mark.anyio

ANN, BOB = "a" * 16, "b" * 16


class Held:
    """A route on which requests stay until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.count = 0

    async def answer(self, _: Request) -> Response:
        self.count += 1
        await self.let_go.wait()
        return Response("done")


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[httpx2.AsyncClient, Held]]:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({ANN: "ann", BOB: "bob"}))
    tokens.chmod(0o600)
    auth: Any = {"kind": "static", "tokens_file": tokens}
    settings = settings_in(tmp_path, auth=auth)
    site = Site(
        settings=settings,
        library=open_library(settings),
        events=Events(),
        tokens=Tokens(settings.state_dir / "tokens.json"),
    )
    held = Held()
    app: FastMCP = FastMCP("shares", auth=auth_provider(settings))
    web = build_app(app, site, more=[Route("/held", held.answer)])
    transport = httpx2.ASGITransport(web)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
        yield client, held
    held.let_go.set()


def of(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_user_above_request_limit_refused_others_served(
    served: tuple[httpx2.AsyncClient, Held],
) -> None:
    client, held = served
    holding = [asyncio.create_task(client.get("/held", headers=of(ANN))) for _ in range(MOST_REQUESTS)]
    assert await becomes(lambda: held.count == MOST_REQUESTS)

    refused = await client.get("/held", headers=of(ANN))
    healthy = await client.get("/healthz", headers=of(ANN))
    others = asyncio.create_task(client.get("/held", headers=of(BOB)))
    assert await becomes(lambda: held.count == MOST_REQUESTS + 1)
    held.let_go.set()
    answers = [(await asking).status_code for asking in (*holding, others)]
    again = await client.get("/held", headers=of(ANN))

    assert refused.status_code == 429
    assert refused.headers["Retry-After"] == "1"
    assert "100 requests of yours" in refused.json()["error"]
    assert healthy.status_code == 200
    assert answers == [200] * (MOST_REQUESTS + 1)
    assert again.status_code == 200


def held_are(held: Held, count: int) -> bool:
    return held.count == count


async def test_stream_left_by_client_no_longer_counts(
    served: tuple[httpx2.AsyncClient, Held],
) -> None:
    client, held = served
    for _ in range(MOST_REQUESTS + 1):
        wanted = held.count + 1
        leaving = asyncio.create_task(client.get("/held", headers=of(ANN)))
        assert await becomes(partial(held_are, held, wanted))
        leaving.cancel()
        await asyncio.wait({leaving})
    held.let_go.set()

    assert (await client.get("/held", headers=of(ANN))).status_code == 200


async def test_download_by_link_counts_as_request_of_its_user(
    served: tuple[httpx2.AsyncClient, Held],
) -> None:
    client, held = served
    put = await client.put("/api/files?filename=a.txt", content=b"a", headers=of(ANN))
    link = f"/api/files/{put.json()['key']}/link"
    url = (await client.post(link, json={}, headers=of(ANN))).json()["url"]
    assert (await client.get(url)).status_code == 200
    single = (await client.post(link, json={"single_use": True}, headers=of(ANN))).json()["url"]
    holding = [asyncio.create_task(client.get("/held", headers=of(ANN))) for _ in range(MOST_REQUESTS)]
    assert await becomes(lambda: held.count == MOST_REQUESTS)

    refused = [(await client.get(each)).status_code for each in (url, url, single)]
    held.let_go.set()
    await asyncio.gather(*holding)

    assert refused == [429, 429, 429]
    assert [(await client.get(each)).status_code for each in (url, single, single)] == [200, 200, 403]
