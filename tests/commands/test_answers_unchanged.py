"""Answers of `runner serve` compared with those of `fastmcp run`, for one file and one client's lines."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import TOOLS

pytestmark = [pytest.mark.release, pytest.mark.kernel, pytest.mark.timeout(200)]

FILE = TOOLS / "kinds.py"
BIN = Path(sys.executable).parent
PLAIN = (str(BIN / "fastmcp"), "run", str(FILE), "--no-banner")
OURS = (sys.executable, "-m", "runner.cli.app", "serve", str(FILE), "--transport", "stdio")
CLIENT = {"name": "tests", "version": "1"}
ERAS = ("2025-06-18", "2025-11-25", "2026-07-28")

BY_REFERENCE = {"u_embedded_blob"}
"""Files in a result are kept for the user and go as links: docs/contract.md, "What a client gets"."""


def envelope(version: str) -> dict[str, Any]:
    if version in ERAS[:2]:
        return {}
    prefix = "io.modelcontextprotocol/"
    facts = {"protocolVersion": version, "clientInfo": CLIENT, "clientCapabilities": {}}
    return {"_meta": {prefix + name: value for name, value in facts.items()}}


def greeting(version: str) -> list[dict[str, Any]]:
    if envelope(version):
        return []
    hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
    return [
        {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]


class Conversation:
    """A client that sends raw lines and corrects nothing that it reads."""

    def __init__(
        self, command: Sequence[str], version: str, environment: Mapping[str, str], log: Path
    ) -> None:
        self._more = envelope(version)
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
            )
        for message in greeting(version):
            self._say(message)
        if not self._more:
            self._answer("hello")

    def ask(self, method: str, **params: Any) -> Any:
        name = f"{method} {params}"
        self._say({"jsonrpc": "2.0", "id": name, "method": method, "params": {**params, **self._more}})
        return self._answer(name)

    def end(self) -> None:
        self._process.communicate(timeout=100)

    def _say(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _answer(self, name: str) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if message.get("id") == name:
                return message.get("result", message)
        raise AssertionError(f"no answer to {name}")


def everything(command: Sequence[str], version: str, environment: Mapping[str, str], log: Path) -> Any:
    conversation = Conversation(command, version, environment, log)
    tools = {tool["name"]: tool for tool in conversation.ask("tools/list")["tools"]}
    arguments = {"a_args": {"x": 1}}
    answers = {
        name: conversation.ask("tools/call", name=name, arguments=arguments.get(name, {})) for name in tools
    }
    conversation.end()
    return tools, answers


def foreign(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer without what only we say in `_meta`."""
    meta = {key: item for key, item in answer.get("_meta", {}).items() if not key.startswith("toolcell/")}
    rest = {key: item for key, item in answer.items() if key != "_meta"}
    return rest | ({"_meta": meta} if meta else {})


@pytest.mark.parametrize("version", ERAS)
def test_answers_equal_plain_fastmcp(version: str, environment: dict[str, str], tmp_path: Path) -> None:
    both = {**os.environ, **environment}
    listed, plain = everything(PLAIN, version, both, tmp_path / "plain.log")
    tools, ours = everything(OURS, version, both, tmp_path / "ours.log")
    failed = {name for name, answer in plain.items() if name.endswith("_raised")}

    assert {name: tools[name] for name in listed} == listed
    for name in plain.keys() - BY_REFERENCE - failed:
        assert foreign(ours[name]) == plain[name], name
    for name in failed:
        reply = foreign(ours[name])
        assert reply["isError"] is plain[name]["isError"] is True
        assert reply["content"][: len(plain[name]["content"])] == plain[name]["content"], name
        assert json.loads(reply["content"][-1]["text"])["meta_data"]["error_code"] in (
            "E_TOOL",
            "E_INVALID_PATH",
        )
    assert ours["d_denied"]["_meta"]["toolcell/result"]["meta_data"]["denials"]
    for name in BY_REFERENCE:
        assert [block["type"] for block in ours[name]["content"]] == ["resource_link"]


WITH_TASKS = """
from fastmcp import FastMCP
from fastmcp.utilities.tasks import TaskConfig
from fastmcp_tasks import TasksExtension

mcp = FastMCP("with tasks")
mcp.add_extension(TasksExtension())

@mcp.tool(task=True)
async def soon() -> str:
    return "soon"

@mcp.tool(task=TaskConfig(mode="required"))
async def later() -> str:
    return "later"

@mcp.tool
def now() -> str:
    return "now"
"""


@pytest.mark.parametrize("version", ERAS)
def test_task_tools_listed_and_called_as_plain_fastmcp(
    version: str, environment: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "with_tasks.py"
    file.write_text(WITH_TASKS)
    both = {**os.environ, **environment}
    found: list[tuple[dict[str, dict[str, Any]], dict[str, Any]]] = []
    for command in (PLAIN, OURS):
        words = [str(file) if word == str(FILE) else word for word in command]
        conversation = Conversation(words, version, both, tmp_path / f"{len(found)}.log")
        tools = {tool["name"]: tool for tool in conversation.ask("tools/list")["tools"]}
        # A client of 2025-11-25 that asks for a task although none are announced.
        called = conversation.ask("tools/call", name="soon", arguments={}, task={"ttl": 1000})
        conversation.end()
        found.append((tools, foreign(called)))
    (plain, answered), (ours, reply) = found

    assert {name: ours[name] for name in plain} == plain
    assert reply == answered
    assert reply["content"][0]["text"] == "soon"
    listed = {name: tool.get("execution", {}).get("taskSupport") for name, tool in plain.items()}
    if version == "2025-11-25":
        assert listed == {"soon": "optional", "later": "required", "now": None}
