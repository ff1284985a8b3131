"""Observers of each call's end: the log, and the audit log, metrics and spans if they are configured."""

import asyncio
import contextvars
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

from runner.observation.audit_log import AuditLog
from runner.observation.call_record import CallRecord
from runner.observation.metrics import Metrics
from runner.settings.parts import ObservationSettings

if TYPE_CHECKING:
    from runner.observation.spans import CallSpan, Spans

__all__ = ["Observers", "has_collector"]

log = logging.getLogger(__name__)

_SYNC_S = 1.0
# After the answer is sent, and long enough for a busy host to record many calls in one batch, which halves
# the time for each.
_RECORD_S = 0.1


@dataclass(slots=True, kw_only=True, eq=False)
class Observers:
    """The observers of one server, made with `of`; without any, calls are only logged."""

    audit: AuditLog | None = None
    metrics: Metrics | None = None
    spans: "Spans | None" = None
    _ended: "list[tuple[CallRecord, CallSpan | None, str | None]]" = field(default_factory=list)
    _timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, settings: ObservationSettings) -> Self:
        """Return the observers that are configured.

        Raises:
            UsageError: The folder of the audit log cannot be used.
        """
        return cls(
            spans=_spans() if has_collector(os.environ) else None,
            audit=None if settings.audit_dir is None else AuditLog(settings.audit_dir),
            metrics=None if settings.metrics_address is None else Metrics(),
        )

    def begin_line(self, facts: Mapping[str, str], arguments: object) -> Callable[[], str] | None:
        """Schedule the first line of a call, to be written while its worker runs: no call waits for it.

        Return a function that writes it now if it is not written yet, and returns the arguments' digest.
        """
        if self.audit is None:
            return None
        begin = cache(partial(self.audit.begin, facts, arguments))
        asyncio.get_running_loop().call_soon(begin)
        return begin

    def call_ended(
        self, record: CallRecord, span: "CallSpan | None" = None, begin: Callable[[], str] | None = None
    ) -> None:
        """Record a call once its answer is sent: no client waits for a record or a span.

        Its `begin` line in the audit log is written first, if it is not written yet.
        """
        self._ended.append((record, span, None if begin is None else begin()))
        if self._timer is None:
            # Without the context of this call: log records of the whole batch must not have its id.
            self._timer = asyncio.get_running_loop().call_later(
                _RECORD_S, self.record_ended, context=contextvars.Context()
            )

    def record_ended(self) -> None:
        """Record all calls that have ended, before a scrape or the end of the server."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended, self._ended = self._ended, []
        if self.audit is not None:
            self.audit.calls_ended((record, digest) for record, _, digest in ended if digest is not None)
        for record, span, _ in ended:
            # A failure for one call must not affect the others.
            try:
                record.log_end()
                if self.metrics is not None:
                    self.metrics.call_ended(record)
                if self.spans is not None and span is not None:
                    self.spans.end(span, record)
            except Exception:
                log.exception("call record failed", extra={"call": record.id})

    def logins_refused(self, count: int, facts: Mapping[str, Any]) -> None:
        """Record tokens and keys that were refused; the facts are for the audit log."""
        if self.audit is not None:
            self.audit.add({"kind": "refused logins", "count": count, **facts})
        if self.metrics is not None:
            self.metrics.logins_refused(count)

    def faults(self) -> Mapping[str, str]:
        """Return the reasons why calls are refused now, or soon will be."""
        fault = None if self.audit is None else self.audit.fault
        return {} if fault is None else {"audit": f"the audit log cannot be written: {fault}"}

    async def run(self) -> None:
        """Sync the audit log each second, in a thread, until cancelled."""
        while self.audit is not None:
            await asyncio.sleep(_SYNC_S)
            self.audit.flush()
            await asyncio.to_thread(self.audit.sync)

    def close(self) -> None:
        """Write and send pending records, and close the files."""
        try:
            if self.audit is not None:
                self.audit.close()
        finally:
            if self.spans is not None:
                self.spans.close()


def has_collector(environment: Mapping[str, str]) -> bool:
    """Return whether the standard variables name a collector, and do not disable traces."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    exporter = environment.get("OTEL_TRACES_EXPORTER", "otlp").strip()
    return any(map(environment.get, names)) and exporter in ("", "otlp")


def _spans() -> "Spans | None":
    try:
        # Only here: a server without a collector needs none of it.
        from runner.observation.spans import Spans  # noqa: PLC0415
    except ImportError as error:
        # The variable may be set for other programs.
        log.warning("spans unavailable", extra={"fault": str(error), "cure": "pip install 'toolcell[otel]'"})
        return None
    return Spans(version("toolcell"))
