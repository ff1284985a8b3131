"""Values passed between the steps of a call: the request, its files, its stopwatch, its end."""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from runner.artifacts.accept import Processed
from runner.artifacts.named_file import OpenHome
from runner.contract.normalise import Normalised
from runner.files.my_files import MyFiles
from runner.formats.database_logs import LogBudget
from runner.homes.changes import ChangedFile
from runner.homes.homes import HomeLease
from runner.settings.named_limits import Counted
from runner.steps.inputs import FileDelivery, Link
from runner.steps.listener import Client, ToolRequests
from runner.store.protocol import Record
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User
from runner.worker.wire import RequestFacts
from sandbox.call_value import call_value
from sandbox.outcome import Outcome

if TYPE_CHECKING:
    # It imports the SDK of OpenTelemetry.
    from runner.observation.spans import CallSpan

__all__ = [
    "REPORT",
    "SHORT_BYTES",
    "CallFiles",
    "Completed",
    "Executed",
    "Request",
    "Steps",
    "UnreturnedFiles",
    "question_of",
    "wants_report",
]

REPORT = "toolcell/report"
"""Key of `_meta` by which a request asks for a report, and under which the result carries it."""

SHORT_BYTES = 64 * 1024
"""Longer answers are read in a thread, so that they do not hold up other calls."""

_QUESTION = ("resultType", "inputRequests", "requestState")


@dataclass(slots=True)
class Steps:
    """A stopwatch with a name for each lap, and facts about the call.

    Attributes:
        outcome: The outcome of the worker, once it ended.
        is_fresh: Whether the worker had served no call before.
        goes_on: Whether background work continues between calls; None unless it was requested or does.
        inputs: The user's files that were passed to the tool.
        generated: Stored files that the tool wrote and did not return.
        logs: Bytes of logs beside databases that may still be read for it.
        trace: The call's span, as a `traceparent`, if spans are made.
        span: The call's span for OpenTelemetry, if spans are made.
        begin: Writes the first line of the call to the audit log; returns the digest of its arguments.
        laps: End of each step, in seconds since the first began; a repeated step has several entries.
        approval: Approval of the call, if it needed one, as in the audit log.
    """

    outcome: Outcome | None = None
    is_fresh: bool = True
    goes_on: bool | None = None
    inputs: Sequence[Record] = ()
    generated: list[Record] = field(default_factory=list)
    logs: LogBudget = field(default_factory=LogBudget)
    trace: str | None = None
    span: "CallSpan | None" = None
    begin: Callable[[], str] | None = None
    laps: list[tuple[str, float]] = field(default_factory=list)
    approval: str | None = None
    _began: float = field(default_factory=time.perf_counter)

    def done(self, step: str) -> None:
        """Record the duration since the previous step."""
        self.laps.append((step, time.perf_counter() - self._began))

    def elapsed_s(self) -> float:
        """Return the seconds since the first step began."""
        return time.perf_counter() - self._began

    @property
    def elapsed_ms(self) -> float:
        """Return the milliseconds since the call began."""
        return round(self.elapsed_s() * 1000, 1)

    def in_ms(self) -> dict[str, float]:
        """Return the duration of each step in milliseconds, in order."""
        laps: dict[str, float] = {}
        before = 0.0
        for step, done in self.laps:
            laps[step] = laps.get(step, 0.0) + done - before
            before = done
        return {step: round(took * 1000, 3) for step, took in laps.items()}

    def spans(self) -> dict[str, Any]:
        """Return the call's span and those below it, for a report; nothing where spans are not made."""
        if self.trace is None:
            return {}
        below, before = [], 0.0
        for step, done in self.laps:
            below.append(
                {
                    "name": step,
                    "start_ms": round(before * 1000, 3),
                    "took_ms": round((done - before) * 1000, 3),
                }
            )
            before = done
        return {"trace": self.trace, "spans": below}


@call_value
class Request:
    """One MCP request as it reached the host.

    Attributes:
        user: The user it comes from.
        method: The MCP method.
        params: Its params, as on the wire.
        facts: Facts about it that the tool may read.
        client: Receives its notifications while it runs.
        levels: Levels of log messages that the client requested.
        inline_max_bytes: Largest artifact that the caller wants inside the result.
        is_awaited: Whether its client waits for the answer: then silence ends the call.
        id: Our id, on every log record of the call.
        begins: Awaited just before code of the tool runs; an exception prevents the run.
        steps: Durations of the steps, and other facts.
        counted: The named limits that it counts towards, once they have been looked up.
        tools: Answers requests for tools of this server from its code; None if it may send none.
        tool: Name of the called tool, as its client knows it.
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
    begins: Callable[[], Awaitable[None]] | None = None
    steps: Steps = field(default_factory=Steps)
    counted: Sequence[Counted] = ()
    tools: ToolRequests | None = None
    tool: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tool", str(self.params.get("name")))


@call_value
class Completed:
    """The end of a tool call.

    Attributes:
        processed: The contract value and its files.
        wire: The tool's own result as its server put it on the wire; empty without one.
        spec: The tool, if it is known.
        interim: A message that is sent to the client unchanged: a question, a task that was started, or a
            result that has only been guarded.
    """

    processed: Processed
    wire: Mapping[str, Any]
    spec: ToolSpec | None
    interim: Mapping[str, Any] | None = None

    @classmethod
    def for_now(cls, interim: Mapping[str, Any], spec: ToolSpec | None) -> "Completed":
        """Return the end of a call whose client gets a message that is not derived from a contract value."""
        value = {"meta_data": {"is_error": True}} if interim.get("isError") else {}
        return cls(processed=Processed(value=value), wire=interim, spec=spec, interim=interim)


@call_value
class CallFiles:
    """The places a call reads its files from and writes them to.

    Attributes:
        files: My Files of its user.
        inputs: The home that input files are staged into, if there is one.
        outputs: The home whose files the tool may name in its result, if there is one.
        link: Makes the download link of a file that the tool can fetch.
        file_delivery: Delivery of files named by `filename` and `filenames`: a path, unless `url`.
    """

    files: MyFiles
    inputs: HomeLease | None
    outputs: OpenHome | None
    link: Link
    file_delivery: FileDelivery = "path"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreturnedFiles:
    """Files that a call has changed and does not return.

    Attributes:
        of: Returns the files that are not in a result.
        keep: Stores them, or only lists them, in a result.
    """

    of: Callable[[Normalised], Sequence[ChangedFile]]
    keep: Callable[[Processed, Sequence[ChangedFile]], Awaitable[Processed]]


@call_value
class Executed:
    """The result of an executed tool, and the functions that collect its files.

    Attributes:
        wire: Its result as on the wire.
        is_long: Whether it is so long that it is read in a thread.
        quiesce: Waits until no process of the call can change its outputs; None if none could.
        facts: Entries for `meta_data`.
        unreturned: The files that it changed and did not return, if there may be any.
    """

    wire: Mapping[str, Any]
    is_long: bool = False
    quiesce: Callable[[], Awaitable[None]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    unreturned: UnreturnedFiles | None = None


def question_of(wire: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the question of a result to its client, if any; other keys would bypass the contract."""
    if wire.get("resultType") != "input_required":
        return None
    return {key: wire[key] for key in _QUESTION if key in wire}


def wants_report(params: Mapping[str, object]) -> bool:
    """Return whether a request wants a timing report."""
    meta = params.get("_meta")
    return isinstance(meta, Mapping) and meta.get(REPORT) is True
