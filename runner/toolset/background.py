"""Tools that ask to go on between calls, and what the operator says to that.

Source: `docs/guide.md`, "Background jobs"; `docs/isolation.md`.
"""

import logging
from collections.abc import Mapping

from runner.settings.execution import ExecutionSettings
from runner.toolset.catalog import ToolSpec

__all__ = ["refused_jobs", "warn_of_refused_jobs"]

log = logging.getLogger(__name__)


def refused_jobs(settings: ExecutionSettings, tools: Mapping[str, ToolSpec]) -> tuple[str, ...]:
    """Return the tools whose authors ask for what the settings do not allow."""
    return tuple(
        name for name, tool in tools.items() if tool.wants_background and not settings.lets_go_on(name)
    )


def warn_of_refused_jobs(settings: ExecutionSettings, tools: Mapping[str, ToolSpec]) -> None:
    """Log which tools stand still between calls although their authors ask for more."""
    refused = refused_jobs(settings, tools)
    if refused:
        # With `worker_reuse = call` no setting allows them.
        advice = "set background_jobs = true, with worker_reuse = user"
        log.warning("background jobs not allowed", extra={"tools": list(refused), "advice": advice})
