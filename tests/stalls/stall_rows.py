"""The entry points of the servers, and for each of them inputs that are expensive to careless code.

A row is a name and an act: a request, or several, of at most 1 MiB. What an act returns is a text by which a
reader sees that the input got where it was meant to.
"""

import http.client
import itertools
import json
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from stall_values import MIB, TEXTS, VALUES

__all__ = [
    "HTTP_ROWS",
    "HTTP_UPSTREAM_ROWS",
    "PROXY_ROWS",
    "STDIO_ROWS",
    "HttpClient",
    "McpClient",
    "Row",
    "StdioClient",
]

# A burst of messages is text to nobody.
_BURSTS = ("notifications", "answers", "pings")
_TEXTS = tuple(name for name in TEXTS if name not in _BURSTS)
_PROTOCOL = "2025-06-18"
_JSON = {"Content-Type": "application/json"}
_FORM = {"Content-Type": "multipart/form-data; boundary=b"}
# A line of a head may have 64 KiB, and so may all of it.
_HEAD = 60_000


class McpClient(Protocol):
    """A client of one server.

    Attributes:
        sent: Bytes that it has sent.
    """

    sent: int

    def ask(self, method: str, params: Any) -> str:
        """Send a request; return its answer as text."""
        ...


@dataclass
class HttpClient:
    """A client over HTTP, in one session."""

    port: int
    pid: int = 0
    config: Path = Path()
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=1000))
    sent: int = 0
    _session: dict[str, str] = field(default_factory=dict)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self) -> None:
        """Begin the session."""
        about = {
            "protocolVersion": _PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "s", "version": "1"},
        }
        self.ask("initialize", about)
        self.post(json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode())

    def ask(self, method: str, params: Any) -> str:
        """Send a request of MCP."""
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        return self.post(json.dumps(message, ensure_ascii=False).encode())

    def post(self, body: bytes) -> str:
        """Send any body to the endpoint of MCP."""
        accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        return self.send("POST", "/mcp", body, {**accepted, **self._session})

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> str:
        """Send any request; return the status and the beginning of the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=200)
        # The library's own bound is lower than some answers have headers.
        http.client._MAXHEADERS = 1 << 20  # type: ignore[attr-defined]
        http.client._MAXLINE = 4 * MIB  # type: ignore[attr-defined]
        self.sent += (
            len(body) + len(path) + sum(len(key) + len(item) for key, item in (headers or {}).items())
        )
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            session = answer.getheader("mcp-session-id")
            if session and not self._session:
                self._session = {"Mcp-Session-Id": session}
            return f"{answer.status} {answer.read()[:4000].decode(errors='replace')}"
        except (OSError, http.client.HTTPException) as error:
            return f"closed: {type(error).__name__}"
        finally:
            connection.close()


@dataclass
class StdioClient:
    """A client of a process on its standard input and output."""

    process: "subprocess.Popen[bytes]"
    sent: int = 0
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _answers: dict[object, str] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _writing: threading.Lock = field(default_factory=threading.Lock)

    def begin(self) -> None:
        """Begin the session."""
        threading.Thread(target=self._read, daemon=True).start()
        about = {
            "protocolVersion": _PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "s", "version": "1"},
        }
        self.ask("initialize", about)
        self.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')

    def ask(self, method: str, params: Any) -> str:
        """Send a request of MCP."""
        number = next(self._ids)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.write(json.dumps(message, ensure_ascii=False).encode())
        with self._changed:
            assert self._changed.wait_for(lambda: number in self._answers, timeout=200), method
            return self._answers.pop(number)

    def write(self, line: bytes) -> str:
        """Write any line."""
        assert self.process.stdin is not None
        with self._writing:
            self.sent += len(line) + 1
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()
        return "written"

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "method" not in message:
                with self._changed:
                    self._answers[message.get("id")] = line[:4000].decode(errors="replace")
                    self._changed.notify_all()


@dataclass(frozen=True)
class Row:
    """One input of one entry point."""

    entry: str
    input: str
    act: Callable[[Any], str]


def _call(tool: str, **arguments: Any) -> Callable[[McpClient], str]:
    return lambda client: client.ask("tools/call", {"name": tool, "arguments": arguments})


def _ask(method: str, **params: Any) -> Callable[[McpClient], str]:
    return lambda client: client.ask(method, params)


def _send(
    method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Callable[[HttpClient], str]:
    return lambda client: client.send(method, path, body, headers)


def _post(body: bytes) -> Callable[[HttpClient], str]:
    return lambda client: client.post(body)


def _write(line: bytes) -> Callable[[StdioClient], str]:
    return lambda client: client.write(line)


def _flooded(lines: str) -> Callable[[StdioClient], str]:
    """Return an act that sends lines and then a request, and waits for the answer to that."""

    def act(client: StdioClient) -> str:
        client.write(lines.encode().rstrip())
        return client.ask("ping", {})

    return act


def _calls() -> Iterator[Row]:
    for name in ("dots", "marks", "percents", "wide", "many_letters", "blanks"):
        yield Row("argument `filename`", name, _call("take", filename=TEXTS[name]))
    yield Row(
        "argument `filenames`", "100,000 names", _call("take", filenames=[f"{n}" for n in range(100_000)])
    )
    for name in ("empty_lists", "numbers", "keys", "deep", "strings"):
        yield Row("arguments of a tool", name, _call("take", value=VALUES[name]()))
    yield Row("name of a tool", "letters", _call("a" * MIB))
    yield Row("names of arguments", "keys", lambda client: _call("take", **VALUES["keys"]())(client))
    for name in _TEXTS:
        yield Row("text of a result", name, _call("text", name=name))
    for name in VALUES:
        yield Row("value of a result", name, _call("value", name=name))
    for name in ("text", "image"):
        yield Row("content blocks of a result", name, _call("blocks", kind=name))
    for name in ("slashes", "blank_slashes", "quoted_slashes", "listens", "traceback", "schemes", "connects"):
        yield Row("error of a tool", name, _call("fail", name=name, kind="OSError"))
    for name in ("dots", "base64", "data_urls", "markers", "brackets"):
        yield Row("progress and log of a tool", name, _call("report", name=name))
    for name in ("dots", "marks", "wide"):
        yield Row("file name in a result", name, _call("artifact", name=name))
    yield Row("denial frames of a worker", "200 paths", _call("deny", end="://x"))
    yield Row("output schema of a tool", "pattern", _call("patterned"))


def _requests() -> Iterator[Row]:
    yield Row("resources/read", "long id", _ask("resources/read", uri="artifact://" + "a" * MIB))
    yield Row("resources/read", "letters", _ask("resources/read", uri="http://" + TEXTS["many_letters"]))
    yield Row("resources/subscribe", "dots", _ask("resources/subscribe", uri="x://" + TEXTS["dots"]))
    yield Row("tools/list", "cursor", _ask("tools/list", cursor=TEXTS["base64"]))
    yield Row("prompts/get", "arguments", _ask("prompts/get", name="p", arguments={"a": TEXTS["marks"]}))
    yield Row(
        "completion/complete",
        "argument",
        _ask(
            "completion/complete",
            ref={"type": "ref/prompt", "name": TEXTS["dots"]},
            argument={"name": "a", "value": TEXTS["dots"][: MIB // 2]},
        ),
    )
    yield Row("any method", "params", _ask("x/y", a=VALUES["keys"]()))
    for name in ("numbers", "keys"):
        wrong = VALUES[name]()
        yield Row("malformed params", f"{name} as a name", _ask("tools/call", name=wrong, arguments={}))
        yield Row("malformed params", f"{name} as an argument", _call("text", name=wrong))
        yield Row("malformed params", f"{name} as a URI", _ask("resources/read", uri=wrong))
        yield Row("malformed params", f"{name} as a level", _ask("logging/setLevel", level=wrong))
        yield Row("malformed params", f"{name} as a token", _ask("ping", _meta={"progressToken": wrong}))


def _http() -> Iterator[Row]:
    def headers(name: str, value: str, path: str = "/api/files") -> Callable[[HttpClient], str]:
        return _send("GET", path, headers={name: value})

    for name, unit in (
        ("Cookie", "a=b; "),
        ("Cookie", ";"),
        ("Cookie", '"\\'),
        ("Authorization", "Bearer "),
        ("Authorization", "."),
        ("Accept", "*/*;q=1,"),
        ("Forwarded", 'for="a;'),
        ("X-Forwarded-For", "1,"),
        ("Range", "bytes=0-1,"),
        ("Origin", "a."),
        ("Last-Event-ID", "a/"),
        ("If-None-Match", '"a",'),
        ("Content-Type", ';a="'),
        ("traceparent", "00-"),
    ):
        yield Row(f"header {name}", unit, headers(name, unit * (_HEAD // len(unit))))
    yield Row(
        "headers",
        "10,000",
        _send("GET", "/mcp", headers={f"a{n}": "" for n in range(8000)}),
    )
    yield Row("query", "parameters", _send("GET", "/api/files?" + "a=1&" * (_HEAD // 4)))
    yield Row("path", "slashes", _send("GET", "/" * _HEAD))
    for name in ("dots", "marks", "wide"):
        path = "/api/files?filename=" + quote(TEXTS[name][:100_000])[: 10 * _HEAD // 10]
        yield Row("PUT ?filename=", name, _send("PUT", path, b"x"))
        body = json.dumps(
            {"filename": TEXTS[name][: MIB // 4], "content_base64": "aGVsbG8="}, ensure_ascii=False
        ).encode()
        yield Row(
            "upload as JSON",
            name,
            _send("POST", "/api/files", body, _JSON),
        )
    yield Row("GET /api/files/{id}", "letters", _send("GET", "/api/files/" + "a" * _HEAD))
    for label, body in (
        (
            "many parts",
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n' * (MIB // 56) + b"--b--\r\n",
        ),
        ("many headers", b"--b\r\n" + b"a: b\r\n" * (MIB // 6) + b"\r\nx\r\n--b--\r\n"),
        (
            "long disposition",
            b"--b\r\nContent-Disposition: form-data" + b';a="' * (MIB // 4) + b"\r\n\r\nx\r\n--b--\r\n",
        ),
        ("near boundaries", b"--b\r\n\r\n" + b"\r\n--" * (MIB // 4)),
        (
            "file name",
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="a'
            + b"." * MIB
            + b'b"\r\n\r\nx\r\n--b--\r\n',
        ),
    ):
        yield Row(
            "upload as a form",
            label,
            _send("POST", "/api/files", body, _FORM),
        )
    for label, body in (
        ("10,000 requests", b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"ping"}'] * 20_000) + b"]"),
        ("brackets", b"[" * MIB),
        (
            "half surrogates",
            b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":[' + b'"\\ud800",' * 100_000 + b"1]}}",
        ),
        ("digits", b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":' + b"9" * MIB + b"}}"),
        ("strings", b'{"a":["' + b'","' * (MIB // 3) + b'"]}'),
    ):
        yield Row("body of a message", label, _post(body))
    for path in ("/long", "/many"):
        yield Row("headers of an author's route", path, _send("GET", path))


def _lines() -> Iterator[Row]:
    # No bursts of messages: the probe waits in the same pipe, and would measure the queue before it.
    for label, line in (
        ("blanks", b" " * MIB),
        ("brackets", b"[" * MIB),
        ("strings", b'{"a":["' + b'","' * (MIB // 3) + b'"]}'),
        ("empty lines", b"\n" * MIB),
        ("bytes", bytes(range(128, 256)) * (MIB // 128)),
        ("short lines", b"1\n" * 50),
    ):
        yield Row("line on standard input", label, _write(line))
    for name in _BURSTS:
        yield Row("many messages on standard input", name, _flooded(TEXTS[name]))


def _proxied() -> Iterator[Row]:
    tool = "hostile_upstream_"
    yield Row("tools/list of a server", "5,000 tools", _ask("tools/list"))
    yield Row("resources/list of a server", "8,000 resources", _ask("resources/list"))
    yield Row("resources/read of a server", "base64", _ask("resources/read", uri="x://1"))
    yield Row("template of a server", "dots", _ask("resources/read", uri="x://" + TEXTS["dots"]))
    yield Row("prompts/get of a server", "base64", _ask("prompts/get", name="p", arguments={"a": "b"}))
    ref = {"type": "ref/prompt", "name": "p"}
    yield Row(
        "completion of a server",
        "values",
        _ask("completion/complete", ref=ref, argument={"name": "a", "value": ""}),
    )
    for name in _TEXTS:
        yield Row("text of a server", name, _call("text", name=name))
    for name in VALUES:
        yield Row("value of a server", name, _call("value", name=name))
    for name in ("slashes", "blank_slashes", "quoted_slashes", "listens", "capitals", "traceback"):
        yield Row("error of a server", name, _call("fail", name=name))
        yield Row("standard error of a server", name, _call("stderr", name=name))
    for name in ("dots", "base64"):
        yield Row("notification of a server", name, _call("notify", name=name))
    for name in ("empty_lists", "keys", "strings"):
        yield Row("malformed result of a server", name, _call("wrong", name=name))
        yield Row("unknown member of a result of a server", name, _call("beside", name=name))
    for name in _BURSTS:
        yield Row("many messages of a server", name, _call("burst", name=name))
    yield Row("name of a tool behind the proxy", "letters", _call(tool + "a" * MIB))


def _offered() -> Iterator[Row]:
    for name in ("dots", "base64", "base64_short_runs", "brackets"):
        yield Row("resource of a tool file", name, _ask("resources/read", uri=f"data://{name}"))
        yield Row("prompt of a tool file", name, _ask("prompts/get", name="prompt", arguments={"name": name}))
    yield Row("prompt of a tool file", "many", _ask("prompts/get", name="prompt", arguments={"name": "many"}))
    for name in ("slashes", "dots", "percents"):
        yield Row("template of a tool file", name, _ask("resources/read", uri=f"wide://{TEXTS[name]}"))
    ref = {"type": "ref/resource", "uri": "wide://" + "{a*}" * (MIB // 8)}
    argument = {"name": "first", "value": "a"}
    yield Row(
        "template of a tool file", "completion", _ask("completion/complete", ref=ref, argument=argument)
    )


def _playground() -> Iterator[Row]:
    for path in ("/play/dashboards", "/api/session"):
        for name in ("empty_lists", "keys", "deep"):
            yield Row("Playground", f"{path}, {name}", _page(path, {"messages": VALUES[name]()}))


def _page(path: str, value: Any) -> Callable[[HttpClient], str]:
    """Return an act that sends what a page of the server itself would."""
    body = _json(value)
    return lambda client: client.send(
        "POST", path, body, {**_JSON, "Origin": f"http://127.0.0.1:{client.port}"}
    )


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# The first starts what the others use.
HTTP_UPSTREAM_ROWS = tuple(
    row for row in _proxied() if not row.entry.startswith(("standard", "notification", "many messages"))
)
HTTP_ROWS = (*_calls(), *_requests(), *_offered(), *_playground(), *_http())
STDIO_ROWS = (*_requests(), *_lines())
PROXY_ROWS = tuple(_proxied())
