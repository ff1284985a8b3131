"""One tool call, from its arguments to its recorded end, for all executors.

Two classes execute it: `runner.call.FileCall` in a worker, perhaps of a fleet, and
`runner.proxy.calls.UpstreamCall` at another server.

Source: architecture, "One call, in order"; `docs/decisions/0033-one-spine-for-two-executors.md`.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from runner.artifacts.accept import failed, process_artifacts
from runner.artifacts.generated import with_earlier
from runner.contract.display import decide
from runner.contract.error_messages import file_not_found
from runner.contract.interface_events import announce
from runner.contract.jsonable import mapping_of
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import normalise
from runner.contract.unexpected_errors import unexpected
from runner.errors import CallError, Code
from runner.files.download_links import without_tokens
from runner.files.my_files import Deferral
from runner.observation.call_record import MOST_NAME_CHARS, CallRecord, FileFacts, operation
from runner.steps.approval import hold_of
from runner.steps.client_message import referenced
from runner.steps.inputs import Inputs, prepare_inputs, read_arguments
from runner.steps.listener import CallListener
from runner.steps.request import (
    SHORT_BYTES,
    CallFiles,
    Completed,
    Executed,
    Request,
    question_of,
)
from runner.steps.updates import without_bytes
from runner.store.protocol import Origin, Record
from runner.toolset.call_services import CallServices
from runner.toolset.catalog import ToolSpec
from runner.users.events import LIST_CHANGED, UPDATED
from sandbox.deadlines import Deadlines

__all__ = ["Call", "listener_of", "observed"]

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Call(ABC):
    """One `tools/call`, from its arguments to its recorded end.

    Attributes:
        service: Services of the server.
        request: The call.
        listener: Receives notifications and requests while it runs.
        spec: Its tool, once it is known.
    """

    service: CallServices
    request: Request
    listener: CallListener
    spec: ToolSpec | None = None

    passed_on: ClassVar[type[Exception]]
    """Error that carries a JSON-RPC error of the tool's server, which is sent to the client unchanged."""

    @abstractmethod
    async def execute(self) -> Completed:
        """Authorise, admit, stage, execute and collect.

        Raises:
            CallError: It ended with an error of the contract.
        """

    async def run(self) -> Completed:
        """Return the end of the call, or an error of the contract as one; record it and publish its files.

        Raises:
            Exception: `passed_on`.
        """
        # The outcome of a call that does not get to its end is a cancellation.
        completed, outcome = None, Code.E_CANCELLED.name
        try:
            try:
                if (audit := self.service.observers.audit) is not None:
                    # A call that could not be recorded is refused.
                    audit.check()
                completed = await self.execute()
            except self.passed_on:
                outcome = "error"
                raise
            except Exception as error:  # noqa: BLE001 - the client gets an error of the contract
                completed = await self._failed(error)
            failure = completed.processed.failure
            if failure is not None:
                outcome = failure.code.name
            else:
                outcome = "error" if completed.processed.is_error else "ok"
        finally:
            is_known = (self.spec if completed is None else completed.spec) is not None
            _record_end(self.service, self.request, outcome, completed, is_known=is_known)
        if _is_watched(self.service, self.request):
            value = referenced(completed.processed)
            places = self.service.settings.iframe_origins
            for event in announce(value, decide(value, allowed_origins=places)):
                self.listener.publish(event)
        return completed

    async def when_approved(
        self,
        act: Callable[[], Awaitable[Completed]],
        *,
        places: Callable[[], Sequence[tuple[str, str]]],
        may_destroy: bool,
    ) -> Completed:
        """Execute the call if no rule of the operator holds it, or once a person has approved it.

        Args:
            act: Executes it. Resources that a held call must not occupy are acquired within it.
            places: Returns the targets of the server, each as a name for people and in full; an approval
                applies to these.
            may_destroy: Whether its tool counts as destructive.

        Raises:
            CallError: It is not approved, or `act` raises it.
        """
        # Most servers have no rules.
        if not self.service.settings.approvals:
            return await act()
        hold = await hold_of(
            self.service,
            self.request,
            places=places(),
            may_destroy=may_destroy,
            is_listed=self.spec is not None,
        )
        if hold is None:
            return await act()
        self.request, question = await hold.pass_on(self.request, self.listener)
        if question is not None:
            return Completed.for_now(question, self.spec)
        return hold.followed(self.request, await act())

    @asynccontextmanager
    async def staged(self, spec: ToolSpec, place: CallFiles) -> AsyncIterator[Inputs]:
        """Yield the arguments of the call for its tool, with their files in place.

        Raises:
            CallError: The arguments are not an object, or a file cannot be staged.
        """
        raw_arguments, request = self.request.params.get("arguments"), self.request
        if isinstance(raw_arguments, str) and len(raw_arguments) > SHORT_BYTES:
            arguments = await asyncio.to_thread(read_arguments, raw_arguments)
        else:
            arguments = read_arguments(raw_arguments)
        staging = prepare_inputs(
            arguments,
            spec=spec,
            user=request.user,
            home=place.inputs,
            files=place.files,
            claims=self.service.claims,
            link=place.link,
            file_delivery=place.file_delivery,
        )
        async with staging as inputs:
            request.steps.inputs = inputs.files
            if _is_watched(self.service, request):
                self.listener.publish({"type": "tool_start", "arguments": inputs.shown()})
            request.steps.done("stage")
            yield inputs

    async def collected(self, spec: ToolSpec, place: CallFiles, executed: Executed) -> Completed:
        """Return a tool's result by the contract, its files stored: normalise, quiesce, collect, route."""
        wire, steps = executed.wire, self.request.steps
        if (interim := question_of(wire)) is not None:
            return Completed.for_now(interim, spec)
        normalised_of = partial(normalise, wire, wrapped=spec.wraps_result)
        normalised = await asyncio.to_thread(normalised_of) if executed.is_long else normalised_of()
        unreturned = executed.unreturned
        left = () if unreturned is None else unreturned.of(normalised)
        if left or any(map(normalised.value.get, FILE_LISTS)):
            # Outputs are read next, so no process of the call may still change them.
            steps.done("normalise")
            if executed.quiesce is not None:
                await executed.quiesce()
            steps.done("end")

        async def keep(
            fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool
        ) -> Record:
            origin = Origin.GENERATED if deferral is None else Origin.DEFERRED
            return await place.files.put(
                fd, name=name, mime=mime, origin=origin, deferral=deferral, temporary=temporary
            )

        processed = await process_artifacts(
            normalised,
            home=place.outputs,
            inline_max_bytes=self.request.inline_max_bytes,
            max_bytes=self.service.settings.max_artifact_bytes,
            keep=keep,
            logs=steps.logs,
        )
        if left and unreturned is not None:
            processed = await unreturned.keep(processed, left)
        if place.outputs is not None:
            processed = await with_earlier(processed, wire, place.outputs, place.files)
        steps.done("collect")
        notices = {"notices": list(self.listener.notices)} if self.listener.notices else {}
        if executed.facts or notices:
            known = mapping_of(processed.value.get("meta_data"))
            processed.value["meta_data"] = {**known, **executed.facts, **notices}
        return Completed(processed=processed, wire=wire, spec=spec)

    async def _failed(self, error: Exception) -> Completed:
        """Return the end of a failed call for its client."""
        if not isinstance(error, CallError):
            processed = failed(unexpected(error, call=self.request.id))
            return Completed(processed=processed, wire={}, spec=self.spec)
        if error.withheld is not None:
            facts = {"tool": self.request.tool, **error.withheld}
            log.warning("tool error withheld from client", extra=facts)
        beside, answer = error.beside, error.answer
        if error.code is Code.E_FILE_NOT_FOUND:
            name = str(error.details.get("name"))
            try:
                error = file_not_found(name, await self.service.files(self.request.user).nearest(name))
            except Exception as fault:
                log.warning("no names like it", exc_info=fault)
        processed = failed(error)
        # A failed tool may name links from its arguments; clients must not get their tokens.
        processed = replace(processed, value=without_tokens(processed.value))
        if beside:
            processed.value["meta_data"] = {**processed.value["meta_data"], **beside}
        return Completed(processed=processed, wire=without_tokens(answer) if answer else {}, spec=self.spec)


