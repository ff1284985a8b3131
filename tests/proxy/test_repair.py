"""Faulty answers of servers, and what is made of them. Each is held against the models that clients use."""

import asyncio
import base64
import json
import time
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.proxy.answers import Faults, repaired

PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(40)).decode()
TEXT = {"type": "text", "text": "x"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "text", "image", "a://b", PNG]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("type", "text", "data", "mimeType", "uri", "name", "resource", "annotations", "_meta"),
                    *("content", "structuredContent", "isError", "resultType", "inputSchema", "outputSchema"),
                    *("size", "title", "description", "icons", "task", "taskId", "role", "messages"),
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


def made(
    method: str, result: Any, *, has_sessions: bool = True, **params: Any
) -> tuple[Any, dict[tuple[str, str], bool]]:
    faults = Faults("remote")
    answer = asyncio.run(repaired(method, params, result, faults, has_sessions=has_sessions))
    return answer, faults.known


def called(**result: Any) -> Any:
    answer, _ = made("tools/call", result, name="tool")
    mcp_types.CallToolResult.model_validate(answer, by_name=False)
    return answer


def test_faultless_result_unchanged() -> None:
    link = {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 3, "unknown": [1]}
    result = {"content": [TEXT, link], "structuredContent": {"a": None}, "isError": False, "_meta": {"k": 1}}

    assert made("tools/call", result, name="tool") == (result, {})


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("plain", {"type": "text", "text": "plain"}),
        ({"text": "untyped"}, {"type": "text", "text": "untyped"}),
        ({"type": "text", "text": 5}, {"type": "text", "text": "5"}),
        ({"type": "video", "data": "x"}, {"type": "text", "text": '{"type": "video", "data": "x"}'}),
        ({**TEXT, "annotations": {"priority": 7}}, TEXT),
        ({**TEXT, "_meta": None}, TEXT),
        (
            {"type": "resource_link", "uri": "file:///docs/a.txt"},
            {"type": "resource_link", "uri": "file:///docs/a.txt", "name": "a.txt"},
        ),
        ({"type": "image", "data": PNG}, {"type": "image", "data": PNG, "mimeType": "image/png"}),
        ({"type": "resource", "resource": {"text": "hi"}}, {"type": "text", "text": "hi"}),
    ],
    ids=str,
)
def test_faulty_block_is_repaired(block: Any, expected: dict[str, Any]) -> None:
    answer, faults = made("tools/call", {"content": [TEXT, block]}, name="tool")

    assert answer["content"] == [TEXT, expected]
    assert [(item, is_left_out) for (item, _problem), is_left_out in faults.items()] == [("tool", False)]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({}, {"content": []}),
        ({"structuredContent": {"a": 1}}, {"structuredContent": {"a": 1}, "content": ['{"a": 1}']}),
        ({"content": None, "structuredContent": None}, {"content": []}),
        ({"content": "words"}, {"content": ["words"]}),
        ({"content": TEXT}, {"content": ["x"]}),
        ({"content": [TEXT], "isError": "yes"}, {"content": ["x"], "isError": True}),
        ({"content": [TEXT], "isError": "false"}, {"content": ["x"], "isError": False}),
        ({"content": [TEXT], "_meta": [1], "resultType": 5}, {"content": ["x"]}),
        ({"content": [], "structuredContent": [1]}, {"content": ["[1]"]}),
        ({"content": [], "task": {"taskId": 5}}, {"content": []}),
        ({"rows": [1]}, {"rows": [1], "content": ['{"rows": [1]}']}),
    ],
    ids=str,
)
def test_faulty_result_is_repaired(result: dict[str, Any], expected: dict[str, Any]) -> None:
    answer = called(**result)

    assert {**answer, "content": [block["text"] for block in answer["content"]]} == expected


def test_tool_listed_twice_is_left_out_once() -> None:
    first, second = ({"name": "a", "inputSchema": {"type": "object"}, "title": title} for title in "12")

    answer, faults = made("tools/list", {"tools": [first, second]})

    assert answer["tools"] == [first]
    assert faults == {("a", "it is listed twice"): True}


def test_structured_list_is_kept_for_later_era() -> None:
    answer, faults = made("tools/call", {"content": [TEXT], "structuredContent": [1]}, has_sessions=False)

    assert (answer["structuredContent"], faults) == ([1], {})


def test_task_without_name_is_refused() -> None:
    with pytest.raises(ValueError, match="did not name it"):
        made("tools/call", {"task": {}})


