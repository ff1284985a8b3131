"""A call that has ended leaves nothing in the host that only the collector of garbage would end."""

import asyncio
import contextlib
import json
import re
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from circles import circles
from mcp_requests import modern, usual
from starlette.applications import Starlette
from support import becomes, settings_in
from two_servers import post

from runner.http.context import Site
from runner.server.host import make_host
from runner.server.web import build_app
from runner.toolset.toolset import Toolset

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]

TOOLS = Path(__file__).parents[1] / "tools" / "lasting.py"
USER = f"t-{uuid.uuid4().hex[:12]}"
TIMES = 3
# Some last long enough to be watched, as their client is then; some fail, before and after they have begun.
CALLS: dict[str, dict[str, object]] = {
    "lasts": {},
    "lasts_at_home": {},
    "fails": {},
    "crashes": {},
    "missing": {},
}
ENDS = {
    "lasts": None,
    "lasts_at_home": None,
    "fails": "E_TOOL",
    "crashes": "E_CRASHED",
    "missing": "E_TOOL_NOT_FOUND",
}


@pytest.fixture(scope="module")
async def webs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, Starlette]]:
    folder = tmp_path_factory.mktemp("remains")
    folder.chmod(0o700)
    settings = settings_in(folder, user=USER)
    async with contextlib.AsyncExitStack() as stack:
        toolset = await stack.enter_async_context(Toolset.open(settings, [str(TOOLS)]))
        site = Site(
            settings=settings, library=toolset.library, events=toolset.events, tokens=toolset.links.tokens
        )
        opened = {}
        for way in ("directly", "by the SDK"):
            host = make_host(toolset, transport="http", download_url=None)
            web = build_app(host, site, directly=way == "directly")
            await stack.enter_async_context(web.router.lifespan_context(web))
            opened[way] = web
        yield opened


async def called(web: Starlette, tool: str, arguments: dict[str, object]) -> bytes:
    """Call a tool, and return the body of the answer."""
    sent = await post(web, json.dumps(modern(tool, arguments)).encode(), usual(tool))
    return b"".join(message.get("body", b"") for message in sent)


def code_in(answer: bytes) -> str | None:
    found = re.search(rb"E_[A-Z_]+", answer)
    return None if found is None else found[0].decode()


def none_under_way() -> bool:
    """Return whether all that calls have begun is over: their burials come after their answers."""
    running = (getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks())
    return not any(name.startswith(("Lease.", "Watch.", "Exchange.")) for name in running)


@pytest.mark.parametrize("way", ["directly", "by the SDK"])
async def test_call_leaves_nothing_for_collector(webs: dict[str, Starlette], way: str) -> None:
    answered = {tool: await called(webs[way], tool, arguments) for tool, arguments in CALLS.items()}
    assert await becomes(none_under_way)

    with circles() as left:
        for tool, arguments in CALLS.items():
            for _ in range(TIMES):
                await called(webs[way], tool, arguments)
        assert await becomes(none_under_way)

    assert {tool: code_in(answer) for tool, answer in answered.items()} == ENDS
    assert not left.found


async def test_object_holding_its_cancelled_task_is_found() -> None:
    class Keeping:
        def __init__(self) -> None:
            self.task = asyncio.create_task(self.lasts())

        async def lasts(self) -> None:
            await asyncio.sleep(60)

    with circles() as left:
        keeping = Keeping()
        await asyncio.sleep(0)
        keeping.task.cancel()
        await asyncio.wait({keeping.task})
        del keeping

    assert left.found == {"Keeping": 1}
