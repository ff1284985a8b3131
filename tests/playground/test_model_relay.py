"""A turn of a chat over HTTP, as a page asks for it: to the operator's endpoint only, and without its key.

Source: `docs/playground.md`; decision 47.
"""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from model_support import FAULTS, KEY, MODEL, Endpoint, Reply, endpoint
from playground_support import Shown

pytestmark = [pytest.mark.kernel, pytest.mark.release]

ASK = [{"role": "user", "text": "What is twice 21?"}]
TOOL = {
    "name": "double",
    "description": "Double a number.",
    "parameters": {"type": "object", "properties": {}},
}
ODD = "böse tools/the one.with a very long name" + "x" * 60


@pytest.fixture(scope="module")
def asked() -> Iterator[Endpoint]:
    with endpoint() as running:
        yield running


@pytest.fixture(scope="module")
def chatting(start: Callable[..., Shown], asked: Endpoint) -> Shown:
    models = ",".join((MODEL, *FAULTS))
    more = {"RUNNER_PLAYGROUND_MODEL_TIMEOUT_S": "1", "RUNNER_LOG_LEVEL": "debug"}
    return start(**asked.settings(models=models, **more))


@pytest.fixture(scope="module")
def with_messages(start: Callable[..., Shown], asked: Endpoint) -> Shown:
    return start(**asked.settings("anthropic"))


def turn(browser: httpx2.Client, **more: Any) -> httpx2.Response:
    return browser.post("/play/chat", json={"model": MODEL, "messages": ASK, **more})


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def words(told: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in told if event["type"] == "text")


@pytest.mark.parametrize("api", ["openai", "anthropic"])
def test_a_turn_reaches_the_endpoint_in_its_own_form_and_comes_back_in_one(
    chatting: Shown, with_messages: Shown, asked: Endpoint, api: str
) -> None:
    asked.script = [Reply("Let me see.", calls=(("double", {"number": 2**70}),))]
    messages = [
        *ASK,
        {"role": "assistant", "text": "", "calls": [{"id": "a", "name": ODD, "arguments": {"x": 1}}]},
        {"role": "tool", "results": [{"id": "a", "text": "it failed", "is_error": True}]},
    ]

    with {"openai": chatting, "anthropic": with_messages}[api].entered() as browser:
        offered = [TOOL, {**TOOL, "name": ODD}]
        told = events(turn(browser, messages=messages, system="Be brief.", tools=offered, temperature=0.5))
    path, headers, body = asked.came[-1]

    (names,) = (event["names"] for event in told if event["type"] == "names")
    assert words(told).strip() == "Let me see."
    (call,) = (event for event in told if event["type"] == "call")
    assert (call["name"], json.loads(call["arguments"])) == ("double", {"number": 2**70})
    (usage,) = (event for event in told if event["type"] == "usage")
    assert (usage["output"], usage["input"] > 10) == (7, True)
    assert told[-1] == {"type": "end", "stop": "calls", "model": MODEL}
    safe = names[ODD]
    assert safe.isascii()
    assert len(safe) <= 64
    if api == "openai":
        assert (path, headers["authorization"]) == ("/v1/chat/completions", f"Bearer {KEY}")
        assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
        assert body["messages"][2]["tool_calls"][0]["function"] == {"name": safe, "arguments": '{"x":1}'}
        assert [tool["function"]["name"] for tool in body["tools"]] == ["double", safe]
    else:
        assert (path, headers["x-api-key"]) == ("/v1/messages", KEY)
        assert headers["anthropic-version"] == "2023-06-01"
        assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
        assert body["messages"][1]["content"] == [
            {"type": "tool_use", "id": "a", "name": safe, "input": {"x": 1}}
        ]
        assert body["messages"][2]["content"][0]["is_error"] is True
        assert [tool["name"] for tool in body["tools"]] == ["double", safe]
    assert body["temperature"] == 0.5
    assert "cookie" not in headers


def test_without_configuration_there_is_no_chat(shown: Shown, chatting: Shown) -> None:
    with shown.entered() as browser:
        none = turn(browser)
        facts = browser.get("/play/info").json()
    with chatting.entered() as browser:
        there = browser.get("/play/info").json()

    assert (none.status_code, facts["chat"]) == (404, None)
    assert there["chat"]["models"][0] == MODEL
    assert KEY not in str(there)


