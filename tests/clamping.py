"""The last guardrail of the output guard in isolation, as the conformance cases need it: `clamp`."""

from dataclasses import dataclass
from typing import Any

from runner.output_guard.config import MAX_ELEMENTS, GuardConfig
from runner.output_guard.json_view import view
from runner.output_guard.oversize import clamped_by
from runner.output_guard.storing import Keeper, Store
from runner.store.protocol import Record, Scope

__all__ = ["Clamped", "clamp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamped:
    """An observation within its limit.

    Attributes:
        value: The observation, or the reference that replaces it.
        stored: Records that were stored.
        events: At most one, `observation_clamped`, for user interfaces.
        warnings: For the log.
    """

    value: Any
    stored: tuple[Record, ...] = ()
    events: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()


async def clamp(
    observation: Any,
    *,
    config: GuardConfig,
    store: Store | None,
    scope: Scope,
    tool: str = "observation",
    server: str | None = None,
) -> Clamped:
    """Return `observation` if its text is within `max_observation_chars`, else a reference that is.

    Args:
        observation: Any value.
        config: The guard's settings.
        store: Store that keeps it; None to shorten it.
        scope: Its owner.
        tool: Name of the tool.
        server: Name of its server.
    """
    settings = config.for_call(tool, server)
    limit = settings.max_observation_chars
    keeper = Keeper(config=config, store=store, scope=scope, tool=tool, server=server)
    try:
        seen = view(observation, max_elements=MAX_ELEMENTS)
    except ValueError:
        value, event = await clamped_by(keeper, observation, limit, chars=limit, unruly=True)
    else:
        value, event = await clamped_by(keeper, seen.value, limit, chars=seen.chars)
    return Clamped(
        value=value,
        stored=tuple(keeper.stored),
        events=(event,) if event else (),
        warnings=tuple(keeper.warnings),
    )
