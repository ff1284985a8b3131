"""Tasks of MCP: calls whose client does not wait for them, spoken as FastMCP's clients of tasks speak."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support import TOOLS, until

pytestmark = pytest.mark.kernel

FILE = TOOLS / "tasks.py"
PREFIX = "io.modelcontextprotocol/"
TASKS = PREFIX + "tasks"
NUMBERS = itertools.count(1)


class Asking:
    """A client of the later era, which knows of tasks or does not."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self.headers = headers

    def __call__(self, method: str, *, knows: bool = True, **params: Any) -> dict[str, Any]:
        able = {"extensions": {TASKS: {}}} if knows else {}
        meta = {
            PREFIX + "protocolVersion": "2026-07-28",
            PREFIX + "clientInfo": {"name": "test", "version": "1"},
            PREFIX + "clientCapabilities": able,
        }
        name = params.get("name") or params.get("taskId")
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": method,
            **({"mcp-name": str(name)} if name else {}),
            **self.headers,
        }
        body = {"jsonrpc": "2.0", "id": next(NUMBERS), "method": method, "params": {**params, "_meta": meta}}
        answer = httpx2.post(self.url, json=body, headers=headers, timeout=60)
        told: dict[str, Any] = answer.json() if answer.text.startswith("{") else last_event(answer.text)
        return told

    def task(self, task: str) -> dict[str, Any]:
        told: dict[str, Any] = self("tasks/get", taskId=task)["result"]
        return told


def last_event(text: str) -> dict[str, Any]:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    told: dict[str, Any] = json.loads(events[-1])
    return told


@pytest.fixture
def ask(serve_http: Callable[..., str]) -> Asking:
    return Asking(serve_http(FILE, RUNNER_IDLE_TIMEOUT_S="1"))


def test_a_call_becomes_a_task_that_silence_does_not_end(ask: Asking) -> None:
    control = ask("tools/call", name="slow", arguments={"seconds": 1.5}, knows=False)["result"]

    begun = ask("tools/call", name="slow", arguments={"seconds": 1.5})["result"]
    first = ask.task(begun["taskId"])
    assert until(lambda: ask.task(begun["taskId"])["status"] != "working")
    ended = ask.task(begun["taskId"])

    # Whoever waits is not kept waiting: one second of silence ends the call.
    assert control["isError"]
    assert (begun["resultType"], begun["status"], begun["pollIntervalMs"]) == ("task", "working", 50)
    assert first["status"] == "working"
    assert (ended["status"], ended["statusMessage"]) == ("completed", "half of it")
    assert ended["result"]["content"][0]["text"] == "after 1.5"


def test_a_task_that_fails_says_so_in_its_result(ask: Asking) -> None:
    begun = ask("tools/call", name="fails", arguments={})["result"]

    assert until(lambda: ask.task(begun["taskId"])["status"] != "working")
    ended = ask.task(begun["taskId"])

    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "not today" in ended["result"]["content"][0]["text"]


def test_a_task_asks_and_goes_on_with_the_answer(ask: Asking) -> None:
    begun = ask("tools/call", name="asks", arguments={})["result"]
    assert until(lambda: ask.task(begun["taskId"])["status"] != "working")
    asked = ask.task(begun["taskId"])

    answer = {"action": "accept", "content": {"dish": "soup"}}
    ask("tasks/update", taskId=begun["taskId"], inputResponses={"what": answer})
    assert until(lambda: ask.task(begun["taskId"])["status"] == "completed")
    ended = ask.task(begun["taskId"])

    assert asked["status"] == "input_required"
    assert asked["inputRequests"]["what"]["params"]["message"] == "Which dish?"
    assert ended["result"]["content"][0]["text"] == "one soup"


def test_a_task_is_cancelled(ask: Asking) -> None:
    begun = ask("tools/call", name="slow", arguments={"seconds": 500})["result"]

    cancelled = ask("tasks/cancel", taskId=begun["taskId"])

    assert cancelled["result"] == {"resultType": "complete"}
    assert ask.task(begun["taskId"])["status"] == "cancelled"


def test_tools_that_are_no_tasks_and_clients_without_them_are_answered_at_once(ask: Asking) -> None:
    plain = ask("tools/call", name="plain", arguments={})["result"]
    without = ask("tools/call", name="slow", arguments={"seconds": 0}, knows=False)["result"]
    refused = ask("tasks/get", taskId="any", knows=False)["error"]
    announced = ask("server/discover")["result"]["capabilities"]["extensions"]

    assert plain["content"][0]["text"] == "plain"
    assert without["content"][0]["text"] == "after 0.0"
    assert TASKS in refused["message"]
    assert TASKS in announced


def test_a_task_is_nobody_elses(serve_http: Callable[..., str], folder: Path) -> None:
    tokens = folder / "tokens"
    tokens.write_text('{"a-token-of-sixteen-chars": "t-task-one", "b-token-of-sixteen-chars": "t-task-two"}')
    tokens.chmod(0o600)
    more = {"RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(tokens), "RUNNER_USER": ""}
    url = serve_http(FILE, **more)
    one, two = (Asking(url, authorization=f"Bearer {name}-token-of-sixteen-chars") for name in "ab")

    begun = one("tools/call", name="slow", arguments={"seconds": 0})["result"]
    others = two("tasks/get", taskId=begun["taskId"])
    stopped = two("tasks/cancel", taskId=begun["taskId"])

    assert "error" in others
    assert "error" in stopped
    assert one.task(begun["taskId"])["status"] in ("working", "completed")
