"""Notifications of a running call for its client: progress, messages and notices of the ladder.

A worker's notification is hostile until checked: only known methods pass, and progress is sent under
the caller's own token, regardless of the worker's. The user's interface receives notifications as events;
only it receives payloads in progress messages.
"""

import math
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

from runner.author import PUT
from runner.contract.error_messages import notice
from runner.formats.json_walks import MOST_LEVELS, nests_deeper
from runner.steps.updates import MESSAGE_MAX_CHARS, Show, light, read_update
from runner.toolset.session_state import SessionState, StateRefused
from runner.worker.wire import PUBLISHED
from sandbox.deadlines import Deadlines, Rung

__all__ = [
    "CLIENT_REQUESTS",
    "LIST_CHANGES",
    "LOG_LEVELS",
    "MESSAGE",
    "PROGRESS",
    "CallListener",
    "Client",
    "ClientRefusal",
    "Nobody",
    "ToolRequests",
    "log_message",
    "too_deep",
    "widened",
]

PROGRESS = "notifications/progress"
MESSAGE = "notifications/message"
LIST_CHANGES = (
    "notifications/prompts/list_changed",
    "notifications/resources/list_changed",
    "notifications/tools/list_changed",
)
"""Notifications that a list has changed."""
_UPDATED = "notifications/resources/updated"
CLIENT_REQUESTS = ("elicitation/create", "roots/list", "sampling/createMessage")
"""Requests that a tool may send to the client of its call."""
LOG_LEVELS = frozenset({"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"})
"""All levels of log messages in MCP."""
_CAPABILITIES = dict(zip(CLIENT_REQUESTS, ("elicitation", "roots", "sampling"), strict=True))
_STATE_REQUESTS = ("state/delete", "state/get", "state/put")
_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
_MAX_NUMBER = 1e300
Keep = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]

ToolRequests = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a `tools/list` or `tools/call` from code. Raises `ClientRefusal`."""
_TOOL_REQUESTS = ("tools/call", "tools/list")

_OWN_TOKEN = "toolcell"  # noqa: S105 - a progress token, no secret


class ClientRefusal(Exception):
    """A client answered a request with an error.

    Attributes:
        code: The JSON-RPC error code.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Client(Protocol):
    """Client of a call, which receives its notifications."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification to the client."""
        ...

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request and return its result.

        Raises:
            ClientRefusal: The client refused, or cannot be asked.
        """
        ...


class Nobody:
    """A client that ignores notifications and answers no questions. A `Client`."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Drop the notification."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer as a client that has no such method.

        Raises:
            ClientRefusal: Always.
        """
        raise ClientRefusal(-32601, f"nobody is there to answer {method}")


def widened(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return request params with which a worker reports all its progress and messages.

    FastMCP sends none that the client did not request. The ladder needs them all the same; those that the
    client did not request are not passed on.
    """
    meta = dict(params.get("_meta") or {})
    meta.setdefault("progressToken", _OWN_TOKEN)
    meta[_LEVEL_KEY] = "debug"
    return {**params, "_meta": meta}


def log_message(params: Mapping[str, Any], levels: Collection[str]) -> dict[str, Any] | None:
    """Return a log message with fields of MCP only, or None for a level that was not requested.

    A tool may send anything. Without `data`, or with a logger that is not text, a client's library shows a
    traceback; it drops a message that nests too deeply.

    Args:
        params: Params from the tool.
        levels: Levels that the client requested.
    """
    level, logger = params.get("level"), params.get("logger")
    if not isinstance(level, str) or level not in levels:
        return None
    named = {"logger": logger} if isinstance(logger, str) else {}
    data = params.get("data")
    if nests_deeper(data):
        data = f"left out: it nests deeper than {MOST_LEVELS} levels"
    return {"level": level, **named, "data": data}


def too_deep(method: str) -> str:
    """Return the error text for a request that nests too deeply for the client."""
    return f"the params of {method} nest deeper than {MOST_LEVELS} levels, which clients do not read"


