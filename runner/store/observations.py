"""Budgets of observations, as runner.toml gives them.

Source: requirements S4-103 and S4-104; contradiction C14; architecture, decision "Retention".
"""

from collections.abc import Mapping
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
        settings = Observations.model_validate(section.get("retention", {}))
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(map(str, ("output_guard.retention", *fault["loc"])))
        raise UsageError(f"{name}: {fault['msg']} (got {fault['input']!r})") from None
    return Budgets(
        ttl_s=settings.ttl_seconds,
        max_artifact_bytes=settings.max_artifact_bytes,
        max_session_bytes=settings.max_session_bytes,
        max_trace_bytes=settings.max_trace_bytes,
        max_artifacts_per_trace=settings.max_artifacts_per_trace,
        max_artifacts_per_session=settings.max_artifacts_per_session,
        cleanup=Cleanup(settings.cleanup_strategy),
    )