def listener_of(
    service: CallServices, request: Request, tool: str | None, deadlines: Deadlines
) -> CallListener:
    """Return the listener of a request on behalf of its client.

    Args:
        service: Services of the server.
        request: The request.
        tool: The tool that it calls, if it calls one.
        deadlines: Its time limits.
    """
    user, session = request.user.segment, request.facts.session_id
    token = mapping_of(request.params.get("_meta")).get("progressToken")
    # An interface recognises its own calls by their progress token.
    about = {"call": request.id, "tool": tool} | ({} if token is None else {"progress_token": token})

    def publish(event: Mapping[str, Any]) -> None:
        if service.events.has_listener(user=user, session=session):
            service.events.publish({**without_bytes(dict(event)), **about}, user=user, session=session)

    return CallListener(
        client=request.client,
        params=request.params,
        levels=request.levels,
        deadlines=deadlines if request.is_awaited else replace(deadlines, idle_s=deadlines.total_s),
        user=user,
        state=service.state,
        capabilities=request.facts.client_capabilities,
        publish=publish,
        change=partial(_changed, service, request),
        show=partial(_show, service, request),
        tools=request.tools,
    )


def _is_watched(service: CallServices, request: Request) -> bool:
    """Return whether an interface of the user receives events of a request."""
    return service.events.has_listener(user=request.user.segment, session=request.facts.session_id)


