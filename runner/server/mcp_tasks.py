"""Tasks of MCP: calls whose client does not wait, but polls their status or subscribes to it.

The host keeps them, like every running call. A file's own task engine would run them all in one permanent
process; here each runs in a worker of its user. A tool declares that it may be a task (`task=True`), a client
declares in each request whether it accepts one. Silence does not end a task, only the total limit does.

A task lives as long as the server. Its id is signed: so a server without that task can tell its user, and
nobody else, that it existed.

Source: MCP extension `io.modelcontextprotocol/tasks` (SEP-2663), 2026-07-28.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import mcp_types
from anyio.to_thread import run_sync
from mcp.shared.exceptions import MCPError
from mcp_types import CLIENT_CAPABILITIES_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from runner.call import Request
from runner.contract.unexpected_errors import unexpected
from runner.errors import RunnerError
from runner.steps.listener import PROGRESS, ClientRefusal
from runner.users.capability_tokens import Tokens
from runner.users.identity import User

__all__ = ["EXTENSION", "McpTasks"]

log = logging.getLogger(__name__)

EXTENSION = "io.modelcontextprotocol/tasks"
"""Name of the extension with which clients and servers declare support for tasks."""

_METHODS = ("tasks/get", "tasks/update", "tasks/cancel")
_PURPOSE = "task"
_KEPT_S = 3600.0
_MOST = 1000
_MOST_OF_USER = 64
_MOST_BYTES = 128 * 1024 * 1024
_MESSAGE_CHARS = 1000
_MOST_KEYS = 1000
# Between two notifications about one task: a tool may report progress thousands of times a second.
_QUIET_S = 0.1

_NONE = "there is no such task, or it has expired"
_LOST = (
    "this task no longer exists here: its server restarted, another server has it, or newer results "
    "displaced it; call the tool again if you need its result"
)

Run = Callable[[Request], Awaitable[dict[str, Any]]]


@dataclass(slots=True, eq=False, kw_only=True)
class _Task:
    """One task: the client of its call. A `runner.steps.listener.Client`.

    Attributes:
        call: Its call.
        id: Its id for its client.
        poll_ms: Poll interval, in milliseconds.
        ttl_s: How long it is kept after `born`, in seconds.
        born: When it began, in seconds since the epoch.
        updated: When it last changed.
        status: Its status in MCP.
        message: Text of its last progress report or status.
        outcome: Further members of its answer: result, error or questions.
        size: Characters of the outcome, as JSON.
        state: State that the tool gets back with the answers to its questions.
        running: The asyncio task that runs it.
        questions: The open questions: the client's key → the tool's key.
        answers: Answers to the other questions, by the tool's key.
        keys: All keys that were ever sent to its client.
        watched: The subscribers to its changes.
    """

    call: Request
    id: str
    poll_ms: int
    ttl_s: float
    born: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    status: str = "working"
    message: str | None = None
    outcome: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    state: object = None
    running: "asyncio.Task[None] | None" = None
    questions: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    watched: "set[_Watch]" = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """True if it will not change any more."""
        return self.status not in ("working", "input_required")

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Record the text of the tool's last progress report."""
        if method == PROGRESS:
            text = str(params.get("message") or f"{params.get('progress')} of {params.get('total')}")
            self.message = text[:_MESSAGE_CHARS]
            self._changed()

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        del params
        raise ClientRefusal(-32601, f"nobody waits for this call who could answer {method}")

    def becomes(self, status: str, *, message: str | None = None, **outcome: Any) -> None:
        """Set the status of the task, and the outcome of its call, for its client."""
        self.status, self.outcome = status, outcome
        self.size = len(json.dumps(outcome)) if outcome else 0
        if message is not None:
            self.message = message[:_MESSAGE_CHARS]
        if self.has_ended:
            # It is kept for an hour, and its arguments may be as long as a request.
            self.call, self.state = replace(self.call, params={}), None
        self._changed()

    def asks(self, questions: Mapping[str, Any]) -> None:
        """Set the open questions of its tool. A key is never reused for another question of the task."""
        shown: dict[str, Any] = {}
        self.questions, self.answers = {}, {}
        for key, question in questions.items():
            name, number = key, 1
            while name in self.keys:
                number += 1
                name = f"{key}-{number}"
            self.keys.add(name)
            self.questions[name] = key
            shown[name] = question
        self.becomes("input_required", inputRequests=shown)

    def hears(self, answers: Mapping[str, Any]) -> bool:
        """Record answers to open questions, and ignore others; return whether none is left open."""
        for name in list(self.questions):
            if name in answers:
                self.answers[self.questions.pop(name)] = answers[name]
        if self.questions:
            requests = self.outcome["inputRequests"]
            left = {name: each for name, each in requests.items() if name in self.questions}
            self.becomes("input_required", inputRequests=left)
        return not self.questions

    def snapshot(self) -> dict[str, Any]:
        """Return all its members for the client, as in the answer to `tasks/get`."""
        status = {"statusMessage": self.message} if self.message else {}
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": _when(self.born),
            "lastUpdatedAt": _when(self.updated),
            "ttlMs": int(self.ttl_s * 1000),
            "pollIntervalMs": self.poll_ms,
            **status,
            **self.outcome,
        }

    def _changed(self) -> None:
        self.updated = time.time()
        for watch in self.watched:
            watch.note(self)


