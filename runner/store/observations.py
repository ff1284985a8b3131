"""How much is kept of observations, as runner.toml says it: for all, and for single tools and servers.

A tool's or a server's own value may be above the general one. The store's rules are then as wide as the
widest, and `runner.output_guard.storing` holds each call to its own.

Source: requirements S4-103 and S4-104; contradiction C14; architecture, decision "Retention".
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.errors import UsageError
from runner.store.retention import Budgets, Cleanup

__all__ = ["Observations", "budgets_of"]

_DEFAULT = Budgets()


class Observations(BaseModel):
    """The budgets of what the output guard keeps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttl_seconds: float = Field(
        _DEFAULT.ttl_s, ge=0, allow_inf_nan=False, description="Lifetime of each; 0: for ever."
    )
    max_artifact_bytes: int = Field(_DEFAULT.max_artifact_bytes, gt=0, description="Largest one.")
    max_session_bytes: int = Field(_DEFAULT.max_session_bytes, gt=0, description="All of one session.")
    max_trace_bytes: int = Field(_DEFAULT.max_trace_bytes, gt=0, description="All of one call.")
    max_artifacts_per_trace: int = Field(
        _DEFAULT.max_artifacts_per_trace, gt=0, description="Number of one call."
    )
    max_artifacts_per_session: int = Field(
        _DEFAULT.max_artifacts_per_session, gt=0, description="Number of one session."
    )
    cleanup_strategy: Literal["lru", "fifo", "none"] = Field(
        "lru", description="Which go where a budget is full: the longest unused, the oldest, or none."
    )


def budgets_of(section: Mapping[str, Any]) -> Budgets:
    """Return the store's budgets that a section `output_guard` asks for.

    Raises:
        UsageError: Something in it is wrong.
    """
    try:
        said = Observations.model_validate(section.get("retention", {}))
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(map(str, ("output_guard.retention", *fault["loc"])))
        raise UsageError(f"{name}: {fault['msg']} (got {fault['input']!r})") from None
    lifetimes = (said.ttl_seconds, *_own(section, "ttl_seconds"))
    return Budgets(
        ttl_s=0.0 if 0 in lifetimes else max(lifetimes),
        max_artifact_bytes=int(max(said.max_artifact_bytes, *_own(section, "max_artifact_bytes"), 0)),
        max_session_bytes=said.max_session_bytes,
        max_trace_bytes=said.max_trace_bytes,
        max_artifacts_per_trace=said.max_artifacts_per_trace,
        max_artifacts_per_session=said.max_artifacts_per_session,
        cleanup=Cleanup(said.cleanup_strategy),
    )


def _own(section: Mapping[str, Any], name: str) -> Iterator[float]:
    """Yield the values that single tools and servers have."""
    for kind in ("tools", "servers"):
        tables = section.get(kind)
        for table in tables.values() if isinstance(tables, Mapping) else ():
            value = table.get(name) if isinstance(table, Mapping) else None
            if isinstance(value, int | float):
                yield value
