"""The steps that every tool call takes, whoever executes the tool: a worker of ours, or another server.

`runner.call` has tools of our own files executed, `runner.proxy.contracted` those of other servers. Both come
through here: inputs before the tool, then its result into one contract value, then events and the log.

Source: architecture, "One call, in order"; `docs/decisions/0033-one-spine-for-two-executors.md`.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from runner.artifacts.accept import ArtifactFile, Keep, Processed, failed, process_artifacts
from runner.artifacts.generated import with_earlier
from runner.artifacts.named_file import OpenHome
from runner.contract.display import decide
from runner.contract.error_messages import file_not_found
from runner.contract.interface_events import announce
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import Normalised, normalise
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError, Code
from runner.files.download_links import without_tokens
from runner.files.my_files import Deferral, MyFiles
from runner.homes.changes import ChangedFile
from runner.homes.homes import HomeLease
from runner.observation.call_log import CallLine
from runner.observation.call_record import MOST_NAME_CHARS, CallRecord, FileFacts, operation
from runner.observation.observers import Observers
from runner.settings.named_limits import Counted
from runner.settings.settings import Settings
from runner.steps.client_message import referenced
from runner.steps.inputs import Link, prepare_inputs, read_arguments
from runner.steps.light_events import without_bytes
from runner.steps.listener import CallListener, Client
from runner.steps.rewriting import FileDelivery, Inputs
from runner.steps.timing import Steps
from runner.store.protocol import Origin, Record
from runner.toolset.catalog import ToolSpec
from runner.toolset.session_state import SessionState
from runner.users.events import LIST_CHANGED, UPDATED, Events
from runner.users.identity import User
from runner.worker.wire import RequestFacts
from sandbox.deadlines import Deadlines
from sandbox.probe.machine import Tier

__all__ = [
    "SHORT_BYTES",
    "CallFiles",
    "Completed",
    "Execute",
    "Executed",
    "Request",
    "Service",
    "UnreturnedFiles",
    "conclude",
    "file_delivery_of",
    "interim_of",
    "listener_of",
    "observe_guarded",
    "observed",
    "perform",
    "question_of",
    "settle",
]

log = logging.getLogger(__name__)

SHORT_BYTES = 64 * 1024
"""An answer that is longer is worth a thread, so that it holds up no other call."""


async def _at_once() -> None:
    """Wait for nothing."""


_QUESTION = ("resultType", "inputRequests", "requestState")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One MCP request as it reached the host.

    Attributes:
        user: Who it comes from.
        method: The MCP method.
        params: Its params, as on the wire.
        facts: What the tool may learn of it.
        client: Who hears of it while it runs.
        levels: Levels of log messages that the client wants to get.
        inline_max_bytes: Largest artifact that the caller wants inside the result.
        is_awaited: Whether its client waits for the answer: then silence ends the call.
        id: Ours, on every log record of the call.
        begins: Is awaited just before code of the tool runs; what it raises keeps it from running.
        steps: How long each step took.
        counted: The limits by name that it counts for, once they have been looked up.
        tool: Name of the tool that is called, as its client knows it.
    """

    user: User
    method: str
    params: Mapping[str, Any]
    facts: RequestFacts
    client: Client
    inline_max_bytes: int
    levels: frozenset[str] = frozenset()
    is_awaited: bool = True
    id: str = field(default_factory=lambda: os.urandom(6).hex())
    begins: Callable[[], Awaitable[None]] = _at_once
    steps: Steps = field(default_factory=Steps)
    counted: Sequence[Counted] = ()
    tool: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool", str(self.params.get("name")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """Outcome of a tool call.

    Attributes:
        processed: The contract value and its files.
        wire: The tool's own result as its server put it on the wire; empty where there is none.
        spec: The tool, if it is known.
        interim: An `input_required` result, or a task that was begun, which goes to the client untouched.
    """

    processed: Processed
    wire: Mapping[str, Any]
    spec: ToolSpec | None
    interim: Mapping[str, Any] | None = None


class Service(Protocol):
    """Protocol of call services: a toolset of our files, or a proxy's upstreams."""

    @property
    def settings(self) -> Settings:
        """Return the effective settings."""

    @property
    def events(self) -> Events:
        """Return what happens, for the users' interfaces."""

    @property
    def state(self) -> SessionState:
        """Return the session state of tools."""

    @property
    def observers(self) -> Observers:
        """Return who hears of each call that has ended."""

    @property
    def tier(self) -> Tier:
        """Return the isolation tier that tools run in."""

    @property
    def claims(self) -> Path:
        """Return the folder of the locks that say which call owns a staged name."""

    def files(self, user: User, *, trace: str | None = None, counted: Sequence[Counted] = ()) -> MyFiles:
        """Return My Files of a user, for the call `trace`; what it keeps counts for limits by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFiles:
    """Files of a call: its inputs and outputs.

    Attributes:
        files: My Files of its user; what it keeps there counts for its limits by name.
        inputs: The home that input files are staged into, if there is one.
        outputs: The home whose files the tool may name in its result, if there is one.
        link: Makes the download link of a file that the tool can fetch.
        file_delivery: How files named by `filename` and `filenames` are handed over.
    """

    files: MyFiles
    inputs: HomeLease | None
    outputs: OpenHome | None
    link: Link
    file_delivery: FileDelivery = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreturnedFiles:
    """Treatment of files that a call changed and did not return.

    Attributes:
        of: Says which those are beside a result.
        keep: Keeps them, or tells of them, in a result.
    """

    of: Callable[[Normalised], Sequence[ChangedFile]]
    keep: Callable[[Processed, Sequence[ChangedFile]], Awaitable[Processed]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """Result of an executed tool.

    Attributes:
        wire: Its result as on the wire.
        is_long: Whether it is so long that it is read in a thread.
        at_rest: Waits until no process of the call can change its outputs any more.
        facts: What is noted of it in `meta_data`.
        interim: What of it goes to the client untouched, if the tool is not done: a question, or a task.
        left: What becomes of files that it does not return, if there may be any.
        release: Lets go, once the outputs were read, of what is held for the tool.
    """

    wire: Mapping[str, Any]
    is_long: bool = False
    at_rest: Callable[[], Awaitable[None]] = _at_once
    facts: Mapping[str, Any] = field(default_factory=dict)
    interim: Mapping[str, Any] | None = None
    left: UnreturnedFiles | None = None
    release: Callable[[], None] = lambda: None


Execute = Callable[[Inputs], Awaitable[Executed]]
"""Has a tool executed with its inputs; what is held for that is let go by `Executed.release`."""


async def perform(
    service: Service,
    request: Request,
    spec: ToolSpec,
    place: CallFiles,
    listener: CallListener,
    execute: Execute,
) -> Completed:
    """Do steps 4 to 9 of a call: stage, run, normalise, end, collect, route.

    Args:
        service: What serves the call.
        request: The call.
        spec: Its tool.
        place: Where its files are.
        listener: Who hears of it.
        execute: Has the tool executed.

    Raises:
        CallError: A file cannot be staged, or the tool did not answer.
    """
    given = request.params.get("arguments")
    if isinstance(given, str) and len(given) > SHORT_BYTES:
        arguments = await asyncio.to_thread(read_arguments, given)
    else:
        arguments = read_arguments(given)
    staging = prepare_inputs(
        arguments,
        spec=spec,
        user=request.user,
        home=place.inputs,
        files=place.files,
        claims=service.claims,
        link=place.link,
        file_delivery=place.file_delivery,
    )
    async with staging as inputs:
        request.steps.inputs = inputs.files
        if service.events.heard(user=request.user.segment, session=request.facts.session_id):
            listener.publish({"type": "tool_start", "arguments": inputs.shown()})
        request.steps.done("stage")
        executed = await execute(inputs)
        try:
            return await settle(service, request, spec, place, listener, executed)
        finally:
            executed.release()


async def settle(
    service: Service,
    request: Request,
    spec: ToolSpec,
    place: CallFiles,
    listener: CallListener,
    executed: Executed,
) -> Completed:
    """Do steps 6 to 9 of a call: normalise, end, collect, route.

    Args:
        service: What serves the call.
        request: The call.
        spec: Its tool.
        place: Where its files are.
        listener: Who heard of it.
        executed: What came of it.
    """
    wire = executed.wire
    if executed.interim is not None:
        return interim_of(executed.interim, spec)
    question = question_of(wire)
    if question is not None:
        return interim_of(question, spec)
    if executed.is_long:
        normalised = await asyncio.to_thread(_normalise, service.settings, wire, spec)
    else:
        normalised = _normalise(service.settings, wire, spec)
    left = executed.left.of(normalised) if executed.left is not None else ()
    if left or any(map(normalised.value.get, FILE_LISTS)):
        # Outputs are read now, and no process of the call may go on to change them.
        request.steps.done("normalise")
        await executed.at_rest()
        request.steps.done("end")
    processed = await process_artifacts(
        normalised,
        home=place.outputs,
        inline_max_bytes=request.inline_max_bytes,
        max_bytes=service.settings.max_artifact_bytes,
        keep=_keep(place.files),
    )
    if left and executed.left is not None:
        processed = await executed.left.keep(processed, left)
    if place.outputs is not None:
        processed = await with_earlier(processed, wire, place.outputs, place.files)
    request.steps.done("collect")
    return Completed(processed=_annotated(processed, listener, executed.facts), wire=wire, spec=spec)


def question_of(wire: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a result asks its client for, if it does: the rest of it would get past the contract."""
    if wire.get("resultType") != "input_required":
        return None
    return {key: wire[key] for key in _QUESTION if key in wire}


