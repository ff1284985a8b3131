"""Lists without end: what the proxy puts together of them, and what it remembers of tools, is bounded."""

from pathlib import Path
from typing import Any

import pytest
from far import far_server, tool
from fastmcp import Client
from proxying import PAGED, over_http, over_stdio, proxied, upstreams_for

from runner.protocol import resource_tools
from runner.proxy import upstream
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


@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [({}, 300, 300), ({"MOST_ITEMS": 100}, 100, 100), ({"MOST_LIST_BYTES": 20_000}, 60, 150)],
    ids=["all", "items", "bytes"],
)
async def test_changing_tool_lists_remembered_up_to_bound(
    folder: Path, user: str, monkeypatch: pytest.MonkeyPatch, bounds: dict[str, int], least: int, most: int
) -> None:
    for name, bound in bounds.items():
        monkeypatch.setattr(upstream, name, bound)

    created: list[Upstream] = []
    upstream_of = Upstreams.upstream

    def noted(*args: Any) -> Upstream:
        created.append(upstream_of(*args))
        return created[-1]

    monkeypatch.setattr(Upstreams, "upstream", noted)
    tools: list[dict[str, Any]] = []
    with far_server(tools, lambda _method, _params: {}) as url:
        async with (
            upstreams_for(folder, user, over_http(url)) as upstreams,
            Client(make_proxy(upstreams, transport="stdio"), mode="legacy") as client,
        ):
            for number in range(5):
                tools[:] = [tool(f"tool_{number}_{each}", "x" * 100) for each in range(60)]
                await client.list_tools()
            known = created[-1]

    # What was listed last is known, whatever was forgotten.
    assert "tool_4_59" in known.specs
    assert least <= len(known.specs) <= most
