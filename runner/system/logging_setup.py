"""Logging: standard records to standard error, as text or JSON, with the call's id and no secrets.

The event is a constant lower-case phrase, facts go in `extra`. Arguments, file contents and tokens
are never logged; tokens in a URL or a header are redacted here as the last line of defence.

Log volume that strangers and callers can cause is bounded: the length of a record and of each fact, and the
number of records of one event for each call and from the web server.

Source: Python's logging HOWTO, "Optimization".
"""

import asyncio
import json
import logging
import os
import re
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, TextIO

from runner.formats.bounded_text import cut_counted
from runner.formats.terminal_text import has_hidden, one_line, visible_json
from runner.system.now_and_then import NowAndThen

__all__ = ["CallScope", "redact", "set_up"]

_log = logging.getLogger(__name__)
_call: ContextVar["CallScope | None"] = ContextVar("call", default=None)

_SECRETS = (
    re.compile(r"(?i)(\b(?:access_|refresh_)?token=)[^&\s\"'<>\\]+"),
    re.compile(r"([?&]key=)[^&\s\"'<>\\]+"),
    re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]+"),
    # Without the scheme: matching it would take quadratic time in a text such as `a.a.a.a`.
    re.compile(r"(://)[^/@\s\"'<>\\]++(?=@)"),
)
# A quick check: most lines match none of this, and need no redaction.
_SUSPECT = re.compile(r"(?i)token=|[?&]key=|bearer\s|://")
_QUOTED = re.compile(r"[\s=\"]")
_NEVER = frozenset({"arguments", "authorization", "content", "password", "secret", "token"})
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "call_id", "taskName"}
# Loggers that print requests, with their arguments, at level DEBUG.
_CHATTY = ("asyncio", "fastmcp", "httpcore2", "httpx2", "mcp", "sse_starlette", "uvicorn", "watchfiles")
_OWN = ("runner", "sandbox")
# Loggers of invalid messages from remote servers, each with a traceback.
_OF_REMOTES = ("mcp.client.sse", "mcp.client.streamable_http")
# Logger for connections, requests and shutdown.
_WEB_SERVER = "uvicorn.error"
# A hint about WebSockets, which our servers do not offer.
_ADVICE = "No supported WebSocket library detected"
_CUT_OFF = "Cancel %s running task(s), timeout graceful shutdown exceeded"
# A name or a path from a caller may have any length.
_MOST_CHARS = 1000
# Most records of one event for each call; a tool can cause one for each file and each denial.
_MOST_OF_ONE_EVENT = 20
_MOST_EVENTS = 100
_MOST_TRACE_CHARS = 64 * 1024


def set_up(
    level: Literal["debug", "info", "warning", "error"],
    form: Literal["text", "json"],
    *,
    stream: TextIO | None = None,
) -> None:
    """Send every record of the process to standard error, in one form.

    Args:
        level: Lowest level shown.
        form: One line of text or one JSON object for each record.
        stream: Stream instead of standard error. Never standard output, which carries MCP over stdio.
    """
    # No form includes these fields, and each is computed for each record.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    handler.addFilter(_add_call_id)
    handler.addFilter(_Remotes().tame)
    handler.addFilter(_WebServer().tame)
    wanted = logging.getLevelNamesMapping()[level.upper()]
    # FastMCP adds handlers of its own to its logger on import, before or after this.
    os.environ.setdefault("FASTMCP_LOG_ENABLED", "false")
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(wanted, logging.INFO))
    for name in (*_OWN, *_CHATTY):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        # Libraries' messages on their own start and end are redundant: the runner logs these.
        others = logging.INFO if wanted < logging.INFO else max(wanted, logging.WARNING)
        logger.setLevel(wanted if name in _OWN else others)


@dataclass(eq=False)
class CallScope:
    """Add the id of a call to every record logged inside, in this task and tasks started by it.

    For each event, the first records are written, and the others are only counted.

    Attributes:
        id: The id of the call.
    """

    id: str
    _counts: dict[str, int] = field(init=False, default_factory=dict)

    def __enter__(self) -> None:
        self._token = _call.set(self)

    def __exit__(self, *_: object) -> None:
        counts, self._counts = self._counts, {}
        for event, count in counts.items():
            if count > _MOST_OF_ONE_EVENT:
                _log.warning("log records left out", extra={"of": event, "count": count - _MOST_OF_ONE_EVENT})
        _call.reset(self._token)

    def admits(self, event: str) -> bool:
        """Count one record of an event; return whether it is written."""
        if event not in self._counts and len(self._counts) >= _MOST_EVENTS:
            event = "others"
        self._counts[event] = self._counts.get(event, 0) + 1
        return self._counts[event] <= _MOST_OF_ONE_EVENT