GOOD = {"name": "good", "inputSchema": {"type": "object"}}


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"name": "odd"}, {"name": "odd", "inputSchema": {"type": "object"}}),
        ({**GOOD, "inputSchema": None}, GOOD),
        ({**GOOD, "inputSchema": {}}, GOOD),
        ({**GOOD, "inputSchema": {"type": ["object", "null"]}}, GOOD),
        ({**GOOD, "description": 5, "annotations": [], "icons": "a", "_meta": "b", "title": None}, GOOD),
        ({**GOOD, "outputSchema": {"type": "string"}}, GOOD),
        ({**GOOD, "outputSchema": True}, GOOD),
        ({**GOOD, "inputSchema": {"type": "string"}}, None),
        ({**GOOD, "name": ""}, None),
        ({**GOOD, "name": 5}, None),
        ({"inputSchema": {"type": "object"}}, None),
        ("odd", None),
        (None, None),
    ],
    ids=str,
)
def test_invalid_tool_leaves_others_in_list(tool: Any, expected: dict[str, Any] | None) -> None:
    first = {**GOOD, "name": "first"}

    answer, faults = made("tools/list", {"tools": [first, tool], "nextCursor": "n"})

    assert answer == {"tools": [first] if expected is None else [first, expected], "nextCursor": "n"}
    mcp_types.ListToolsResult.model_validate(answer, by_name=False)
    assert [*faults.values()] in ([expected is None], [])
    assert faults or tool["title"] is None


@pytest.mark.parametrize(
    ("method", "key", "good", "fine", "model"),
    [
        (
            "resources/list",
            "resources",
            {"uri": "a://b", "name": "b"},
            {"uri": "a://b"},
            "ListResourcesResult",
        ),
        ("prompts/list", "prompts", {"name": "p"}, {"name": "p", "arguments": "a"}, "ListPromptsResult"),
        (
            *("resources/templates/list", "resourceTemplates"),
            {"uriTemplate": "a://{b}", "name": "b"},
            {"uriTemplate": "a://{b}", "name": "b", "icons": 1},
            "ListResourceTemplatesResult",
        ),
    ],
)
def test_invalid_item_leaves_others_in_list(
    method: str, key: str, good: dict[str, Any], fine: dict[str, Any], model: str
) -> None:
    answer, faults = made(method, {key: [good, fine, {"title": "no name"}]})

    getattr(mcp_types, model).model_validate(answer, by_name=False)
    assert len(answer[key]) == 2
    assert [*faults.values()] == [False, True]


def test_contents_and_messages_are_repaired() -> None:
    read, _ = made(
        "resources/read", {"contents": [{"text": "a"}, "b", {"uri": 5, "blob": "eA=="}]}, uri="a://b"
    )
    prompt, _ = made("prompts/get", {"messages": [{"role": "system", "content": "hi"}, {"content": [TEXT]}]})

    mcp_types.ReadResourceResult.model_validate(read, by_name=False)
    mcp_types.GetPromptResult.model_validate(prompt, by_name=False)
    assert [part["text"] for part in read["contents"][:2]] == ["a", "b"]
    assert [message["content"]["text"] for message in prompt["messages"]] == ["hi", "x"]


@given(result=st.dictionaries(st.sampled_from(["content", "structuredContent", "isError", "_meta"]), JSON))
def test_any_result_can_be_read_afterwards(result: dict[str, Any]) -> None:
    called(**result)


@given(items=st.lists(JSON, max_size=4))
def test_any_list_can_be_read_afterwards(items: list[Any]) -> None:
    answer, faults = made("tools/list", {"tools": items})

    mcp_types.ListToolsResult.model_validate(answer, by_name=False)
    # Items that are alike have one fault.
    left_out = sum(faults.values())
    assert len(answer["tools"]) <= len(items) - left_out
    assert left_out or len(answer["tools"]) == len(items)


@pytest.mark.anyio
async def test_countless_faults_yield_to_event_loop() -> None:
    tools: list[Any] = [{**GOOD, "icons": [{}] * 300_000}, *[{"name": 5}] * 30_000]
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            # Of this thread, so that a busy machine does not count.
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    ticking = asyncio.create_task(tick())
    answer = await repaired("tools/list", {}, {"tools": tools}, Faults("remote"), has_sessions=True)
    ticking.cancel()

    assert answer["tools"] == [GOOD]
    assert 0 < longest < 0.5


@pytest.mark.parametrize("block", [[], "ab", {"type": "text", "text": "ab"}], ids=["list", "text", "block"])
def test_blocks_beyond_limit_become_one(block: Any) -> None:
    answer, faults = made("tools/call", {"content": [block] * 10_000}, name="tool")
    prompt, _ = made("prompts/get", {"messages": [{"role": "user", "content": [block] * 5_000}] * 2})

    assert next(iter(faults)) == ("tool", "it has more than 4096 content blocks")
    assert len(faults) <= 2
    for blocks in (answer["content"], [message["content"] for message in prompt["messages"]]):
        assert len(blocks) == 4097
        assert json.loads(blocks[-1]["text"]) == [block] * (10_000 - 4096)
