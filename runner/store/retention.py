"""Retention decisions: quotas, lifetimes and eviction as pure functions with time as an argument.

Observations have a lifetime and budgets for each session and each trace; if a budget is full, the
oldest or the least recently used ones are evicted, or the new one is refused. Files have a quota for each
user, and are never evicted.

Source: requirements S4-103 and S4-104; contradiction C14; rules ST1 to ST3 of the conformance cases;
architecture, decision "Retention".
"""

import enum
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.errors import CallError, Code, UsageError
from runner.store.entries import Entry
from runner.store.protocol import Put, Reason, Removal

__all__ = [
    "Budgets",
    "Cleanup",
    "Quota",
    "RetentionRules",
    "RetentionSettings",
    "budgets_of",
    "check_count",
    "check_quota",
    "ends_at",
    "has_ended",
    "log_removals",
    "make_room",
]

_MIB = 1024 * 1024
_GIB = 1024 * _MIB

_log = logging.getLogger(__name__)


class Cleanup(enum.Enum):
    """The eviction rule for observations when a budget is full."""

    LRU = "lru"
    FIFO = "fifo"
    NONE = "none"


class RetentionSettings(BaseModel):
    """Lifetime and size of observations, as `output_guard.retention` of runner.toml gives them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ttl_seconds: float = Field(3600.0, ge=0, allow_inf_nan=False, description="Lifetime; 0: for ever.")
    max_session_bytes: int = Field(500 * _MIB, gt=0, description="All of one session; a call has a fifth.")


class Budgets(RetentionSettings):
    """Lifetime and budgets of observations: each, of one call (trace) and of one session."""

    max_artifact_bytes: int = 50 * _MIB
    max_trace_bytes: int = 100 * _MIB
    max_artifacts_per_trace: int = 100
    max_artifacts_per_session: int = 1000
    cleanup_strategy: Cleanup = Cleanup.LRU


def budgets_of(section: Mapping[str, Any]) -> Budgets:
    """Return the store's budgets according to a section `output_guard`.

    Raises:
        UsageError: It has an invalid value.
    """
    try:
        found = RetentionSettings.model_validate(section.get("retention", {}))
    except ValidationError as error:
        fault = error.errors()[0]
        name = ".".join(map(str, ("output_guard.retention", *fault["loc"])))
        raise UsageError(f"{name}: {fault['msg']} (got {fault['input']!r})") from None
    size = found.max_session_bytes
    return Budgets(**found.model_dump(), max_artifact_bytes=size // 10, max_trace_bytes=size // 5)


@dataclass(slots=True, kw_only=True)
class Quota:
    """Limits for files. A change while a store uses them applies from the next file on.

    A server has the values of the settings `max_user_bytes` and `max_file_age_s`.

    Attributes:
        max_file_bytes: Size of the largest file.
        max_user_bytes: Total of one user's files; equal content counts once.
        max_user_files: Number of one user's files; each name of a content counts.
        max_age_s: Age at which a file expires, in seconds since its last put; None: never.
    """

    max_file_bytes: int = 50 * _GIB
    max_user_bytes: int = 200 * _GIB
    max_user_files: int = 50_000
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    """The rules of both classes."""

    observations: Budgets = field(default_factory=Budgets)
    files: Quota = field(default_factory=Quota)


def ends_at(about: Put, *, now: datetime, rules: RetentionRules) -> datetime | None:
    """Return the last moment at which an artifact put now is found; None: it never expires."""
    is_file = about.is_file
    ttl_s = rules.files.max_age_s if is_file else rules.observations.ttl_seconds
    if ttl_s is None or ttl_s <= 0:
        return about.expires_at
    lifetime = now + timedelta(seconds=ttl_s)
    return lifetime if about.expires_at is None else min(lifetime, about.expires_at)


def has_ended(expires_at: datetime | None, *, now: datetime) -> bool:
    """Return whether something has expired; at its last moment it has not."""
    return expires_at is not None and now > expires_at


def make_room(
    size: int, trace: str | None, held: Sequence[Entry], budgets: Budgets
) -> list[tuple[Entry, Reason]]:
    """Return the observations to remove, in order, before one of `size` bytes is added.

    Args:
        size: Its length in bytes.
        trace: The call it comes from; without one no trace budget applies.
        held: All observations of its session, without those that it replaces, the first to go first.
        budgets: The budgets.

    Raises:
        CallError: `E_QUOTA`: it is larger than a budget, or there is no room and nothing may be evicted.
    """
    _check_size(size, trace, budgets)
    going: dict[str, tuple[Entry, Reason]] = {}
    if trace is not None:
        own = [item for item in held if item.record.scope.trace_id == trace]
        limits = budgets.max_trace_bytes, budgets.max_artifacts_per_trace
        for item in _surplus(size, own, *limits, budgets.cleanup_strategy, "trace"):
            going[item.key] = (item, Reason.TRACE_BUDGET)
    left = [item for item in held if item.key not in going]
    limits = budgets.max_session_bytes, budgets.max_artifacts_per_session
    for item in _surplus(size, left, *limits, budgets.cleanup_strategy, "session"):
        going[item.key] = (item, Reason.SESSION_BUDGET)
    return list(going.values())


def check_count(count: int, quota: Quota) -> None:
    """Refuse a file of a user who has `count` files: every listing and every put reads all their records.

    Raises:
        CallError: `E_QUOTA`.
    """
    if count >= quota.max_user_files:
        raise CallError(
            Code.E_QUOTA,
            f"This user has {count} files in My Files, and the limit is {quota.max_user_files}; remove files "
            "and try again",
            details={"files": count, "limit_files": quota.max_user_files},
        )


def check_quota(size: int, used_bytes: int, quota: Quota) -> None:
    """Refuse a file that is too large, or that does not fit into its user's quota.

    Args:
        size: Its length in bytes.
        used_bytes: Bytes that the user has stored already, without this content.
        quota: The quota.

    Raises:
        CallError: `E_FILE_TOO_LARGE` or `E_QUOTA`.
    """
    if size > quota.max_file_bytes:
        raise CallError(
            Code.E_FILE_TOO_LARGE,
            f"a file of {size} bytes is above the limit of {quota.max_file_bytes} bytes for one file "
            "(max_artifact_bytes)",
            details={"file_size_bytes": size, "current_limit_bytes": quota.max_file_bytes},
        )
    if used_bytes + size > quota.max_user_bytes:
        raise CallError(
            Code.E_QUOTA,
            f"This user's files in My Files hold {used_bytes} bytes; {size} more would exceed the limit of "
            f"{quota.max_user_bytes} (max_user_bytes); remove files and try again",
            details={"used_bytes": used_bytes, "file_size_bytes": size, "limit_bytes": quota.max_user_bytes},
        )


def _check_size(size: int, trace: str | None, budgets: Budgets) -> None:
    limits = {"one artifact": budgets.max_artifact_bytes, "a whole session": budgets.max_session_bytes}
    if trace is not None:
        limits["a whole trace"] = budgets.max_trace_bytes
    for what, limit in limits.items():
        if size > limit:
            message = f"an artifact of {size} bytes is above the limit of {limit} bytes for {what}"
            raise CallError(Code.E_QUOTA, message, details={"size_bytes": size, "limit_bytes": limit})


def _surplus(
    size: int, held: Sequence[Entry], max_bytes: int, max_count: int, cleanup: Cleanup, what: str
) -> list[Entry]:
    """Return the observations to evict, so that one more of `size` bytes is within both limits."""
    bytes_left, count_left = sum(item.record.size for item in held), len(held)
    going: list[Entry] = []
    queue = iter(held)
    while bytes_left + size > max_bytes or count_left + 1 > max_count:
        oldest = None if cleanup is Cleanup.NONE else next(queue, None)
        if oldest is None:
            raise CallError(
                Code.E_QUOTA,
                f"the {what} holds {count_left} artifacts of {bytes_left} bytes and has reached its limit "
                f"of {max_count} artifacts or {max_bytes} bytes",
                details={"limit_artifacts": max_count, "limit_bytes": max_bytes},
            )
        going.append(oldest)
        bytes_left -= oldest.record.size
        count_left -= 1
    return going


def log_removals(removals: Iterable[Removal]) -> None:
    """Log the automatic removals of a store, each with its reason."""
    for removal in removals:
        # The name is as private as the content.
        facts = {"artifact": removal.what, "size": removal.size, "reason": removal.reason.value}
        _log.info("artifact removed", extra=facts)