def interim_of(said: Mapping[str, Any], spec: ToolSpec | None) -> Completed:
    """Return how a call ends for now whose client gets a question, or the name of a task."""
    return Completed(processed=Processed(value={}), wire=said, spec=spec, interim=said)


async def conclude(
    service: Service,
    request: Request,
    act: Callable[[], Awaitable[Completed]],
    *,
    spec: ToolSpec | None,
    publish: Callable[[Mapping[str, Any]], None],
    through: type[Exception],
) -> Completed:
    """Return how a call ended, an error of the contract included; tell the user's interface, and the log.

    Args:
        service: What serves the call.
        request: The call.
        act: Does it.
        spec: Its tool, where it is known before.
        publish: Takes events of the call for the user's interface.
        through: What a server answered with a JSON-RPC error is raised as; it goes to the client as it is.
    """
    observe = partial(_observe, service, request)
    try:
        try:
            service.observers.check()
            completed = await act()
        except through:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an error of the contract
            completed = await _failed(service, request, error, spec)
    except through:
        observe(None, is_known=spec is not None, outcome="error")
        raise
    except asyncio.CancelledError:
        # Perhaps while its failure was put into words.
        observe(None, is_known=spec is not None, outcome=Code.E_CANCELLED.name)
        raise
    failure, said_no = completed.processed.failure, completed.processed.is_error
    outcome = failure.code.name if failure is not None else "error" if said_no else "ok"
    observe(completed, is_known=completed.spec is not None, outcome=outcome)
    _announce(service, request, completed, publish)
    return completed


