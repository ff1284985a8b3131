"""Unreadable messages fail the request that waits for them; half a surrogate pair damages its string only."""

# ruff: noqa: UP031 - JSON is full of braces

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_INFO_META_KEY, JSONRPCResponse
from somebody import somebody

from runner.protocol import messages
from runner.protocol.messages import DEPTH_MAX, MOST_VALUES, Unreadable, check_meta, read_message


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def unreadable(text: str) -> Unreadable:
    with pytest.raises(Unreadable) as raised:
        read_message(text)
    return raised.value


def test_answer_at_depth_limit_read_deeper_one_refused() -> None:
    text = '{"jsonrpc": "2.0", "id": 7, "result": {"deep": %s}}'

    read = read_message(text % nested(DEPTH_MAX - 2))
    refused = unreadable(text % nested(DEPTH_MAX))

    assert isinstance(read, JSONRPCResponse)
    assert (refused.id, refused.is_request) == (7, False)
    assert "nests deeper than 200 levels" in refused.error.message


@pytest.mark.parametrize(
    ("text", "number", "is_request"),
    [
        ('{"id": 5, "jsonrpc": "2.0", "result": DEEP}', 5, False),
        ('{"jsonrpc": "2.0", "result": DEEP, "id": "a\\"b"}', 'a"b', False),
        ('{"result": {"id": 6, "x": DEEP}, "id": 5, "jsonrpc": "2.0"}', 5, False),
        ('{"result": {"id": 6, "x": DEEP}, "jsonrpc": "2.0"}', None, False),
        ('{"id": 5, "method": "tools/call", "params": {"a": DEEP}}', 5, True),
        ('{"id": 5, "jsonrpc": "2.0", "result": "not an object"}', 5, False),
        ('{"id": true, "result": DEEP}', None, False),
        ("no json", None, False),
        ('["id", ":", 5]', None, False),
    ],
)
def test_id_of_unreadable_message_is_found(text: str, number: object, is_request: bool) -> None:
    refused = unreadable(text.replace("DEEP", nested(300_000)))

    assert (refused.id, refused.is_request) == (number, is_request)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('\ufeff{"jsonrpc": "2.0", "id": 5, "result": {}}', {"id": 5, "result": {}}),
        ('{"id": 5, "result": {}}', {"id": 5, "result": {}}),
        ('{"jsonrpc": "1.0", "id": 5.0, "result": {}, "error": null}', {"id": 5, "result": {}}),
        ('[{"jsonrpc": "2.0", "id": 5, "result": {}}]', {"id": 5, "result": {}}),
        ('{"id": 5, "error": "boom"}', {"id": 5, "error": {"code": -32603, "message": "boom"}}),
        (
            '{"jsonrpc": "2.0", "id": 5, "result": null, "error": {"code": "NO", "message": "boom"}}',
            {"id": 5, "error": {"code": -32603, "message": "boom"}},
        ),
        ('{"id": 5, "error": {"code": 7}}', {"id": 5, "error": {"code": 7, "message": "7"}}),
    ],
)
def test_answer_with_small_fault_is_repaired(text: str, expected: dict[str, object]) -> None:
    read = read_message(text).model_dump(exclude_none=True)

    assert read == {"jsonrpc": "2.0", **expected}


@pytest.mark.parametrize(
    "text", ['{"id": 5, "method": "ping"}', '{"id": 5}', '[{"id": 5, "method": "ping"}]']
)
def test_request_without_version_is_refused(text: str) -> None:
    assert "is not a JSON-RPC message" in unreadable(text).error.message


def test_id_search_time_is_linear_in_message_size() -> None:
    began = time.process_time()

    refused = unreadable('{"result": %s, "id": 5}' % nested(8_000_000))

    assert refused.id == 5
    # Reading all of its tokens takes ten times as long.
    assert time.process_time() - began < 3


