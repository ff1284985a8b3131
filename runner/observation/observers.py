"""Recorders of ended calls: the log, and audit log, metrics and spans if settings request them."""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

from runner.errors import UsageError
from runner.observation.audit_log import AuditLog, NotedCall
from runner.observation.call_log import CallLine
from runner.observation.call_record import MOST_NAME_CHARS, CallRecord
from runner.observation.metrics import Metrics
from runner.settings.settings import Settings

if TYPE_CHECKING:
    from runner.observation.spans import CallSpan, Spans

__all__ = ["Observers", "audit_log_of"]

log = logging.getLogger(__name__)

_SYNC_S = 1.0
# Later than any answer is on its way, and long enough for a busy host to tell of many calls at once, which
# takes half the time for each.
_TELL_S = 0.1


@dataclass(frozen=True, slots=True)
class _Ended:
    """A call that has ended, and of which nobody has been told.

    Attributes:
        line: The line of the log that it has.
        record: Makes what is noted of it, where somebody is to hear of it.
        span: Its span, where spans are made.
        noted: Its first line in the audit log, if there is one.
    """

    line: CallLine
    record: Callable[[], CallRecord] | None
    span: "CallSpan | None"
    noted: NotedCall | None


def _recorded(ended: _Ended) -> CallRecord | None:
    """Write the line that a call has in the log, and return what is noted of it, if anything is."""
    try:
        ended.line.write()
        return None if ended.record is None else ended.record()
    except Exception:
        log.exception("a call could not be told of", extra={"call": ended.line.call})
        return None


@dataclass(slots=True, kw_only=True, eq=False)
class Observers:
    """Those who hear of calls. Make them with `of`; without any, there is only the log.

    Attributes:
        audit: The audit log.
        metrics: What Prometheus asks for.
        spans: What goes to an OpenTelemetry collector.
    """

    audit: AuditLog | None = None
    metrics: Metrics | None = None
    spans: "Spans | None" = None
    _ended: "list[_Ended]" = field(default_factory=list)
    _telling: "tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None" = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return those that settings ask for.

        Raises:
            UsageError: The folder of the audit log cannot be used, or what spans need is not installed.
        """
        return cls(
            spans=_spans() if settings.spans == "otlp" else None,
            audit=audit_log_of(settings),
            metrics=Metrics() if settings.metrics_address is not None else None,
        )

    def __bool__(self) -> bool:
        """Return whether anybody hears of calls."""
        return not (self.audit is None and self.metrics is None and self.spans is None)

    def check(self) -> None:
        """Refuse a call of which nothing could be recorded.

        Raises:
            CallError: `E_STORE`: the audit log cannot be written.
        """
        if self.audit is not None:
            self.audit.check()

    def began(self, params: Mapping[str, Any]) -> "tuple[CallSpan | None, Mapping[str, Any]]":
        """Return the span of a call that begins, if spans are made, and its params, which then tell of it."""
        return (None, params) if self.spans is None else self.spans.begin(params)

    def noted(self, id_: str, *, user: str, method: str, tool: str, arguments: object) -> NotedCall | None:
        """Write the first line of a call soon: while its worker runs, so that no call waits for it.

        Args:
            id_: The call's.
            user: Who calls.
            method: The MCP method.
            tool: The tool, as its client names it.
            arguments: What the client sent for the tool; for a digest only.
        """
        if self.audit is None:
            return None
        said = {"call": id_, "user": user, "method": method, "tool": tool[:MOST_NAME_CHARS]}
        noted = NotedCall(log=self.audit, said=said, arguments=arguments)
        asyncio.get_running_loop().call_soon(noted.write)
        return noted

    def call_ended(
        self,
        line: CallLine,
        record: Callable[[], CallRecord] | None,
        span: "CallSpan | None" = None,
        noted: NotedCall | None = None,
    ) -> None:
        """Record a call after its answer, with all recorders.

        Of a call without a first line the record is written before.

        Args:
            line: The line of the log that it has.
            record: Makes what is noted of it, where somebody is to hear of it.
            span: Its span, where spans are made.
            noted: Its first line in the audit log, if there is one.
        """
        if noted is not None:
            noted.write()
        elif self.audit is not None and record is not None:
            self.audit.calls_ended([(record(), None)])
        self._ended.append(_Ended(line, record, span, noted))
        loop = asyncio.get_running_loop()
        if self._telling is None or self._telling[0] is not loop:
            # Of no call: what is told of many is not to have the id of one.
            timer = loop.call_later(_TELL_S, self.tell, context=contextvars.Context())
            self._telling = loop, timer

    def tell(self) -> None:
        """Flush the records of ended calls, before a scrape or a shutdown."""
        if self._telling is not None:
            self._telling[1].cancel()
            self._telling = None
        ended, self._ended = self._ended, []
        told = [(one, record) for one in ended if (record := _recorded(one)) is not None]
        if not self:
            return
        if self.audit is not None:
            self.audit.calls_ended((record, one.noted) for one, record in told if one.noted is not None)
        for one, record in told:
            # Whatever one of them makes of a call, the others hear of it, and of those after it.
            try:
                if self.metrics is not None:
                    self.metrics.call_ended(record)
                if self.spans is not None and one.span is not None:
                    self.spans.end(one.span, record)
            except Exception:
                log.exception("a call could not be told of", extra={"call": one.line.call})

    def logins_refused(self, count: int, said: Mapping[str, Any]) -> None:
        """Record refused tokens and keys.

        Args:
            count: How many they are.
            said: Of what kinds they were, from how many addresses, for whom.
        """
        if self.audit is not None:
            self.audit.add({"kind": "refused logins", "count": count, **said})
        if self.metrics is not None:
            self.metrics.logins_refused(count)

    def faults(self) -> Mapping[str, str]:
        """Return the reason why calls cannot be taken now, or will not be before long."""
        fault = None if self.audit is None else self.audit.fault
        return {} if fault is None else {"audit": f"the audit log cannot be written: {fault}"}

    async def run(self) -> None:
        """See to it, until cancelled, that what was recorded is on disk within a second."""
        if self.audit is None:
            return
        while True:
            await asyncio.sleep(_SYNC_S)
            if self.audit.pending:
                self.audit.flush()
            await self.audit.synced()

    def close(self) -> None:
        """Keep what was recorded, and let go of what it takes."""
        try:
            if self.audit is not None:
                self.audit.close()
        finally:
            if self.spans is not None:
                self.spans.close()


def audit_log_of(settings: Settings) -> AuditLog | None:
    """Return the audit log that settings ask for, if they ask for one.

    Raises:
        UsageError: Its folder cannot be used.
    """
    if settings.audit_dir is None:
        return None
    return AuditLog.open(settings.audit_dir)


def _spans() -> "Spans":
    try:
        # Only here: who wants no spans needs none of it.
        from runner.observation.spans import Spans  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f'spans = "otlp" needs the OpenTelemetry SDK, which is not installed ({error}); '
            "pip install 'toolcell[otel]'"
        ) from error
    return Spans(version("toolcell"))