async def _failed(service: Service, request: Request, error: Exception, spec: ToolSpec | None) -> Completed:
    """Return the end of a call that has failed, as its client is told it."""
    of_contract = error if isinstance(error, CallError) else None
    if of_contract is not None and of_contract.withheld is not None:
        facts = {"tool": request.tool, **of_contract.withheld}
        log.warning("a tool raised what its client is not told", extra=facts)
    processed = await _failure(service, request, error)
    if of_contract is not None and of_contract.beside:
        processed.value["meta_data"] = {**processed.value["meta_data"], **of_contract.beside}
    said = without_tokens(of_contract.answer) if of_contract is not None and of_contract.answer else {}
    return Completed(processed=processed, wire=said, spec=spec)


def observed(service: Service, request: Request) -> Request:
    """Return a request that the audit log has a first line of, and that gives the tool's server its span.

    Each only where the settings ask for it.
    """
    if not service.observers:
        return request
    request.steps.noted = service.observers.noted(
        request.id,
        user=request.user.name,
        method=request.method,
        tool=request.tool,
        arguments=request.params.get("arguments"),
    )
    span, params = service.observers.began(request.params)
    if span is None:
        return request
    # The steps are the same for both: who reports of them has the request as it came.
    request.steps.span, request.steps.trace = span, params["_meta"].get("traceparent")
    return replace(request, params=params)


