"""Lists without end: what the proxy puts together of them, and what it remembers of tools, is bounded."""

from pathlib import Path
from typing import Any

import pytest
from far import far_server, tool
from fastmcp import Client
from proxying import PAGED, over_http, over_stdio, proxied, upstreams_for

from runner.protocol import resource_tools
from runner.proxy.server import make_proxy
from runner.proxy.upstream import Upstream
from runner.proxy.upstreams import Upstreams

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")]

TOLD = "list truncated"


@pytest.mark.release
@pytest.mark.parametrize(
    ("bounds", "items"),
    [({}, 5), ({"MOST_ITEMS": 3}, 3), ({"MOST_LIST_BYTES": 60}, 2)],
    ids=["all", "items", "bytes"],
)
async def test_list_of_many_pages_read_up_to_bound(
    folder: Path,
    user: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bounds: dict[str, int],
    items: int,
) -> None:
    for name, bound in bounds.items():
        monkeypatch.setattr(resource_tools, name, bound)

    several = (over_stdio("one", PAGED), over_stdio("two", PAGED))
    async with proxied(folder, user, *several, extras="off") as client:
        listed = [str(resource.uri) for resource in await client.list_resources()]

    assert len(listed) == 2 * items
    truncated = [vars(each)["server"] for each in caplog.records if each.message == TOLD]
    # They are asked at once.
    assert sorted(truncated) == ([] if items == 5 else ["one", "two"])


async def test_unreported_list_change_known_at_next_call(
    folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Upstream] = []
    upstream_of = Upstreams.upstream

    def noted(*args: Any) -> Upstream:
        created.append(upstream_of(*args))
        return created[-1]

    monkeypatch.setattr(Upstreams, "upstream", noted)
    tools: list[dict[str, Any]] = []
    with far_server(tools, lambda _method, _params: {"content": []}) as url:
        async with (
            upstreams_for(folder, user, over_http(url)) as upstreams,
            Client(make_proxy(upstreams, transport="stdio"), mode="legacy") as client,
        ):
            for number in range(3):
                tools[:] = [tool(f"tool_{number}_{each}", "x" * 100) for each in range(60)]
                await client.list_tools()
                await client.call_tool(f"tool_{number}_59")

                # As many tools are remembered as one list has.
                assert sorted(created[-1].specs) == sorted(each["name"] for each in tools)
