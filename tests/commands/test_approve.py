"""Held calls over the lines of stdio, `runner approve`, and the audit log of both."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from eras import NEWEST, NEWEST_SESSION
from support import SAMPLES, Ran

pytestmark = [pytest.mark.release, pytest.mark.kernel]

RULES = '[approvals.loud]\ntools = ["shout"]\narguments = ["text=*!"]\n'
ASKING = Path(__file__).parents[1] / "programs" / "asks_to_confirm.py"
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": NEWEST,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
YES = {"action": "accept", "content": {"approve": True}}


class Lines:
    """A client of lines that answers every elicitation alike."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.questions: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        print(json.dumps({"jsonrpc": "2.0", **message}), file=self.process.stdin, flush=True)

    def request(self, method: str, **params: Any) -> dict[str, Any]:
        self.send({"id": 1, "method": method, "params": params})
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if message.get("method") == "elicitation/create":
                self.questions.append(message["params"])
                self.send({"id": message["id"], "result": YES})
            elif message.get("id") == 1 and "method" not in message:
                return dict(message.get("result", message))
        raise AssertionError("the server ended")


@pytest.fixture
def config(folder: Path) -> Path:
    path = folder / "rules.toml"
    path.write_text(f'audit_dir = "{folder / "audit"}"\n{RULES}')
    return path


@pytest.fixture
def lines(
    environment: dict[str, str], folder: Path, config: Path, request: pytest.FixtureRequest
) -> Iterator[Lines]:
    """Connect to a server over stdio, of the sample or of the file that a test names."""
    file = str(getattr(request, "param", SAMPLES / "hello.py"))
    arguments = ["serve", file, "--transport", "stdio", "--config", str(config)]
    with subprocess.Popen(
        [sys.executable, "-m", "runner.cli.app", *arguments],
        env=environment,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Lines(process)
        assert process.stdin is not None
        process.stdin.close()


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block.get("text", "") for block in result["content"])


def audited(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "audit" / "audit-000001.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "approval" in line or line["kind"] == "administration"]


def test_session_client_approves_during_its_call(lines: Lines, user: str, folder: Path) -> None:
    about: dict[str, Any] = {"name": "test", "version": "1"}
    able: dict[str, Any] = {"elicitation": {}}
    lines.request("initialize", protocolVersion=NEWEST_SESSION, capabilities=able, clientInfo=about)
    lines.send({"method": "notifications/initialized"})

    assert "HI!" in text_of(lines.request("tools/call", name="shout", arguments={"text": "hi!"}))
    ((question, _schema),) = [tuple(one.values()) for one in lines.questions]
    assert question == f'Run shout of hello.py once for {user}?\n  text = "hi!"\nRule: approvals.loud'


def test_answer_of_later_era_passes_its_call_once(lines: Lines) -> None:
    def call(**more: Any) -> dict[str, Any]:
        params = {"name": "shout", "arguments": {"text": "hi!"}, **more, "_meta": ENVELOPE}
        return lines.request("tools/call", **params)

    question = call()
    answer = {"inputResponses": {"toolcell_approval": YES}, "requestState": question["requestState"]}
    moved = call(**answer, arguments={"text": "ho!"})
    none = call(**{**answer, "inputResponses": {"toolcell_approval": {"action": "accept", "content": {}}}})
    next_question = call()
    passed = call(**{**answer, "requestState": next_question["requestState"]})
    repeated = call(**{**answer, "requestState": next_question["requestState"]})

    assert list(question["inputRequests"]) == ["toolcell_approval"]
    assert [one["resultType"] for one in (question, next_question, repeated)] == ["input_required"] * 3
    assert moved["error"]["message"].startswith("Invalid")
    assert "did not approve it" in text_of(none)
    assert "HI!" in text_of(passed)


@pytest.mark.parametrize("lines", [ASKING], indirect=True)
def test_approved_call_cannot_begin_again(lines: Lines) -> None:
    """A tool asks after its first step: without the answer it would take that step again."""
    params = {"name": "shout", "arguments": {"text": "hi!"}, "_meta": ENVELOPE}

    def outcome(**more: Any) -> tuple[str, str]:
        found = lines.request("tools/call", **params, **more)
        if "content" in found:
            return "", text_of(found)
        return min(found["inputRequests"]), found["requestState"]

    approval, state = outcome()
    question, state = outcome(requestState=state, inputResponses={approval: YES})
    answers = {question: {"action": "accept", "content": {"value": "Ann"}}}
    repeats = [
        outcome(requestState=state),
        outcome(requestState=state, inputResponses={}),
        outcome(requestState=state, inputResponses={"other": YES}),
    ]
    _, text = outcome(requestState=state, inputResponses=answers)

    assert (approval, question) == ("toolcell_approval", "name")
    assert [name for name, _ in repeats] == [approval] * len(repeats)
    assert "named Ann by step 1" in text


def test_operator_approves_one_call_from_the_shell(
    run: Callable[..., Ran], config: Path, folder: Path
) -> None:
    text = "hi!\x1b[2J!"

    def call() -> Ran:
        return run("call", "--config", config, SAMPLES / "hello.py", "shout", f"text={text}", "--json")

    held = call()
    details = held.json["meta_data"]["details"]
    listed = run("approve", "--config", config).out
    answered = run("approve", details["approval"], "--config", config)
    passed, repeated = call(), call()

    assert details["command"] == f"runner approve {details['approval']}"
    assert listed.startswith(f"{details['approval']}  waiting, ")
    assert 'text = "hi!\\u001b[2J!"' in listed
    assert answered.out.startswith("call approved: shout; ")
    assert (held.status, passed.status, repeated.status) == (4, 0, 4)
    assert passed.json["results"] == text.upper()
    records = [str(one.get("approval", one.get("act"))).split(" as ")[0] for one in audited(folder)]
    assert records == [
        "waits for operator",
        "call approved",
        "approved by operator, loud",
        "waits for operator",
    ]


def test_fleet_refuses_approvals_at_start(run: Callable[..., Ran], config: Path) -> None:
    redis = ("--redis-url", "redis://127.0.0.1/0")
    started = run("serve", SAMPLES / "hello.py", "--config", config, *redis, "--transport", "stdio")

    assert started.status == 2
    assert "approvals are kept by one host" in started.err
