"""Settings of one tool with its overrides, computed once instead of for each call."""

from dataclasses import dataclass

from runner.settings.execution import ExecutionSettings
from runner.settings.rights import Rights
from sandbox.deadlines import Deadlines
from sandbox.policy import Limits

__all__ = ["EffectiveToolSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveToolSettings:
    """Deadlines, limits and rights of calls of one tool.

    Attributes:
        deadlines: How long a call may take.
        limits: Resources that a call may use.
        rights: Rights that differ from those of all tools; None if they do not.
        keeps_worker: Whether its worker may stay with its user.
        shares_worker: Whether calls run concurrently in one worker of their user.
        may_share_worker: Whether they do so if the tool's author requests it.
        lets_go_on: Whether background jobs may run between calls if the tool's author requests it.
        scopes: The scopes that a token must have.
    """

    deadlines: Deadlines
    limits: Limits
    rights: Rights | None
    keeps_worker: bool
    shares_worker: bool
    may_share_worker: bool
    lets_go_on: bool
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: ExecutionSettings, tool: str | None) -> "EffectiveToolSettings":
        """Return the settings of one tool, or with None those of all tools without overrides."""
        rights = settings.rights(tool)
        return cls(
            deadlines=settings.deadlines(tool),
            limits=settings.limits(tool),
            rights=None if rights == settings.rights() else rights,
            keeps_worker=settings.keeps_worker(tool),
            shares_worker=settings.shares_worker(tool),
            may_share_worker=settings.shares_worker(tool, wish=True),
            lets_go_on=settings.lets_go_on(tool),
            scopes=() if tool is None else settings.scopes(tool),
        )