def observe_guarded(service: Service, request: Request, outcome: str) -> None:
    """Record a call whose result was only guarded, unless it has been recorded.

    Args:
        service: What served it.
        request: The call.
        outcome: How it ended: `ok`, `error`, or a code.
    """
    _observe(service, request, None, is_known=True, outcome=outcome)


def listener_of(service: Service, request: Request, tool: str | None, deadlines: Deadlines) -> CallListener:
    """Return who listens to a request on behalf of its client.

    Args:
        service: What serves it.
        request: The request.
        tool: The tool that it calls, if it calls one.
        deadlines: How long it may take.
    """
    return CallListener(
        client=request.client,
        params=request.params,
        levels=request.levels,
        deadlines=deadlines if request.is_awaited else replace(deadlines, idle_s=deadlines.total_s),
        user=request.user.segment,
        state=service.state,
        capabilities=request.facts.client_capabilities,
        publish=_publisher(service, request, tool),
        change=partial(_changed, service, request),
        show=partial(_show, service, request),
    )


def file_delivery_of(settings: Settings) -> FileDelivery:
    """Return how files named by `filename` and `filenames` are handed over, as the settings have it."""
    return "url" if settings.file_delivery == "url" else "path"


def _normalise(settings: Settings, wire: Mapping[str, Any], spec: ToolSpec) -> Normalised:
    return normalise(wire, wrapped=spec.wraps_result, results_max_bytes=settings.results_max_bytes)


def _keep(files: MyFiles) -> Keep:
    async def keep(fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool) -> Record:
        origin = Origin.GENERATED if deferral is None else Origin.DEFERRED
        return await files.put(
            fd, name=name, mime=mime, origin=origin, deferral=deferral, temporary=temporary
        )

    return keep


def _annotated(processed: Processed, listener: CallListener, noted: Mapping[str, Any]) -> Processed:
    """Add to `meta_data` what happened on the way, if anything did."""
    facts = {**noted, "notices": list(listener.notices)} if listener.notices else noted
    if facts:
        meta = processed.value.get("meta_data")
        processed.value["meta_data"] = {**(meta if isinstance(meta, Mapping) else {}), **facts}
    return processed


async def _failure(service: Service, request: Request, error: Exception) -> Processed:
    if not isinstance(error, CallError):
        return failed(unexpected(error, call=request.id))
    processed = failed(await _with_nearest_names(service, request, error))
    # Out with the tokens in what a tool said of links that it was given, as it failed.
    return replace(processed, value=without_tokens(processed.value))


async def _with_nearest_names(service: Service, request: Request, error: CallError) -> CallError:
    """Return an error that says, where a file was not found, which of the user's have a name like it."""
    if error.code is not Code.E_FILE_NOT_FOUND:
        return error
    name = str(error.details.get("name"))
    try:
        return file_not_found(name, await service.files(request.user).nearest(name))
    except Exception as fault:
        log.warning("no names like it", exc_info=fault)
        return error


def _publisher(service: Service, request: Request, tool: str | None) -> Callable[[Mapping[str, Any]], None]:
    user, session = request.user.segment, request.facts.session_id
    meta = request.params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, Mapping) else None
    # By its own token an interface knows the calls that it made itself.
    about = {"call": request.id, "tool": tool} | ({} if token is None else {"progress_token": token})

    def publish(event: Mapping[str, Any]) -> None:
        if service.events.heard(user=user, session=session):
            service.events.publish({**without_bytes(dict(event)), **about}, user=user, session=session)

    return publish


