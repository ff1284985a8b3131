"""The program that zygotes load and workers run: a tool file behind its own FastMCP server.

A worker serves one raw MCP request after the other with the author's own server, so its answers are those of
plain FastMCP. A middleware records further facts for the host (the exception of a tool, with the author's
lines), which are sent along.
"""

import asyncio
import contextlib
import contextvars
import logging
import os
import random
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping
from os import mkdir
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp import MCPDeprecationWarning

from runner.author import connect
from runner.worker.asked_route import answer_route
from runner.worker.call_scope import HostLine, ServedCall, Waiting, current, entered, strict
from runner.worker.failure_capture import FailureCapture
from runner.worker.internals.patches import (
    give_contexts_artifacts,
    make_spans_if_recorded,
)
from runner.worker.internals.server import mend_returned_texts, serve_raw
from runner.worker.long_answers import FOLDED, folded
from runner.worker.rehearsal import Rehearsal
from runner.worker.served import RUNNERS_SCHEME, AuthorServer, addresses_of_the_runner, served_by
from runner.worker.targets import entry_of
from runner.worker.toolfile import load_tool_files
from runner.worker.warmup import Warmups
from runner.worker.wire import PUBLISHED, ROUTE, SENT_MAX_CHARS, RequestFacts, WireError
from sandbox.errors import LoadError
from sandbox.frames import FrameKind
from sandbox.inside.program import Channel, JoinedCall

__all__ = ["PROGRAM", "ToolProgram"]