async def _show(
    service: CallServices, request: Request, content: bytes, name: str, mime: str | None
) -> Mapping[str, Any] | None:
    """Store content that a running call shows in its user's interface, if one is open."""
    if not _is_watched(service, request):
        return None
    files = service.files(request.user, trace=request.id)
    try:
        record = await files.put(content, name=name, mime=mime, origin=Origin.GENERATED, temporary=True)
    except CallError as error:
        log.warning("live file not published", extra={"problem": error.message})
        return None
    return {"uri": f"artifact://{record.id}", "size": record.size, "sha256": record.sha256}


def _changed(service: CallServices, request: Request, method: str, uri: object) -> None:
    """Publish the changes of a call to the user's clients."""
    kind = method.removeprefix("notifications/").removesuffix("/list_changed")
    user, session = request.user.segment, request.user.session
    if kind in ("tools", "prompts", "resources"):
        service.events.publish({"type": LIST_CHANGED, "list": kind}, user=user, session=session)
    elif kind == "resources/updated" and isinstance(uri, str):
        service.events.publish({"type": UPDATED, "uri": uri}, user=user, session=session)


def observed(service: CallServices, request: Request) -> Request:
    """Return a request with its first line in the audit log and a span, each if the settings require it."""
    observers = service.observers
    # Most servers have neither.
    if observers.audit is None and observers.spans is None:
        return request
    facts = {"call": request.id, "user": request.user.name, "method": request.method}
    facts["tool"] = request.tool[:MOST_NAME_CHARS]
    request.steps.begin = observers.begin_line(facts, request.params.get("arguments"))
    if observers.spans is None:
        return request
    span, params = observers.spans.begin(request.params)
    # Both requests share the steps: a report is made from the original one.
    request.steps.span, request.steps.trace = span, params["_meta"].get("traceparent")
    return replace(request, params=params)


def _record_end(
    service: CallServices, request: Request, outcome: str, completed: Completed | None, *, is_known: bool
) -> None:
    """Record the end of a call in the log and for the observers.

    Args:
        service: Services of the server.
        request: The call.
        outcome: `ok`, `error`, or a code of the contract.
        completed: Its end; None if there is none.
        is_known: Whether its tool exists.
    """
    steps, worker_end = request.steps, request.steps.outcome
    files = () if completed is None else completed.processed.files
    deferred = () if completed is None else completed.processed.deferred
    record = CallRecord(
        id=request.id,
        user=request.user.name,
        tool=request.tool if is_known else request.tool[:MOST_NAME_CHARS],
        is_known=is_known,
        method=request.method,
        outcome=outcome,
        elapsed_s=steps.elapsed_s(),
        # A copy: later laps belong to the answer, not to the call.
        steps=tuple(steps.laps),
        inputs=[FileFacts(sha256=file.sha256, bytes=file.size) for file in steps.inputs],
        outputs=[FileFacts(sha256=file.sha256, bytes=file.size) for file in (*files, *deferred)],
        returned=len(files),
        generated=[FileFacts(id=file.id, sha256=file.sha256, bytes=file.size) for file in steps.generated],
        tier=None if worker_end is None else service.tier.value,
        worker=None if worker_end is None else "fresh" if steps.is_fresh else "kept",
        denials=[
            (operation(denial.operation), denial.layer)
            for denial in (() if worker_end is None else worker_end.denials)
        ],
        approval=steps.approval,
    )
    service.observers.call_ended(record, steps.span, steps.begin)
