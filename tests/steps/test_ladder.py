import json
from collections.abc import Mapping
from typing import Any

import pytest

from runner.steps.listener import CallListener, ClientRefusal, widened
from runner.toolset.session_state import SessionState
from sandbox.deadlines import Deadlines, Rung

pytestmark = pytest.mark.anyio


class Heard:
    """A client that writes down what it hears."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Mapping[str, Any]]] = []

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self.notes.append((method, params))

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if params.get("refuse"):
            raise ClientRefusal(-1, "no")
        return {"action": "accept", "asked": method}


def listener(meta: dict[str, Any] | None = None, levels: tuple[str, ...] = ()) -> CallListener:
    return CallListener(
        client=Heard(),
        params={"name": "t", "_meta": meta or {}},
        levels=frozenset(levels),
        deadlines=Deadlines(),
        user="alice",
        state=SessionState(),
    )


def within(answer: Mapping[str, object], name: str) -> Mapping[str, Any]:
    found = answer[name]
    assert isinstance(found, Mapping)
    return found


def notices_of(call: CallListener) -> list[tuple[str, Mapping[str, Any]]]:
    assert isinstance(call.client, Heard)
    return call.client.notes


def progress(value: float, **more: object) -> dict[str, object]:
    return {"method": "notifications/progress", "params": {"progress": value, **more}}


async def test_progress_sent_under_callers_own_token() -> None:
    call = listener({"progressToken": "mine"})

    await call.notify(progress(1, total=4, message="one", progressToken="forged"))

    sent = {"progressToken": "mine", "progress": 1, "total": 4, "message": "one"}
    assert notices_of(call) == [("notifications/progress", sent)]
    assert call.last_progress == "one"


async def test_progress_without_token_counts_and_is_not_sent() -> None:
    call = listener()

    await call.notify(progress(1, total=4))

    assert notices_of(call) == []
    assert call.last_progress == "1/4"


@pytest.mark.parametrize(
    ("params", "passed"),
    [
        ({"level": "info", "logger": "a", "data": 1}, {"level": "info", "logger": "a", "data": 1}),
        ({"level": "info", "logger": 7, "data": "x"}, {"level": "info", "data": "x"}),
        ({"level": "info", "logger": {"a": []}, "more": 1}, {"level": "info", "data": None}),
        ({"level": ["info"], "data": "x"}, None),
        ({"level": {"info": 1}, "data": "x"}, None),
        ({"level": "debug", "data": "x"}, None),
        ({"data": "x"}, None),
    ],
)
async def test_log_message_relayed_in_protocol_form(
    params: dict[str, Any], passed: dict[str, Any] | None
) -> None:
    call = listener(levels=("info",))

    await call.notify({"method": "notifications/message", "params": params})

    assert notices_of(call) == ([] if passed is None else [("notifications/message", passed)])


NESTED: Any = "inmost"
for number in range(100):
    NESTED = [NESTED] if number % 2 else {"a": NESTED}
DEEP = [NESTED]
EMPTY: Any = []
for _ in range(100):
    EMPTY = [EMPTY]


async def test_deeply_nested_message_dropped_question_refused() -> None:
    call = listener(levels=("info",))

    for data in (NESTED, DEEP, EMPTY):
        await call.notify({"method": "notifications/message", "params": {"level": "info", "data": data}})
    reply = await call.request({"method": "elicitation/create", "params": {"message": "?", "more": DEEP}})
    control = await call.request({"method": "elicitation/create", "params": {"message": "?"}})

    assert [params["data"] for _, params in notices_of(call)] == [
        NESTED, *["left out: it nests deeper than 100 levels"] * 2
    ]  # fmt: skip
    words = "the params of elicitation/create nest deeper than 100 levels, which clients do not read"
    assert reply == {"error": {"code": -32602, "message": words}}
    assert "result" in control


@pytest.mark.parametrize("method", ["tasks/list", "notifications/cancelled", "x", None])
async def test_worker_cannot_send_forbidden_notifications(method: str | None) -> None:
    call = listener({"progressToken": 1}, ("info",))

    await call.notify({"method": method, "params": {"a": 1}})
    answer = await call.request({"method": method, "params": {"key": "k"}})

    assert notices_of(call) == []
    assert "error" in answer


@pytest.mark.parametrize("method", ["elicitation/create", "roots/list", "sampling/createMessage"])
async def test_worker_may_send_allowed_requests(method: str) -> None:
    call = listener()

    answer = await call.request({"method": method, "params": {"key": "k"}})

    assert within(answer, "result")["asked"] == method
    assert call.waits_for_client({"method": method})


@pytest.mark.parametrize("params", [None, [], {"progress": "1"}, {"progress": None}])
async def test_malformed_progress_dropped(params: object) -> None:
    call = listener({"progressToken": 1})

    await call.notify({"method": "notifications/progress", "params": params})

    assert notices_of(call) == []


async def test_message_sent_at_levels_wanted_by_client_only() -> None:
    call = listener(levels=("warning",))

    for level in ("info", "warning"):
        data = {"msg": f"a {level}", "extra": None}
        await call.notify({"method": "notifications/message", "params": {"level": level, "data": data}})

    sent = {"level": "warning", "data": {"msg": "a warning", "extra": None}}
    assert notices_of(call) == [("notifications/message", sent)]
    assert call.last_progress == "a warning"


async def test_notice_sent_as_increasing_progress() -> None:
    call = listener({"progressToken": 7})

    await call.notify(progress(5, total=10))
    await call.rung(Rung.FIRST_NOTICE)
    await call.rung(Rung.SECOND_NOTICE)
    await call.notify(progress(6, total=10))

    values = [params["progress"] for _method, params in notices_of(call)]
    assert values == sorted(set(values))
    assert notices_of(call)[1][1]["message"] == "The tool is taking longer than expected. Please wait..."
    assert call.notices == [
        "The tool is taking longer than expected. Please wait...",
        "Still processing your request. This may take a few more moments.",
    ]


async def test_notice_sent_as_message_without_token() -> None:
    call = listener(levels=("warning", "error"))

    await call.rung(Rung.LAST_NOTICE)

    ((method, params),) = notices_of(call)
    assert method == "notifications/message"
    assert params["data"]["msg"] == "Processing continues. The tool will timeout in 5 seconds if no progress."


async def test_client_without_notifications_gets_none_notice_kept() -> None:
    call = listener()

    await call.rung(Rung.FIRST_NOTICE)

    assert notices_of(call) == []
    assert len(call.notices) == 1


async def test_elicitation_sent_to_client_and_awaited() -> None:
    call = listener()
    question = {"method": "elicitation/create", "params": {"message": "name?"}}

    assert call.waits_for_client(question)
    assert await call.request(question) == {"result": {"action": "accept", "asked": "elicitation/create"}}


async def test_refusal_of_client_reaches_tool_as_error() -> None:
    answer = await listener().request({"method": "elicitation/create", "params": {"refuse": True}})

    assert answer == {"error": {"code": -1, "message": "no"}}


async def test_state_kept_for_its_user_only() -> None:
    call = listener()
    other = CallListener(
        client=Heard(), params={}, levels=frozenset(), deadlines=Deadlines(), user="bob", state=call.state
    )

    await call.request({"method": "state/put", "params": {"key": "s:k", "value": {"value": 1}, "ttl": None}})
    mine = await call.request({"method": "state/get", "params": {"key": "s:k"}})
    theirs = await other.request({"method": "state/get", "params": {"key": "s:k"}})

    assert mine == {"result": {"value": {"value": 1}, "ttl": None}}
    assert theirs == {"result": {"value": None, "ttl": None}}


async def test_state_above_limit_refused_with_a_sentence() -> None:
    answer = await listener().request(
        {"method": "state/put", "params": {"key": "k", "value": {"value": "x" * 2_000_000}, "ttl": None}}
    )

    assert "write it to a file instead" in within(answer, "error")["message"]


def test_worker_asked_to_report_everything() -> None:
    params = widened({"name": "t", "arguments": {"a": 1}})

    assert params["arguments"] == {"a": 1}
    assert params["_meta"] == {
        "progressToken": "toolcell",
        "io.modelcontextprotocol/logLevel": "debug",
    }


def test_callers_own_token_kept() -> None:
    assert widened({"_meta": {"progressToken": 3}})["_meta"]["progressToken"] == 3


def update(**fields: object) -> str:
    return "MCP_UPDATE:" + json.dumps(fields)


async def test_payload_reaches_interface_and_never_client_as_json() -> None:
    events: list[Mapping[str, Any]] = []
    call = listener({"progressToken": 1})
    call.publish = events.append

    message = update(type="canvas_update", content="<h1>x</h1>", progress_message="Step 1")
    await call.notify(progress(1, total=4, message=message))
    await call.notify(progress(2, total=4, message=update(type="canvas_update", content="<h1>y</h1>")))

    assert [params for _method, params in notices_of(call)] == [
        {"progressToken": 1, "progress": 1, "total": 4, "message": "Step 1"},
        {"progressToken": 1, "progress": 2, "total": 4},
    ]
    assert call.last_progress == "2/4"
    assert [event["type"] for event in events] == ["canvas_content", "tool_progress"] * 2


async def test_payload_above_message_size_read_whole() -> None:
    events: list[Mapping[str, Any]] = []
    call = listener()
    call.publish = events.append

    message = update(type="canvas_update", content="x" * 100_000, progress_message="drawn")
    await call.notify(progress(1, message=message))

    assert len(events[0]["content"]) == 100_000
    assert call.last_progress == "drawn"


async def test_interface_receives_messages_and_notices() -> None:
    events: list[Mapping[str, Any]] = []
    call = listener()
    call.publish = events.append

    data = {"msg": "reading", "extra": None}
    await call.notify({"method": "notifications/message", "params": {"level": "info", "data": data}})
    await call.rung(Rung.FIRST_NOTICE)

    assert events == [
        {"type": "tool_log", "level": "info", "message": "reading"},
        {"type": "tool_notice", "message": "The tool is taking longer than expected. Please wait..."},
    ]


@pytest.mark.parametrize("value", [True, 10**400, -(10**400), float("nan"), float("inf")])
async def test_incalculable_number_dropped(value: float) -> None:
    call = listener({"progressToken": 1})

    await call.notify(progress(value, total=1))
    await call.notify(progress(1, total=value))

    assert notices_of(call) == [("notifications/progress", {"progressToken": 1, "progress": 1})]


@pytest.mark.parametrize(
    ("method", "params", "able", "missing"),
    [
        ("elicitation/create", {}, {"elicitation": {}}, None),
        ("elicitation/create", {}, {"elicitation": {"form": {}}}, None),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {"url": {}}}, None),
        ("elicitation/create", {"mode": "url"}, {"elicitation": {}}, "elicitation.url"),
        ("elicitation/create", {}, {"elicitation": {"url": {}}}, "elicitation.form"),
        ("elicitation/create", {}, {"sampling": {}}, "elicitation"),
        ("sampling/createMessage", {}, {"sampling": {}}, None),
        ("sampling/createMessage", {}, {"sampling": None}, "sampling"),
        ("sampling/createMessage", {"tools": []}, {"sampling": {}}, "sampling.tools"),
        ("sampling/createMessage", {"tools": []}, {"sampling": {"tools": {}}}, None),
        ("roots/list", {}, {"roots": {}}, None),
        ("roots/list", {}, {}, "roots"),
        ("roots/list", {}, None, None),
    ],
)
async def test_request_needs_capability_of_client(
    method: str, params: dict[str, Any], able: dict[str, Any] | None, missing: str | None
) -> None:
    call = listener()
    call.capabilities = able

    answer = await call.request({"method": method, "params": params})

    if missing is None:
        assert within(answer, "result")["asked"] == method
    else:
        expected = f"the client does not support {method}: it did not declare the capability {missing}"
        assert answer["error"] == {"code": -32601, "message": expected}
