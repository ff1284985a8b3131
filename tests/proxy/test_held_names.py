"""Rules for approvals that name tools, and a server that takes several names for one tool."""

from pathlib import Path
from typing import Any

import pytest
from far import far_server, tool
from proxying import over_http, proxied

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

NAMES = ("delete_file", "DELETE_FILE", " delete_file", "delete_\uff46ile")


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    del method
    return {"content": [{"type": "text", "text": f"ran {params['name']}"}]}


@pytest.mark.parametrize("held", [False, True])
async def test_unlisted_spelling_of_tool_held(held: bool, folder: Path, user: str) -> None:
    rules = {"deletions": {"tools": ["delete_*"], "by": "operator"}} if held else {}
    with far_server([tool("delete_file"), tool("look")], answer) as url:
        async with proxied(folder, user, over_http(url), approvals=rules) as client:
            texts = [
                (await client.call_tool(name, {}, raise_on_error=False)).content[0].text
                for name in (*NAMES, "look")
            ]

    assert texts[-1] == "ran look"
    assert ["was not run" in text for text in texts[:-1]] == [held] * len(NAMES)
    assert ["ran " in text for text in texts[:-1]] == [not held] * len(NAMES)