@dataclass(slots=True, kw_only=True)
class CallListener:
    """Listens to one call on behalf of its client. A `sandbox.host.lease.Listener`.

    Attributes:
        client: Receives the notifications.
        params: The params of the client's own request.
        levels: Levels of log messages that the client requested.
        deadlines: The limits of the call, for the wording of notices.
        user: The user whose session state the call may use.
        state: Session state of the tools.
        publish: Receives events for the user's interface.
        change: Receives changes of lists and resources: the method of a notification, and a URI or None.
        masked: Removes the values of secrets from messages of the tool; may change them in place.
        capabilities: The capabilities that the client has declared; None if they are unknown.
        keep: Stores a file that the tool puts while it runs; None if it may not.
        tools: Answers requests for the tools of this server, which only code may send.
        show: Stores content for the user's interface for a while, if one listens.
        last_progress: Text of the last progress report.
        notices: The notices sent so far.
    """

    client: Client
    params: Mapping[str, Any]
    levels: frozenset[str]
    deadlines: Deadlines
    user: str
    state: SessionState
    publish: Callable[[Mapping[str, Any]], None] = lambda _event: None
    change: Callable[[str, object], None] = lambda _method, _uri: None
    masked: Callable[[Mapping[str, object]], Mapping[str, object]] = lambda value: value
    capabilities: Mapping[str, Any] | None = None
    keep: Keep | None = None
    tools: ToolRequests | None = None
    show: Show | None = None
    last_progress: str | None = None
    notices: list[str] = field(default_factory=list)
    _progress: float = 0.0

    @property
    def _meta(self) -> Mapping[str, Any]:
        meta = self.params.get("_meta")
        return meta if isinstance(meta, Mapping) else {}

    async def notify(self, value: Mapping[str, object]) -> None:
        """Pass on a worker's notification, if tools may send it and the client requested it."""
        value = self.masked(value)
        method, params = value.get("method"), value.get("params")
        params = dict(params) if isinstance(params, Mapping) else {}
        if method == PROGRESS:
            await self._pass_progress(params)
        elif method == MESSAGE:
            await self._pass_message(params)
        elif method in LIST_CHANGES:
            self.change(str(method), None)
            await self.client.notify(str(method), {})
        elif method == _UPDATED:
            # For the subscribers to the resource, not for the caller.
            self.change(_UPDATED, params.get("uri"))
        elif method == PUBLISHED:
            self.change(str(params.get("method")), params.get("uri"))

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        """Answer a worker's request: session state by the host, others by the client."""
        value = self.masked(value)
        method, params = str(value.get("method")), value.get("params")
        params = dict(params) if isinstance(params, Mapping) else {}
        try:
            if method in CLIENT_REQUESTS:
                return {"result": dict(await self.ask(method, params))}
            if method == PUT and self.keep is not None:
                return {"result": dict(await self.keep(params))}
            if method in _TOOL_REQUESTS and self.tools is not None:
                return {"result": dict(await self.tools(method, params))}
            return {"result": self._state_request(method, params)}
        except ClientRefusal as error:
            return {"error": {"code": error.code, "message": str(error)}}
        except (StateRefused, KeyError, TypeError, RecursionError) as error:
            return {"error": {"code": INVALID_PARAMS, "message": str(error)}}

    def may_ask(self, method: str, params: Mapping[str, Any]) -> bool:
        """Return whether the client has declared that it answers a request."""
        return self.capabilities is not None and _undeclared(method, params, self.capabilities) is None

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send the client a request and return its result.

        Raises:
            ClientRefusal: The client refused, or cannot be asked.
        """
        if nests_deeper(params):
            raise ClientRefusal(INVALID_PARAMS, too_deep(method))
        if self.capabilities is not None:
            missing = _undeclared(method, params, self.capabilities)
            if missing is not None:
                # The client may treat an unknown request as a connection fault.
                message = f"the client does not support {method}: it did not declare the capability {missing}"
                raise ClientRefusal(METHOD_NOT_FOUND, message)
        return await self.client.request(method, params)

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        """Return whether a request waits for a client, the store or a tool, so that silence is ignored."""
        return value.get("method") in (*CLIENT_REQUESTS, PUT, *_TOOL_REQUESTS)

    async def rung(self, rung: Rung) -> None:
        """Send the client the notice of a rung of the ladder."""
        await self.tell(notice(rung, self.deadlines))

    async def dropped(self, count: int) -> None:
        """Send the client the number of dropped notifications, if it accepts warnings."""
        words = f"{count} notifications of the tool were dropped: there were more than could be passed on"
        self.publish({"type": "tool_notice", "message": words})
        await self._warn(words)

    async def printed(self, level: str, text: str) -> None:
        """Send the tool's output or exception to the client as a log message, if it wants that level."""
        if text and level in self.levels:
            data = {"msg": text, "extra": None}
            await self.client.notify(MESSAGE, {"level": level, "logger": "output", "data": data})

    async def tell(self, text: str) -> None:
        """Send the client a notice: as progress if it requested progress, else as a message."""
        self.notices.append(text)
        self.publish({"type": "tool_notice", "message": text})
        token = self._meta.get("progressToken")
        if token is not None:
            # A progress value must grow with every notification; this is the least it can grow.
            self._progress = math.nextafter(self._progress, math.inf)
            params = {"progressToken": token, "progress": self._progress, "message": text}
            await self.client.notify(PROGRESS, params)
        else:
            await self._warn(text)

    async def _warn(self, text: str) -> None:
        if "warning" in self.levels:
            data = {"msg": text, "extra": None}
            await self.client.notify(MESSAGE, {"level": "warning", "logger": "runner", "data": data})

    async def _pass_progress(self, params: dict[str, Any]) -> None:
        value, total = _number(params.get("progress")), _number(params.get("total"))
        message = params.get("message")
        if value is None:
            return
        update = read_update(value, total, message if isinstance(message, str) else None)
        words = update.message
        self.last_progress = words or _amount(value, total)
        for event in update.events:
            self.publish(await light(event, self.show))
        token = self._meta.get("progressToken")
        if token is None:
            return
        self._progress = (
            max(float(value), math.nextafter(self._progress, math.inf)) if self.notices else value
        )
        passed = {"progressToken": token, "progress": self._progress, "total": total, "message": words}
        await self.client.notify(PROGRESS, {k: v for k, v in passed.items() if v is not None})

    async def _pass_message(self, params: dict[str, Any]) -> None:
        level, data = params.get("level"), params.get("data")
        text = data.get("msg") if isinstance(data, Mapping) else data
        if isinstance(text, str):
            self.last_progress = text[:MESSAGE_MAX_CHARS]
            self.publish({"type": "tool_log", "level": str(level), "message": text[:MESSAGE_MAX_CHARS]})
        passed = log_message(params, self.levels)
        if passed is not None:
            await self.client.notify(MESSAGE, passed)

    def _state_request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        if method not in _STATE_REQUESTS:
            raise TypeError(f"a tool cannot ask the host for {method!r}")
        key, collection = str(params["key"]), params.get("collection")
        if not (collection is None or isinstance(collection, str)):
            raise TypeError("a collection of session state is named by a text")
        match method:
            case "state/get":
                value, ttl = self.state.get(self.user, collection, key)
                return {"value": value, "ttl": ttl}
            case "state/put":
                self.state.put(self.user, collection, key, params["value"], params.get("ttl"))
                return {}
            case _:
                return {"deleted": self.state.delete(self.user, collection, key)}


def _undeclared(method: str, params: Mapping[str, Any], able: Mapping[str, Any]) -> str | None:
    """Return the undeclared capability of the client that a request needs, or None.

    A client that declares elicitation without a mode supports forms, originally the only mode.
    """
    name = _CAPABILITIES.get(method)
    if name is None:
        # A request about a task that the client has created for an earlier request.
        return None
    own = able.get(name)
    if own is None:
        return name
    modes = own if isinstance(own, Mapping) else {}
    if method == "elicitation/create":
        mode = "url" if params.get("mode") == "url" else "form"
        has_modes = any(modes.get(one) is not None for one in ("form", "url"))
        return None if modes.get(mode) is not None or (mode == "form" and not has_modes) else f"{name}.{mode}"
    wants_tools = method == "sampling/createMessage" and "tools" in params
    return f"{name}.tools" if wants_tools and modes.get("tools") is None else None


def _number(value: object) -> float | None:
    """Return a number that is safe for arithmetic, or None; a worker may send one of any length."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < _MAX_NUMBER else None


def _amount(value: float, total: float | None) -> str:
    return f"{value:g}" if total is None else f"{value:g}/{total:g}"