@pytest.mark.parametrize("unit", ["1,", "[],", '{"a":"b"},', '"",'])
@pytest.mark.parametrize(
    ("text", "number", "is_request"),
    [
        ('{"jsonrpc": "2.0", "id": 7, "result": {"a": MANY}}', 7, False),
        ('{"result": {"a": MANY}, "jsonrpc": "2.0", "id": "x"}', "x", False),
        ('{"jsonrpc": "2.0", "id": 7, "method": "m", "params": {"a": MANY}}', 7, True),
        ("MANY", None, False),
    ],
)
def test_message_of_too_many_values_refused_before_parsing(
    text: str, number: object, is_request: bool, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing may be read: there is nothing to read with.
    monkeypatch.delattr(messages, "jsonrpc_message_adapter")

    refused = unreadable(text.replace("MANY", f"[{unit * MOST_VALUES}0]"))

    assert (refused.id, refused.is_request) == (number, is_request)
    assert f"the {'request' if is_request else 'answer'} is made of more than 1,000,000 values" in str(
        refused
    )


@pytest.mark.parametrize("text", ["a,b,[{:" * 1_000_000, '\\",[' * 1_000_000, "\n,\u20ac" * 1_100_000])
def test_long_text_is_one_value(text: str) -> None:
    read = read_message(json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"text": text}}))

    assert isinstance(read, JSONRPCResponse)
    assert read.result == {"text": text}


def test_values_up_to_limit_are_read() -> None:
    read = read_message('{"jsonrpc": "2.0", "id": 7, "result": {"a": [%s0]}}' % ("0," * (MOST_VALUES - 10)))

    assert isinstance(read, JSONRPCResponse)
    assert len(read.result["a"]) == MOST_VALUES - 9


@pytest.mark.parametrize(
    "text",
    [
        "\\" * (12 << 20),
        '"' + '\\"' * 500_000,
        '"\\ud800' + '\\"' * 500_000,
        '{"id": 5, "a": "' + '\\"' * 500_000,
        "\\ud800" * 2_000_000,
    ],
)
def test_unreadable_text_scanned_once(text: str) -> None:
    """Scanned again from each quote, this would take hours."""
    refused = unreadable(text)

    assert refused.id == (5 if '"id"' in text else None)


PIECES = [
    r"\ud83d",
    r"\uDE00",
    r"\ude00",
    r"\uD83D",
    r"\u0041",
    r"\\",
    r"\n",
    r"\"",
    "ud800",
    "a",
    "\u20ac",
    "u",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_surrogate_halves_distinguished_from_pairs_and_text(written: str) -> None:
    read = read_message('{"jsonrpc": "2.0", "id": 7, "result": {"a": "%s"}}' % written)

    text = json.loads(f'"{written}"')
    assert isinstance(read, JSONRPCResponse)
    assert read.result == {"a": text.encode(errors="replace").decode()}


def test_stdio_unreadable_request_refused_next_answered(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o700)
    tools = tmp_path / "tools.py"
    tools.write_text('from fastmcp import FastMCP\n\nmcp = FastMCP("deep")\n')
    own = {"RUNNER_STATE_DIR": str(tmp_path / "s"), "RUNNER_STORE": (tmp_path / "f").as_uri()}
    environment = {"PATH": os.environ["PATH"], **own}
    call = '{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x","arguments":{"a":%s}}}'
    deep, many = call % (4, nested(10_000)), call % (6, f"[{'1,' * MOST_VALUES}1]")

    with (
        somebody() as user,
        Popen(
            [sys.executable, "-m", "runner", "serve", str(tools), "--user", user],
            stdin=PIPE,
            stdout=PIPE,
            env=environment,
            text=True,
        ) as server,
    ):
        answers = []
        assert server.stdin is not None
        assert server.stdout is not None
        for line in (deep, "\n" * 100_000 + many, '{"jsonrpc":"2.0","id":5,"method":"ping"}'):
            server.stdin.write(line + "\n")
            server.stdin.flush()
            answers.append(json.loads(server.stdout.readline()))
        server.stdin.close()
        server.wait(60)

    assert answers[0]["id"] == 4
    assert "the request nests deeper than 200 levels" in answers[0]["error"]["message"]
    assert answers[1]["id"] == 6
    assert "the request is made of more than 1,000,000 values" in answers[1]["error"]["message"]
    assert answers[2]["id"] == 5


@pytest.mark.parametrize(
    ("params", "key", "most"),
    [
        (lambda text: {"clientInfo": {"name": text}}, "clientInfo", 1 << 18),
        (lambda text: {"_meta": {CLIENT_INFO_META_KEY: {"name": text}}}, CLIENT_INFO_META_KEY, 1 << 18),
        (lambda text: {"_meta": {"progressToken": text}}, "progressToken", 1024),
    ],
)
def test_long_words_about_a_client_are_refused(
    params: Callable[[str], dict[str, Any]], key: str, most: int
) -> None:
    check_meta(params("a" * (most // 2)))

    with pytest.raises(MCPError, match=f"{key} has more than {most:,} characters"):
        check_meta(params("a" * (most + 1)))