def test_only_a_page_of_this_server_in_a_session_of_its_own_is_answered(
    chatting: Shown, asked: Endpoint
) -> None:
    before = len(asked.came)
    asked.script = [Reply("yes")]

    with chatting.browser() as stranger:
        nobody = turn(stranger)
        forged = stranger.post(
            "/play/chat", json={"model": MODEL, "messages": ASK}, headers={"cookie": "toolcell_session=x.y"}
        )
    with chatting.entered() as browser:
        others = [
            browser.post("/play/chat", json={"model": MODEL, "messages": ASK}, headers=headers)
            for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"})
        ]
        form = browser.post("/play/chat", content=b"{}", headers={"content-type": "text/plain"})
        kept_out = len(asked.came)
        good = turn(browser)

    assert [each.status_code for each in (nobody, forged, *others, form)] == [401, 401, 403, 403, 415]
    assert kept_out == before
    assert words(events(good)).strip() == "yes"


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        ({"model": "gpt-of-somebody"}, 400, "there is no model"),
        ({"url": "http://evil.example"}, 400, "url"),
        ({"messages": [{"role": "system", "text": "x"}]}, 400, "messages"),
        ({"tools": [TOOL, TOOL]}, 400, "same name"),
        (
            {
                "messages": [
                    {
                        "role": "tool",
                        "results": [
                            {"id": "a", "text": "", "images": [{"mime": "image/png", "data": "AAAA"}]}
                        ],
                    }
                ]
            },
            400,
            "playground_model_images",
        ),
        ({"system": "x" * (8 * 1024 * 1024)}, 413, "bytes"),
    ],
    ids=["model", "address", "role", "names", "pictures", "size"],
)
def test_what_a_page_may_not_ask_for_never_reaches_the_endpoint(
    chatting: Shown, asked: Endpoint, more: dict[str, Any], status: int, said: str
) -> None:
    before = len(asked.came)
    with chatting.entered() as browser:
        refused = turn(browser, **more)

    assert refused.status_code == status
    assert said in refused.json()["error"]
    assert len(asked.came) == before


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("401", "refused the key in playground_model_key"),
        ("404", "knows no such address or model"),
        ("429", "takes no more requests"),
        ("500", "failed (HTTP 500)"),
        ("redirect", "redirects (HTTP 307), which is not followed"),
        ("garbage", "not of the API openai"),
        ("json", "no stream of events"),
        ("endless", "more than 4194304 bytes"),
        ("silent", "silent for 1 s"),
        ("broken", "broke its answer off"),
        ("late error", "ended its answer: out of memory"),
        ("echo", None),
    ],
)
def test_a_fault_of_the_endpoint_is_a_sentence_and_its_key_stays_in_the_host(
    chatting: Shown, asked: Endpoint, model: str, said: str | None
) -> None:
    with chatting.entered() as browser:
        answer = turn(browser, model=model)
    told = events(answer)

    if said is None:
        assert words(told) == "your key is [secret playground_model_key], is it not"
    else:
        assert said in told[-1]["error"]
    seen = answer.text + str(answer.headers)
    # The endpoint had it, or there would be nothing to leak.
    assert KEY in str(asked.came[-1][1])
    assert KEY not in seen
    assert "req-of-the-endpoint" not in seen
    assert not any(path.startswith("/elsewhere") for path, _, _ in asked.came)
    assert chatting.heard("turn of a model")
    assert not any(KEY in line or "What is twice" in line for line in chatting.lines)


def test_a_dead_endpoint_is_told_of(start: Callable[..., Shown], asked: Endpoint) -> None:
    dead = start(**asked.settings(RUNNER_PLAYGROUND_MODEL_URL="http://127.0.0.1:1/v1"))

    with dead.entered() as browser:
        told = events(turn(browser))

    assert "cannot be reached" in told[-1]["error"]


def test_a_page_that_leaves_ends_its_turn_and_a_third_at_once_has_to_wait(
    chatting: Shown, asked: Endpoint
) -> None:
    waits = threading.Event()
    asked.script = [Reply("first", waits=waits), Reply("second", waits=waits), Reply("third")]
    left = asked.left
    question = {"model": MODEL, "messages": ASK}

    with chatting.entered() as browser:
        with (
            browser.stream("POST", "/play/chat", json=question) as one,
            browser.stream("POST", "/play/chat", json=question) as other,
        ):
            # Held, since whoever stops reading leaves.
            reading = [each.iter_lines() for each in (one, other)]
            assert all("text" in next(line for line in lines if "data: " in line) for lines in reading)
            third = turn(browser)
        assert chatting.until(lambda: asked.left == left + 2)
        # Their places are free again, a moment later.
        assert chatting.until(lambda: turn(browser).status_code == 200)

    assert (third.status_code, "under way" in third.json()["error"]) == (429, True)


def test_the_key_is_read_from_a_closed_file_and_shown_nowhere(
    start: Callable[..., Shown], asked: Endpoint, tmp_path: Path
) -> None:
    file = tmp_path / "model.key"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    settings = asked.settings(RUNNER_PLAYGROUND_MODEL_KEY="", RUNNER_PLAYGROUND_MODEL_KEY_FILE=str(file))
    asked.script = [Reply("good")]

    with start(**settings).entered() as browser:
        told = events(turn(browser))

    assert words(told).strip() == "good"


def test_a_key_that_changes_in_its_file_holds_from_the_next_turn_on(
    start: Callable[..., Shown], asked: Endpoint, tmp_path: Path
) -> None:
    file = tmp_path / "model.key"
    file.write_text("sk-of-last-year-0123456789")
    file.chmod(0o600)
    settings = asked.settings(RUNNER_PLAYGROUND_MODEL_KEY="", RUNNER_PLAYGROUND_MODEL_KEY_FILE=str(file))
    server = start(**settings)

    with server.entered() as browser:
        asked.script = [Reply("good")] * 2
        assert "refused the key" in events(turn(browser))[-1]["error"]
        file.write_text(KEY + "\n")
        assert words(events(turn(browser))).strip() == "good"
        # What cannot be used changes nothing, and is told to the operator.
        file.chmod(0o644)
        assert words(events(turn(browser))).strip() == "good"

    assert server.heard("the key for models cannot be read anew")
    assert not any(KEY in line for line in server.lines)
