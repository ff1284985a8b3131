import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
from cpu_time import cpu_s

from runner.system.logging_setup import CallScope, _TextFormatter, redact, set_up

log = logging.getLogger("runner.test")


@pytest.fixture(autouse=True)
def _logging_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("FASTMCP_LOG_ENABLED", "false")
    names = (
        "",
        "runner",
        "sandbox",
        "asyncio",
        "fastmcp",
        "httpcore2",
        "httpx2",
        "mcp",
        "sse_starlette",
        "uvicorn",
    )
    loggers = [logging.getLogger(name) for name in names]
    before = [(x, x.handlers[:], x.level, x.propagate) for x in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def logged(
    form: Literal["text", "json"], level: Literal["debug", "info", "warning", "error"] = "info"
) -> io.StringIO:
    stream = io.StringIO()
    set_up(level, form, stream=stream)
    return stream


def test_a_json_record_is_one_object_with_its_facts() -> None:
    stream = logged("json")

    log.warning("worker killed", extra={"pid": 7, "signal": "SIGKILL"})

    record = json.loads(stream.getvalue())
    assert record.pop("time").endswith("+00:00")
    assert record == {
        "level": "warning",
        "logger": "runner.test",
        "event": "worker killed",
        "pid": 7,
        "signal": "SIGKILL",
    }


def test_a_text_record_is_one_line_with_its_facts() -> None:
    stream = logged("text")

    log.info("call ended", extra={"tool": "shout", "why": "two words"})

    assert stream.getvalue().endswith(' info    runner.test: call ended tool=shout why="two words"\n')


def test_every_record_of_a_call_carries_its_id_and_of_no_other() -> None:
    stream = logged("json")

    async def call(number: int) -> None:
        with CallScope(f"call-{number}"):
            await asyncio.sleep(0)
            await asyncio.to_thread(log.info, "in a thread", extra={"number": number})

    async def both() -> None:
        await asyncio.gather(call(1), call(2))

    asyncio.run(both())
    log.info("outside")

    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert {(r.get("number"), r.get("call_id")) for r in records} == {
        (1, "call-1"),
        (2, "call-2"),
        (None, None),
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_tokens_never_reach_the_log(form: Literal["text", "json"]) -> None:
    stream = logged(form)

    log.info(
        "GET /api/files/download/art_1?token=hunter2.x-_&a=1",
        extra={"url": "https://u:hunter2@h/?token=hunter2"},
    )
    log.info(
        "header Authorization: Bearer hunter2.hunter2",
        extra={"token": "hunter2", "arguments": {"a": "hunter2"}},
    )
    try:
        int("/f?token=hunter2")
    except ValueError:
        log.exception("failed")

    assert "hunter2" not in stream.getvalue()
    assert "&a=1" in stream.getvalue()
    assert "base 10: '/f?token=[redacted]'" in stream.getvalue()


def test_a_name_with_a_line_break_cannot_forge_a_record() -> None:
    stream = logged("text")

    log.info("stored %s", "a\n00:00:00 error runner: forged", extra={"name_given": "b\nforged"})

    assert len(stream.getvalue().splitlines()) == 1


def test_exception_text_cannot_forge_records_or_terminal_codes() -> None:
    stream = logged("text")
    forged = "00:00:00.000 error   runner.users: forged"

    log.error("failed", exc_info=ValueError(f"a\n{forged}\r{forged}\x1b[2J\u2028{forged}"))

    lines = stream.getvalue().split("\n")
    assert all(line.isprintable() for line in lines)
    assert [line for line in lines if "forged" in line and not line.startswith("  ")] == []
    assert any(line.startswith(f"  {forged}") for line in lines)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_has_a_bounded_length_whatever_its_facts_are(form: Literal["text", "json"]) -> None:
    stream = logged(form)
    long = "x" * 1_000_000

    log.info("tool %s", long, extra={"tool": long, "count": 3})
    log.error("failed", exc_info=ValueError(long))

    line, failed = stream.getvalue().split("\n", 1)
    assert len(line) < 10_000
    assert line.count("(1000000 characters)") == 1
    assert "(1000005 characters)" in line
    assert len(failed) < 100_000


def test_web_server_log_lines_caused_by_clients_are_rate_limited() -> None:
    stream = logged("text")
    web = logging.getLogger("uvicorn.error")

    for _ in range(50):
        web.warning("Unsupported upgrade request.")
        web.warning("No supported WebSocket library detected. Please use \"pip install 'uvicorn[standard]'\"")
        web.warning("Invalid HTTP request received.")

    lines = stream.getvalue().splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "Unsupported upgrade request. times=1",
        "Invalid HTTP request received. times=1",
    ]


@pytest.mark.parametrize("name", ["mcp.client.sse", "mcp.client.streamable_http"])
def test_library_log_lines_caused_by_servers_are_rate_limited(name: str) -> None:
    stream = logged("text")
    remote = logging.getLogger(name)

    for number in range(1000):
        remote.warning(f"Unknown SSE event: {number}")
    remote.warning("something else")

    lines = [line.partition(": ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["Unknown SSE event: 0", "something else"]


def test_requests_cut_at_shutdown_log_one_line_without_traceback() -> None:
    stream = logged("text")
    web = logging.getLogger("uvicorn.error")
    failed, cut = "Exception in ASGI application\n", asyncio.CancelledError()

    web.error(failed, exc_info=cut)
    before = stream.getvalue()
    web.error("Cancel %s running task(s), timeout graceful shutdown exceeded", 2)
    web.error(failed, exc_info=cut)
    web.error(failed, exc_info=cut)
    after = stream.getvalue().removeprefix(before)
    web.error(failed, exc_info=ValueError("ours"))

    assert "CancelledError" in before
    assert after.endswith(
        " warning uvicorn.error: the server ends, and requests that were not done are cut off count=2\n"
    )
    assert len(after.splitlines()) == 1
    assert "  ValueError: ours" in stream.getvalue()


def test_a_fact_cannot_pose_as_level_or_event() -> None:
    stream = logged("json")

    log.info("true", extra={"level": "error", "event": "forged"})

    record = json.loads(stream.getvalue())
    assert (record["level"], record["event"]) == ("info", "true")


def test_level_debug_shows_our_records_but_not_library_requests() -> None:
    stream = logged("text", "debug")

    log.debug("ours")
    logging.getLogger("mcp.server").debug("request with arguments")
    logging.getLogger("mcp.server").info("session started")

    assert "ours" in stream.getvalue()
    assert "session started" in stream.getvalue()
    assert "arguments" not in stream.getvalue()


@pytest.mark.parametrize(
    ("level", "name", "is_shown"),
    [
        ("info", "mcp.client.streamable_http", False),
        ("info", "mcp.client.sse", False),
        ("debug", "mcp.client.sse", True),
        ("info", "runner.test", True),
    ],
)
def test_remote_server_error_logs_one_line_and_ours_a_traceback(
    level: Literal["debug", "info"], name: str, *, is_shown: bool
) -> None:
    stream = logged("text", level)

    logging.getLogger(name).error("Error parsing SSE message", exc_info=ValueError("no message\nat all"))

    output = stream.getvalue()
    assert ("ValueError: no message\n  at all" in output) == is_shown
    assert is_shown or output.endswith(
        f'error   {name}: Error parsing SSE message problem="ValueError: no message"\n'
    )


def test_setting_up_twice_logs_once() -> None:
    logged("text")
    stream = logged("text")

    log.info("once")

    assert stream.getvalue().count("once") == 1


def test_text_without_secret_is_unchanged() -> None:
    text = "https://host:8000/path?name=a@b.example count=3 tokens=5"

    assert redact(text) == text


@pytest.mark.parametrize("hostile", ["a\nb", "a\x1b[31mb", "a\x9b31mb", "a\u2028b", "a\u202eb", 'a "b'])
def test_record_value_cannot_emit_terminal_codes_or_new_lines(hostile: str) -> None:
    record = logging.makeLogRecord({"name": "x", "msg": "said", "path": hostile})

    line = _TextFormatter().format(record)

    assert line.isprintable()
    assert line.endswith(("b", 'b"'))


@pytest.mark.parametrize(
    "text", ["a." * 500_000 + "://x", "://" * 300_000, "bearer" + " " * 900_000, "?key=" * 200_000]
)
def test_redacting_a_hostile_text_takes_linear_time(text: str) -> None:
    # 0.1 s on a quiet machine; the first took an hour.
    assert cpu_s(lambda: redact(text)) < 1


def test_a_password_before_a_host_is_redacted_for_any_scheme() -> None:
    assert redact("x+y.z-1://u:hunter2@h/a@b") == "x+y.z-1://[redacted]@h/a@b"
    assert redact("http://h/a@b") == "http://h/a@b"


@pytest.mark.parametrize("form", ["text", "json"])
def test_list_value_has_a_bounded_length(form: Literal["text", "json"]) -> None:
    stream = logged(form)

    log.info("named", extra={"paths": ["x" * 100_000] * 20})

    assert len(stream.getvalue()) < 2000


def test_a_call_logs_one_event_so_often_and_then_counts() -> None:
    stream = logged("json")

    with CallScope("c1"):
        for number in range(500):
            log.warning("denied", extra={"number": number})
        log.warning("another event")
    for number in range(30):
        log.warning("outside", extra={"number": number})

    records = [json.loads(line) for line in stream.getvalue().splitlines()]
    events = [record["event"] for record in records]
    assert (events.count("denied"), events.count("another event"), events.count("outside")) == (20, 1, 30)
    left_out = next(record for record in records if record["event"] == "log records left out")
    assert (left_out["of"], left_out["count"], left_out["call_id"]) == ("denied", 480, "c1")
