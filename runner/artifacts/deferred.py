"""Deferred artifacts: files that a call keeps for later calls instead of returning them.

Pure functions: they convert a tool's entry into metadata for My Files and into the item of the result.

Source: document 001, section 7; requirements S1-76 to S1-87; rules DF1 and DF2 of the conformance cases.
"""

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from runner.files.my_files import Deferral

__all__ = ["DEFAULT_HOURS", "MAX_HOURS", "deferral", "described"]

_log = logging.getLogger(__name__)

DEFAULT_HOURS = 72.0
MAX_HOURS = 10 * 366 * 24.0
"""Ten years: a file to be kept longer is not deferred, and dates have a maximum."""

_TEXT_MAX_CHARS = 200
_MAX_ACTIONS = 20


def deferral(entry: Mapping[str, Any], *, now: datetime) -> Deferral:
    """Return a deferred artifact's declared retention, with defaults for invalid values."""
    reason = entry.get("reason")
    actions = entry.get("next_actions")
    return Deferral(
        expires_at=now + timedelta(hours=_hours(entry)),
        reason=reason[:_TEXT_MAX_CHARS] if isinstance(reason, str) else None,
        next_actions=tuple(
            action[:_TEXT_MAX_CHARS]
            for action in (actions if isinstance(actions, list) else [])[:_MAX_ACTIONS]
            if isinstance(action, str)
        ),
    )


def described(entry: Mapping[str, Any], wanted: Deferral) -> dict[str, Any]:
    """Return the item of a result that describes a deferred artifact."""
    end = wanted.expires_at.astimezone(UTC).replace(tzinfo=None)
    return {**entry, "status": "deferred", "expires_at": f"{end.isoformat(timespec='seconds')}Z"}


def _hours(entry: Mapping[str, Any]) -> float:
    hours = entry.get("expires_hours")
    if hours is None:
        return DEFAULT_HOURS
    if isinstance(hours, bool) or not isinstance(hours, int | float) or not 0 < hours < math.inf:
        name = entry.get("name")
        detail = f"deferred file {name!r}: expires_hours is not a positive number, taken as {DEFAULT_HOURS:g}"
        _log.warning("tool result repaired", extra={"detail": detail})
        return DEFAULT_HOURS
    return float(min(hours, MAX_HOURS))
