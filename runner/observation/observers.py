"""Who hears of each call that has ended: the audit log, metrics, spans; those that the settings ask for."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Self

from runner.errors import UsageError
from runner.observation.audit_log import AuditLog
from runner.observation.call_record import CallRecord
from runner.observation.metrics import Metrics
from runner.settings.model import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from runner.observation.spans import Spans

__all__ = ["Observers", "audit_log_of"]

_SYNC_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class Observers:
    """Those who hear of calls. Make them with `of`; without any, nothing is done.

    Attributes:
        audit: The audit log.
        metrics: What Prometheus asks for.
        spans: What goes to an OpenTelemetry collector.
    """

    audit: AuditLog | None = None
    metrics: Metrics | None = None
    spans: "Spans | None" = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return those that settings ask for.

        Raises:
            UsageError: The folder of the audit log cannot be used, or what spans need is not installed.
        """
        return cls(
            audit=audit_log_of(settings),
            metrics=Metrics() if settings.metrics_address is not None else None,
            spans=_spans() if settings.spans == "otlp" else None,
        )

    def __bool__(self) -> bool:
        """Say whether anybody hears of calls."""
        return not (self.audit is None and self.metrics is None and self.spans is None)

    def check(self) -> None:
        """Refuse a call of which nothing could be recorded.

        Raises:
            CallError: `E_STORE`: the audit log cannot be written.
        """
        if self.audit is not None:
            self.audit.check()

    def began(self, params: Mapping[str, Any], *, began: float) -> "tuple[Span | None, Mapping[str, Any]]":
        """Return the span of a call that begins, if spans are made, and its params, which then tell of it."""
        return (None, params) if self.spans is None else self.spans.begin(params, began=began)

    def call_ended(self, record: CallRecord, span: "Span | None" = None) -> None:
        """Tell all of a call."""
        if self.audit is not None:
            self.audit.call_ended(record)
        # Once the answer is on its way: nobody waits for a number or a span.
        if self.metrics is not None:
            asyncio.get_running_loop().call_soon(self.metrics.call_ended, record)
        if self.spans is not None and span is not None:
            asyncio.get_running_loop().call_soon(self.spans.end, span, record)

    def logins_refused(self, count: int, said: Mapping[str, Any]) -> None:
        """Tell of tokens and keys that were refused.

        Args:
            count: How many they are.
            said: Of what kinds they were, from how many addresses, for whom.
        """
        if self.audit is not None:
            self.audit.add({"kind": "refused logins", "count": count, **said})
        if self.metrics is not None:
            self.metrics.logins_refused(count)

    def faults(self) -> Mapping[str, str]:
        """Say why calls cannot be taken now, or will not be before long."""
        fault = None if self.audit is None else self.audit.fault
        return {} if fault is None else {"audit": f"the audit log cannot be written: {fault}"}

    async def run(self) -> None:
        """See to it, until cancelled, that what was recorded is on disk within a second."""
        while self.audit is not None:
            await asyncio.sleep(_SYNC_S)
            if self.audit.pending:
                self.audit.flush()
            await self.audit.synced()

    def close(self) -> None:
        """Keep what was recorded, and let go of what it takes."""
        if self.audit is not None:
            self.audit.close()
        if self.spans is not None:
            self.spans.close()


def audit_log_of(settings: Settings) -> AuditLog | None:
    """Return the audit log that settings ask for, if they ask for one.

    Raises:
        UsageError: Its folder cannot be used.
    """
    if settings.audit_dir is None:
        return None
    return AuditLog.open(
        settings.audit_dir, max_bytes=settings.audit_max_bytes, max_files=settings.audit_max_files
    )


def _spans() -> "Spans":
    try:
        # Only here: who wants no spans needs none of it.
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter,
        )

        from runner.observation.spans import Spans  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f'spans = "otlp" needs the OpenTelemetry SDK, which is not installed ({error}); '
            "pip install 'toolcell[otel]'"
        ) from error
    return Spans(OTLPSpanExporter(), version=version("toolcell"))
