"""Code mode in front of servers of others."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from far import far_server, tool
from fastmcp import Client
from fastmcp.exceptions import ToolError
from proxying import over_http, upstreams_for

from runner.proxy.server import make_proxy
from runner.server.serve import with_code

pytestmark = [pytest.mark.release, pytest.mark.anyio, pytest.mark.kernel]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_code_calls_tools_of_server_behind_proxy(mode: str, folder: Path, user: str) -> None:
    requests: list[Mapping[str, Any]] = []

    def answer(method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        requests.append({"method": method, **params})
        return {"content": [{"type": "text", "text": f"row {len(requests)}"}]}

    code = "return ', '.join([await call_tool('rows', {'page': page}) for page in (1, 2)])"
    with far_server([tool("rows")], answer) as url:
        opened = upstreams_for(folder, user, over_http(url), code_mode=True)
        async with (
            opened as upstreams,
            with_code(upstreams.settings, contextlib.nullcontext(upstreams)) as served,
            Client(make_proxy(served, transport="stdio"), mode=mode) as client,
        ):
            names = [each.name for each in await client.list_tools()]
            found = await client.call_tool("search", {"query": "rows"})
            joined = await client.call_tool("execute", {"code": code})
            with pytest.raises(ToolError, match="E_INVALID_PATH"):
                await client.call_tool("execute", {"code": "open('/etc/code.txt', 'w')"})

    assert names[:3] == ["search", "get_schema", "execute"]
    assert "- rows" in str(found.content)
    assert joined.content[0].text == "row 1, row 2"
    assert [each["arguments"] for each in requests] == [{"page": 1}, {"page": 2}]