class ToolProgram:
    """One tool file (or several, mounted), loaded once and served by each worker, call by call."""

    def __init__(self) -> None:
        self._server: AuthorServer | None = None
        self._lists: object = None
        self._failures = FailureCapture(Path())
        self._waiting: Waiting = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = contextlib.AsyncExitStack()
        self._lifespan_state: Any = None
        self._environment: dict[str, str] = {}
        self._is_lasting = False
        self._rehearses = False
        self._warmups = Warmups()
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Future[None] | None = None
        self._context = contextvars.copy_context()

    def begin(self) -> None:
        """Rehearse a call on a server of our own: zygotes share the modules and objects that it creates."""
        give_contexts_artifacts()
        make_spans_if_recorded()
        asyncio.run(REHEARSAL.prepare())

    def load(self, config: Mapping[str, object]) -> object:
        """Import the files named in `config["files"]` and return the catalog."""
        # FastMCP writes each tool error with its traceback to standard error; the host logs it better.
        library = logging.getLogger("fastmcp")
        library.addHandler(logging.NullHandler())
        library.propagate = False
        # An author who calls `ctx.info` cannot act on a warning about FastMCP's own calls.
        warnings.filterwarnings("ignore", category=MCPDeprecationWarning, module=r"fastmcp\.")
        connect(self._request_host)
        files = [str(file) for file in _list(config["files"])]
        self._environment = {str(k): str(v) for k, v in dict(config["call_environment"]).items()}  # type: ignore[call-overload]
        self._is_lasting = bool(config["lasting"])
        self._rehearses = bool(config["rehearses"])
        server = self._server = served_by(load_tool_files(files))
        self._failures = FailureCapture(entry_of(files[0]).beside[-1].parent)
        mend_returned_texts()
        make_spans_if_recorded()
        try:
            return asyncio.run(self._catalog(server))
        except LoadError:
            raise
        except Exception as error:
            raise LoadError(f"its tools cannot be listed: {type(error).__name__}: {error}") from error

    def warm_up(self) -> None:
        """Use libraries once, and call the author's warm-up functions, if more than one call is expected."""
        if self._is_lasting:
            self._warmups.run()

    def prepare(self, *, warm: bool) -> None:
        """Enter the server's lifespan, and reseed random generators so that workers differ."""
        _reseed()
        _move_in(self._environment)
        loop = self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        self._life = life = loop.create_task(self._live(loop, warm=warm))
        try:
            loop.run_until_complete(life)
        except Exception as error:
            # Expected: the task stops the loop without ending, which asyncio reports as an error.
            if life.done():
                raise LoadError(f"its lifespan raised {type(error).__name__}: {error}") from error

    def serve(self, call: object, channel: Channel) -> object:
        """Serve one raw MCP request; see `runner.call` for the shape of call and answer."""
        if not isinstance(call, dict) or self._loop is None:
            raise TypeError("a call is an object, and `prepare` comes before `serve`")
        serving = self._begin(call, channel, HostLine(channel, self._loop, self._waiting))
        with _set_for_call(call["secrets"]):
            return self._loop.run_until_complete(serving)

    def serve_many(
        self, first: JoinedCall | None, connection: socket.socket, joined: Callable[[], JoinedCall | None]
    ) -> None:
        """Serve requests concurrently, each in a task of its own, until the host closes the connection."""
        loop = self._loop
        if loop is None:
            raise TypeError("`prepare` comes before `serve_many`")
        let_go: asyncio.Future[None] = loop.create_future()

        def begin(one: JoinedCall | None) -> None:
            if one is None:
                return
            line = HostLine(one.channel, loop, {})
            cancelled = asyncio.Event()
            serving = self._begin(one.call, one.channel, line, cancelled)

            def cancel() -> None:
                # The host is notified first, since a sync tool continues until it returns.
                with contextlib.suppress(OSError):
                    one.channel.send(FrameKind.CANCELLING, {})
                cancelled.set()

            def done(_: object) -> None:
                line.close()
                failure = None if serving.cancelled() else serving.exception()
                if failure is not None and not let_go.done():
                    # The author's exceptions are in the answer, so this one means a damaged process.
                    let_go.set_exception(failure)
                elif failure is None:
                    one.finish({} if serving.cancelled() else serving.result())

            line.listen(cancel)
            serving.add_done_callback(done)

        def readable() -> None:
            try:
                begin(joined())
            except (EOFError, OSError):
                loop.remove_reader(connection)
                _settle(let_go)
            except Exception as error:  # noqa: BLE001 - without its host's orders a worker is of no use
                loop.remove_reader(connection)
                let_go.set_exception(error)

        begin(first)
        loop.add_reader(connection, readable)
        loop.run_until_complete(let_go)

    def _begin(
        self, call: object, channel: Channel, line: HostLine, cancelled: asyncio.Event | None = None
    ) -> "asyncio.Task[dict[str, object]]":
        """Start to serve a request in a context of its own, as plain FastMCP does."""
        if not isinstance(call, dict) or self._loop is None:
            raise TypeError("a call is an object, and `prepare` comes before `serve`")
        # An earlier call of this home may have removed it since this worker was prepared.
        _make_folder(self._environment["TMPDIR"])
        scope = ServedCall(
            channel=channel,
            line=line,
            most_bytes=int(call["answer_bytes"]),
            known=dict(call["known_state"]),
        )
        serving = (
            self._serve(call, scope) if cancelled is None else self._served_until(cancelled, call, scope)
        )
        return self._loop.create_task(self._settled(serving, scope), context=self._context.copy())

    async def _served_until(
        self, cancelled: asyncio.Event, call: Mapping[str, Any], scope: ServedCall
    ) -> dict[str, object]:
        """Serve a request unless it is cancelled, as the SDK does: a sync tool continues until it returns."""
        with anyio.CancelScope() as reach:

            async def cancel() -> None:
                await cancelled.wait()
                reach.cancel()

            waiting = asyncio.create_task(cancel())
            try:
                return await self._serve(call, scope)
            finally:
                waiting.cancel()
        return {}

    async def _settled(
        self, serving: Coroutine[Any, Any, dict[str, object]], scope: ServedCall
    ) -> dict[str, object]:
        """Return the answer to a request, also if the author's code cancels this task or raises an exit.

        A GeneratorExit from a thread closes every coroutine of a task but this outermost one.
        """
        try:
            answer = await serving
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                # A cancellation that is still to come would take the answer's place.
                await asyncio.sleep(0)
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001 - it is of the author's code, and must not end the worker
            self._failures.left(error)
            return {"result": None, **self._seen(scope)}
        return answer

    def finish(self) -> None:
        """Leave the server's lifespan."""
        if self._loop is not None and self._life is not None and self._ending is not None:
            _settle(self._ending)
            self._loop.run_until_complete(self._life)

    def wait(self, connection: socket.socket) -> None:
        """Run the tasks that calls have left behind, until the host sends something."""
        if self._loop is None:
            raise TypeError("`prepare` comes before `wait`")
        spoken: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(connection, _settle, spoken)
        try:
            self._loop.run_until_complete(spoken)
        finally:
            self._loop.remove_reader(connection)

    async def _live(self, loop: asyncio.AbstractEventLoop, *, warm: bool) -> None:
        """Enter the lifespan and stay in it until the worker ends. Calls are served in other tasks."""
        await self._enter()
        make_spans_if_recorded()
        # The first task that uses a thread owns the threads of sync tools. With this one as owner, a call
        # gets the thread of the previous call, with the thread-local data of libraries.
        await anyio.to_thread.run_sync(_nothing)
        if warm:
            if self._rehearses:
                await REHEARSAL.walk()
            self._warmups.repeat()
        self._context = contextvars.copy_context()
        self._ending = loop.create_future()
        loop.stop()
        await self._ending
        # In the task that has entered it, as cancel scopes require.
        await self._stack.aclose()

    async def _catalog(self, server: AuthorServer) -> dict[str, object]:
        await server.set_up(self._request_host, self._failures, self._publish)
        taken = await addresses_of_the_runner(server)
        if taken:
            raise LoadError(
                f"it has the resource {taken[0]}, and the runner answers {RUNNERS_SCHEME} itself, for the "
                "files that tools return; give the resource another scheme"
            )
        return {**await server.catalog(), "finishes": server.has_lifespan()}

    async def _enter(self) -> None:
        assert self._server is not None  # noqa: S101 - `load` comes before `prepare`
        self._lifespan_state = await self._stack.enter_async_context(self._server.lifespan())
        self._lists = self._server.lists()

    async def _serve(self, call: Mapping[str, Any], scope: ServedCall) -> dict[str, object]:
        assert self._server is not None  # noqa: S101 - `load` comes before `serve`
        with entered(scope):
            scope.channel.enter()
            facts = RequestFacts(**call["facts"])
            if call["method"] == ROUTE:
                answer = await answer_route(self._server.routes, call["params"], self._lifespan_state)
                return {"result": answer, **self._seen(scope)}
            try:
                result = await serve_raw(
                    self._server.low,
                    call["method"],
                    call["params"],
                    facts,
                    self._lifespan_state,
                    on_notify=scope.line.notify,
                    on_request=scope.line.request,
                )
            except WireError as error:
                return {"error": error.error, **self._seen(scope)}
            if not result.get("isError"):
                # Middleware of the author's, or a tool that called another, has handled the exception.
                scope.raised = None
            try:
                sent, is_folded = folded(result)
                return {"result": strict(sent), FOLDED: is_folded, **self._seen(scope)}
            except (TypeError, ValueError, RecursionError) as error:
                # An integer of thousands of digits, or a value that JSON lacks.
                scope.raised = {"kind": "unwritable", "message": str(error)[:SENT_MAX_CHARS]}
                return {"result": None, **self._seen(scope)}

    def _seen(self, scope: ServedCall) -> dict[str, object]:
        """Return facts about a request for the host, besides its answer."""
        assert self._server is not None  # noqa: S101 - `load` comes before `serve`
        return {"raised": scope.raised, "own_lists": self._server.lists() != self._lists}

    async def _publish(self, method: str, uri: str | None) -> None:
        scope = current()
        if scope is not None:
            await scope.line.notify(PUBLISHED, {"method": method, "uri": uri})

    async def _request_host(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        scope = current()
        if scope is None:
            raise RuntimeError("state and artifacts are for calls; this is the import of the file")
        return await scope.line.request(method, params)


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


@contextlib.contextmanager
def _set_for_call(secrets: Mapping[str, str]) -> Iterator[None]:
    """Set the secrets of a call in the environment, for its duration."""
    before = {name: os.environ.get(name) for name in secrets}
    os.environ.update(secrets)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _move_in(environment: Mapping[str, str]) -> None:
    """Redirect the environment from the scratch folder of the import to the home."""
    os.environ.update(environment)
    tempfile.tempdir = None
    _make_folder(environment["TMPDIR"])


def _make_folder(path: str) -> None:
    """Make the folder of temporary files, if it can be made.

    Without a home, it exists and is not writable. In a home it may be missing, and another call may remove it
    concurrently, have put a file there, or have filled the disk. Then a tool that creates a temporary file
    gets the error, and can still handle it.
    """
    with contextlib.suppress(OSError):
        # Not `os.mkdir`, which the guard has patched: it would run for each call.
        mkdir(path, mode=0o700)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _nothing() -> None:
    """Do nothing: starts a thread, which stays."""


def _reseed() -> None:
    """Give each worker its own random numbers: forked generators would repeat each other's."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


REHEARSAL = Rehearsal()
PROGRAM = ToolProgram()