class _Watch:
    """A subscriber to changes: receives the latest snapshot of each task, not every intermediate one."""

    def __init__(self) -> None:
        self._changed: dict[_Task, None] = {}
        self._any = asyncio.Event()

    def note(self, task: _Task) -> None:
        self._changed[task] = None
        self._any.set()

    async def changes(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            await self._any.wait()
            self._any.clear()
            changed, self._changed = self._changed, {}
            for task in changed:
                yield task.snapshot()
            await asyncio.sleep(_QUIET_S)


class McpTasks:
    """All tasks of one server. A `runner.protocol.subscriptions.Tasks`.

    Args:
        run: Executes a call.
        polls: Returns the poll interval of a tool's tasks, in milliseconds; None if the tool is not a task.
        total_s: Returns the total limit of a tool's call, in seconds.
        tokens: Returns the signer of their ids.
    """

    def __init__(
        self,
        run: Run,
        polls: Callable[[str], int | None],
        total_s: Callable[[str], float],
        tokens: Callable[[], Tokens],
    ) -> None:
        self._run = run
        self._polls = polls
        self._total_s = total_s
        self._tokens = tokens
        self._tasks: dict[str, _Task] = {}

    def takes(self, method: str) -> bool:
        """Return whether a method is one of tasks."""
        return method in _METHODS

    def wants(self, request: Request) -> bool:
        """Return whether a call becomes a task: its tool and client allow it, and there is room."""
        if self._polls(request.tool) is None or request.facts.protocol in HANDSHAKE_PROTOCOL_VERSIONS:
            return False
        self._forget_old()
        mine = sum(task.call.user.segment == request.user.segment for task in self._tasks.values())
        return _knows(request.params) and mine < _MOST_OF_USER and len(self._tasks) < _MOST

    async def begin(self, request: Request) -> dict[str, Any]:
        """Start a call in the background; return the immediate answer to its client."""
        tool = request.tool
        meta = {"progressToken": "task", **dict(request.params.get("_meta") or {})}
        own = replace(request, params={**request.params, "_meta": meta}, is_awaited=False, levels=frozenset())
        ttl_s = self._total_s(tool) + _KEPT_S
        name = await run_sync(self._named, request.user, ttl_s)
        task = _Task(call=own, id=name, poll_ms=self._polls(tool) or 1000, ttl_s=ttl_s)
        self._tasks[task.id] = task
        self._go(task, own)
        return {"resultType": "task", **task.snapshot()}

    async def answer(self, request: Request) -> dict[str, Any]:
        """Answer a method of tasks.

        Raises:
            MCPError: The user has no such task, or the client has not declared the extension.
        """
        self.check(request.method, request.params)
        self._forget_old()
        name = str(request.params.get("taskId"))
        task = self._of(request.user, name)
        if task is None:
            was_here = await run_sync(self._was_of, request.user, name)
            raise MCPError(code=mcp_types.INVALID_PARAMS, message=_LOST if was_here else _NONE)
        if request.method == "tasks/get":
            return {"resultType": "complete", **task.snapshot()}
        if request.method == "tasks/cancel":
            self._cancel(task)
        elif task.status == "input_required":
            self._go_on(task, request.params.get("inputResponses"))
        return {"resultType": "complete"}

    def check(self, method: str, params: Mapping[str, Any]) -> None:
        """Refuse a request for tasks from a client that has not declared them.

        Args:
            method: Method of the request.
            params: Params of the request.

        Raises:
            MCPError: The client has not declared the extension.
        """
        if not _knows(params):
            raise MCPError(
                code=mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                message=f"{method} needs the extension {EXTENSION}, which is not declared",
                data={"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
            )

    def known(self, user: User, names: Sequence[str]) -> list[str]:
        """Return the ids among these that are tasks of a user."""
        return [name for name in dict.fromkeys(names) if self._of(user, name) is not None]

    @contextmanager
    def watched(self, user: User, names: Sequence[str]) -> Iterator[AsyncIterator[dict[str, Any]]]:
        """Yield the changes of a user's tasks while the block lasts: snapshots like those of `tasks/get`."""
        tasks = [task for name in names if (task := self._of(user, name)) is not None]
        watch = _Watch()
        for task in tasks:
            task.watched.add(watch)
            # It may have changed since the last update to its client.
            watch.note(task)
        try:
            yield watch.changes()
        finally:
            for task in tasks:
                task.watched.discard(watch)

    def _of(self, user: User, name: str) -> _Task | None:
        task = self._tasks.get(name)
        return None if task is None or task.call.user.segment != user.segment else task

    def _named(self, user: User, ttl_s: float) -> str:
        number = secrets.token_urlsafe(18)
        try:
            signed = self._tokens().sign(
                user=user.name, key=number, purpose=_PURPOSE, now=time.time(), ttl_s=ttl_s
            )
        except (OSError, RunnerError) as error:
            log.warning("task id cannot be persisted", extra={"problem": str(error)})
            return number
        return f"{number}.{signed}"

    def _was_of(self, user: User, name: str) -> bool:
        """Return whether an id belonged to a task of a user that has not expired."""
        number, _, signed = name.partition(".")
        try:
            whose = self._tokens().verify(signed, purpose=_PURPOSE, key=number, now=time.time())
        except (OSError, RunnerError):
            return False
        return whose == user.name

    def _go(self, task: _Task, request: Request) -> None:
        task.becomes("working")
        task.running = asyncio.create_task(self._through(task, replace(request, client=task)))

    def _go_on(self, task: _Task, answers: object) -> None:
        if not task.hears(answers if isinstance(answers, Mapping) else {}):
            return
        params = {**task.call.params, "inputResponses": task.answers}
        if task.state is not None:
            params["requestState"] = task.state
        self._go(task, replace(task.call, params=params))

    async def _through(self, task: _Task, request: Request) -> None:
        try:
            result = await self._run(request)
        except MCPError as error:
            data = error.error.model_dump(by_alias=True, mode="json", exclude_none=True)
            task.becomes("failed", message=error.error.message, error=data)
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and its client would ask for ever
            fault = unexpected(error, call=request.id)
            data = {"code": mcp_types.INTERNAL_ERROR, "message": fault.message}
            task.becomes("failed", message=fault.message, error=data)
        else:
            questions = result.get("inputRequests")
            if result.get("resultType") != "input_required" or not isinstance(questions, Mapping):
                task.becomes("completed", result=result)
            elif len(task.keys) + len(questions) > _MOST_KEYS:
                message = f"the tool has asked more than {_MOST_KEYS} questions"
                task.becomes(
                    "failed", message=message, error={"code": mcp_types.INTERNAL_ERROR, "message": message}
                )
            else:
                task.state = result.get("requestState")
                task.asks(questions)
        self._make_room(task)

    def _cancel(self, task: _Task) -> None:
        if not task.has_ended:
            if task.running is not None:
                task.running.cancel()
            task.becomes("cancelled")

    def _make_room(self, newest: _Task) -> None:
        """Drop the oldest results of the user with the most, if all results take too much memory."""
        while sum(task.size for task in self._tasks.values()) > _MOST_BYTES:
            of_users: dict[str, int] = {}
            for task in self._tasks.values():
                of_users[task.call.user.segment] = of_users.get(task.call.user.segment, 0) + task.size
            most = max(of_users, key=of_users.__getitem__)
            ended = (
                task for task in self._tasks.values()
                if task.has_ended and task is not newest and task.call.user.segment == most
            )  # fmt: skip
            oldest = next(ended, None)
            if oldest is None:
                return
            del self._tasks[oldest.id]

    def _forget_old(self) -> None:
        now = time.time()
        old = [task for task in self._tasks.values() if now > task.born + task.ttl_s]
        for task in old:
            self._cancel(task)
            del self._tasks[task.id]


def _knows(params: Mapping[str, Any]) -> bool:
    """Return whether the client of a request declares the extension for tasks."""
    value: object = params
    for key in ("_meta", CLIENT_CAPABILITIES_META_KEY, "extensions", EXTENSION):
        value = value.get(key) if isinstance(value, Mapping) else None
    return isinstance(value, Mapping)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat()
