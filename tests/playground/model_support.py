"""An endpoint of models over HTTP that says what a script has, in the API of OpenAI and that of Anthropic.

What a model would say stands in the script, one reply for each request. How an endpoint misbehaves is chosen
by the name of the model. `test_model_endpoint.py` has the official clients of both APIs speak to it.
"""

import http.server
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

KEY = "sk-of-the-operator-0123456789abcdef"
MODEL = "good"
FAULTS = (
    "401",
    "404",
    "429",
    "500",
    "redirect",
    "garbage",
    "json",
    "endless",
    "silent",
    "broken",
    "echo",
    "late error",
)


@dataclass(frozen=True)
class Reply:
    """What the model says once.

    Attributes:
        text: Its words.
        calls: Names of tools as the endpoint was told them, and arguments.
        waits: Set before the rest is said; what was said by then is told before.
    """

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    waits: threading.Event | None = None


@dataclass
class Endpoint:
    """A running one.

    Attributes:
        base: Its address.
        script: What is said next.
        came: The requests: path, headers and body.
        left: How many clients left before the end of an answer.
    """

    base: str = ""
    script: list[Reply] = field(default_factory=list)
    came: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    left: int = 0
    ends: threading.Event = field(default_factory=threading.Event)

    def settings(self, api: str = "openai", models: str = MODEL, **more: str) -> dict[str, str]:
        """Return the variables with which a server asks it."""
        return {
            "RUNNER_PLAYGROUND_MODEL_URL": f"{self.base}/v1",
            "RUNNER_PLAYGROUND_MODEL_API": api,
            "RUNNER_PLAYGROUND_MODEL": models,
            "RUNNER_PLAYGROUND_MODEL_KEY": KEY,
            **more,
        }


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Run one."""
    running = Endpoint()

    class Handler(_Handler):
        of = running

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    running.base = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield running
    finally:
        running.ends.set()
        server.shutdown()
        server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    of: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.of.came.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        given = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        model = body["model"]
        if given != KEY or model == "401":
            self._error(401, f"Incorrect API key provided: {given}")
        elif model in FAULTS:
            self._misbehave(model)
        else:
            self._answer(body)

    def do_GET(self) -> None:
        self.of.came.append((self.path, {}, None))
        self.send_error(404)

    def _answer(self, body: Mapping[str, Any]) -> None:
        reply = self.of.script.pop(0)
        events = (_messages if self.path.endswith("/messages") else _completions)(reply, body)
        if not body.get("stream"):
            raise AssertionError("only streams are asked for")
        try:
            self._begin()
            for event in events:
                if event is None:
                    assert reply.waits is not None
                    self._wait(reply.waits)
                else:
                    self._send(event)
        except OSError:
            self.of.left += 1

    def _wait(self, until: threading.Event) -> None:
        # A comment now and then shows whether anybody is still there.
        while not until.wait(0.05) and not self.of.ends.is_set():
            self._send(b": still there\n\n")

    def _misbehave(self, how: str) -> None:
        if how in ("404", "429", "500"):
            self._error(int(how), f"nothing works; you sent {self.headers['authorization']}")
            return
        if how == "redirect":
            self.send_response(307)
            self.send_header("location", f"{self.of.base}/elsewhere?key={KEY}")
            self.end_headers()
            return
        if how == "json":
            self._whole(200, {"choices": [{"message": {"content": "no stream"}}]})
            return
        try:
            self._begin()
            self._stream(how)
        except OSError:
            self.of.left += 1

    def _stream(self, how: str) -> None:
        if how == "garbage":
            self._send(b"data: <html>no JSON</html>\n\n")
        elif how == "endless":
            while not self.of.ends.is_set():
                self._send(_data({"choices": [{"delta": {"content": "more " * 2000}}]}) * 8)
        elif how == "silent":
            self.of.ends.wait(60)
        elif how == "broken":
            self._send(_data({"choices": [{"delta": {"content": "half of"}}]}))
        elif how == "late error":
            self._send(_data({"choices": [{"delta": {"content": "well, "}}]}))
            self._send(_data({"error": {"message": f"out of memory, {KEY}"}}))
        else:
            # It says the key itself, in pieces.
            for piece in ("your key is ", KEY[:9], KEY[9:20], KEY[20:], ", is it not"):
                self._send(_data({"choices": [{"delta": {"content": piece}}]}))
            self._send(_data({"choices": [{"delta": {}, "finish_reason": "stop"}]}))

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("x-request-id", "req-of-the-endpoint")
        self.end_headers()

    def _send(self, event: bytes) -> None:
        self.wfile.write(event)
        self.wfile.flush()

    def _error(self, status: int, said: str) -> None:
        self._whole(status, {"type": "error", "error": {"type": "some_error", "message": said}})

    def _whole(self, status: int, value: Any) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None: ...


def _data(value: Any, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(value)}\n\n".encode()


def _completions(reply: Reply, body: Mapping[str, Any]) -> Iterator[bytes | None]:
    about = {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": body["model"],
    }

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**about, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for word in reply.text.split(" ") if reply.text else ():
        yield chunk({"content": word + " "})
    if reply.waits is not None:
        yield None
    for index, (name, arguments) in enumerate(reply.calls):
        function = {"name": name, "arguments": ""}
        yield chunk(
            {
                "tool_calls": [
                    {"index": index, "id": f"call-{index}", "type": "function", "function": function}
                ]
            }
        )
        for piece in _halves(json.dumps(arguments)):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, "tool_calls" if reply.calls else "stop")
    if body.get("stream_options", {}).get("include_usage"):
        usage = {"prompt_tokens": _tokens(body["messages"]), "completion_tokens": 7, "total_tokens": 0}
        yield _data({**about, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _messages(reply: Reply, body: Mapping[str, Any]) -> Iterator[bytes | None]:
    def event(kind: str, **more: Any) -> bytes:
        return _data({"type": kind, **more}, kind)

    usage = {"input_tokens": _tokens(body["messages"]), "output_tokens": 1, "cache_read_input_tokens": 3}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": body["model"], "content": []}
    ends = {"stop_reason": None, "stop_sequence": None, "usage": usage}
    yield event("message_start", message={**message, **ends})
    yield event("ping")
    place = 0
    if reply.text:
        yield event("content_block_start", index=place, content_block={"type": "text", "text": ""})
        for word in reply.text.split(" "):
            yield event("content_block_delta", index=place, delta={"type": "text_delta", "text": word + " "})
        yield event("content_block_stop", index=place)
        place += 1
    if reply.waits is not None:
        yield None
    for name, arguments in reply.calls:
        block = {"type": "tool_use", "id": f"toolu_{place}", "name": name, "input": {}}
        yield event("content_block_start", index=place, content_block=block)
        for piece in _halves(json.dumps(arguments)):
            delta = {"type": "input_json_delta", "partial_json": piece}
            yield event("content_block_delta", index=place, delta=delta)
        yield event("content_block_stop", index=place)
        place += 1
    stop = {"stop_reason": "tool_use" if reply.calls else "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=stop, usage={"output_tokens": 7})
    yield event("message_stop")


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def _tokens(messages: object) -> int:
    return len(json.dumps(messages)) // 4