def redact(text: str) -> str:
    """Return `text` without tokens: `token=` of URLs, bearer tokens, passwords before an `@`."""
    if _SUSPECT.search(text):
        for pattern in _SECRETS:
            text = pattern.sub(_redacted, text)
    return text


def _redacted(found: "re.Match[str]") -> str:
    return f"{found[1]}[redacted]"


def _add_call_id(record: logging.LogRecord) -> bool:
    call = _call.get()
    record.call_id = None if call is None else call.id
    # At level DEBUG, every record of that level is written.
    return call is None or record.levelno < logging.INFO or call.admits(str(record.msg))


class _Remotes:
    """Rate limit of the log of malformed messages from remote servers, without tracebacks."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, int], NowAndThen] = {}

    def tame(self, record: logging.LogRecord) -> bool:
        """Change a record, or return False to drop it; at level DEBUG none is dropped."""
        if record.name not in _OF_REMOTES or logging.getLogger(_OWN[0]).isEnabledFor(logging.DEBUG):
            return True
        if record.exc_info:
            kind, problem, _trace = record.exc_info
            record.problem = f"{getattr(kind, '__name__', kind)}: {str(problem).partition(chr(10))[0][:200]}"
            record.exc_info = record.exc_text = None
        # Keyed by the source line, since the message contains text of the server.
        due = self._due.setdefault((record.name, record.lineno), NowAndThen())
        times = due.due(now=time.monotonic())
        if times > 1:
            record.times = times
        return times > 0


class _WebServer:
    """Rate limit of uvicorn's client-error logs; shutdown is logged once."""

    def __init__(self) -> None:
        self._due: dict[str, NowAndThen] = {}
        self._is_cutting_off = False

    def tame(self, record: logging.LogRecord) -> bool:
        """Change a record, or return False to drop it."""
        if record.name != _WEB_SERVER:
            return True
        if record.msg == _CUT_OFF:
            self._is_cutting_off = True
            record.count = record.args[0] if isinstance(record.args, tuple) and record.args else None
            record.msg, record.args = "the server ends, and requests that were not done are cut off", ()
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            return True
        if record.exc_info:
            # It repeats the message for each request that it has cut off, with a traceback.
            return not (self._is_cutting_off and isinstance(record.exc_info[1], asyncio.CancelledError))
        if str(record.msg).startswith(_ADVICE):
            return False
        if record.levelno == logging.WARNING:
            # Keyed by the message without arguments, of which there are only a few.
            times = self._due.setdefault(str(record.msg), NowAndThen()).due(now=time.monotonic())
            record.times = times
            return times > 0
        return True


def _bounded(value: object) -> object:
    """Return a fact with its text form bounded in length."""
    if isinstance(value, str):
        return cut_counted(value, _MOST_CHARS)
    if value is None or isinstance(value, int | float):
        return value
    written = str(value)
    return value if len(written) <= _MOST_CHARS else cut_counted(written, _MOST_CHARS)


def _facts(record: logging.LogRecord) -> dict[str, object]:
    call_id = getattr(record, "call_id", None)
    facts: dict[str, object] = {"call_id": call_id} if call_id else {}
    for name, value in vars(record).items():
        if name not in _STANDARD:
            facts[name] = "[redacted]" if name.lower() in _NEVER else _bounded(value)
    return facts


class _JsonFormatter(logging.Formatter):
    """Formatter of a record as one JSON object, with facts beside the event."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": cut_counted(record.getMessage(), _MOST_CHARS),
        }
        # A fact must not replace one of the four fields above.
        fields = {**_facts(record), **fields}
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)[-_MOST_TRACE_CHARS:]
        return redact(visible_json(json.dumps(fields, default=str)))


class _TextFormatter(logging.Formatter):
    """Formatter of a record as `time level logger: event name=value …`, then indented traceback lines."""

    def format(self, record: logging.LogRecord) -> str:
        now = time.gmtime(record.created)
        clock = f"{now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02}.{int(record.msecs):03}"
        facts = "".join([f" {name}={_quoted(value)}" for name, value in _facts(record).items()])
        event = _one_line(cut_counted(record.getMessage(), _MOST_CHARS))
        line = f"{clock} {record.levelname.lower():<7} {record.name}: {event}{facts}"
        if record.exc_info:
            # The text of an exception may come from a caller: none of its lines may look like a record.
            trace = self.formatException(record.exc_info)[-_MOST_TRACE_CHARS:].split("\n")
            line = "\n".join([line, *(f"  {_one_line(each)}" for each in trace)])
        return redact(line)


def _one_line(text: str) -> str:
    # A name from a caller must not be able to forge a record.
    return one_line(text)


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and not has_hidden(text) and not _QUOTED.search(text)
    return text if plain else _one_line(json.dumps(text, ensure_ascii=False))