async def _show(
    service: Service, request: Request, content: bytes, name: str, mime: str | None
) -> Mapping[str, Any] | None:
    """Keep for a while what a user's interface is shown of a running call, if one listens."""
    if not service.events.heard(user=request.user.segment, session=request.facts.session_id):
        return None
    files = service.files(request.user, trace=request.id)
    try:
        kept = await files.put(content, name=name, mime=mime, origin=Origin.GENERATED, temporary=True)
    except CallError as error:
        log.warning("file of a running call not shown", extra={"problem": error.message})
        return None
    return {"uri": f"artifact://{kept.id}", "size": kept.size, "sha256": kept.sha256}


def _changed(service: Service, request: Request, method: str, uri: object) -> None:
    """Notify the user's subscribed clients of changes that a call made."""
    kind = method.removeprefix("notifications/").removesuffix("/list_changed")
    user, session = request.user.segment, request.user.session
    if kind in ("tools", "prompts", "resources"):
        service.events.publish({"type": LIST_CHANGED, "list": kind}, user=user, session=session)
    elif kind == "resources/updated" and isinstance(uri, str):
        service.events.publish({"type": UPDATED, "uri": uri}, user=user, session=session)


def _announce(
    service: Service,
    request: Request,
    completed: Completed,
    publish: Callable[[Mapping[str, Any]], None],
) -> None:
    """Send the user's interface events on the files of a result, if one listens."""
    if not service.events.heard(user=request.user.segment, session=request.facts.session_id):
        return
    value = referenced(completed.processed)
    for event in announce(value, decide(value, allowed_origins=service.settings.iframe_origins)):
        publish(event)


def _observe(
    service: Service, request: Request, completed: Completed | None, *, is_known: bool, outcome: str
) -> None:
    """Record the call in the log and notify observers. Idempotent."""
    if request.steps.is_told:
        return
    request.steps.is_told = True
    steps, processed = request.steps, completed.processed if completed is not None else None
    files = 0 if processed is None else len(processed.files)
    took, now = steps.elapsed_s(), time.time()
    line = CallLine(
        call=request.id,
        user=request.user.name,
        tool=request.tool,
        outcome=outcome,
        ended=now,
        elapsed_ms=round(took * 1000, 1),
        files=files,
        generated=len(steps.generated),
    )
    # It holds what the call was given for as long as nobody has been told, so it is made for those who ask.
    record = None
    if service.observers:
        record = partial(
            _record,
            service,
            request,
            files=() if processed is None else (*processed.files, *processed.deferred),
            is_known=is_known,
            outcome=outcome,
            # What comes after is no step of the call, but of its answer.
            laps=steps.since_begin(),
            took=took,
            now=now,
        )
    service.observers.call_ended(line, record, steps.span, steps.noted)


def _record(
    service: Service,
    request: Request,
    *,
    files: Sequence[ArtifactFile],
    is_known: bool,
    outcome: str,
    laps: Sequence[tuple[str, float]],
    took: float,
    now: float,
) -> CallRecord:
    """Return what is noted of a call that has ended."""
    steps, ours = request.steps, request.steps.outcome
    return CallRecord(
        id=request.id,
        user=request.user.name,
        tool=request.tool if is_known else request.tool[:MOST_NAME_CHARS],
        is_known=is_known,
        method=request.method,
        outcome=outcome,
        began=now - took,
        elapsed_s=took,
        steps=laps,
        arguments=request.params.get("arguments"),
        inputs=[FileFacts(sha256=file.sha256, size=file.size) for file in steps.inputs],
        outputs=[FileFacts(sha256=file.sha256, size=file.size) for file in files],
        generated=[FileFacts(id=file.id, sha256=file.sha256, size=file.size) for file in steps.generated],
        tier=service.tier.value if ours is not None else None,
        worker=None if ours is None else "fresh" if steps.is_fresh else "kept",
        denials=[
            (operation(denial.operation), denial.layer) for denial in (() if ours is None else ours.denials)
        ],
    )
