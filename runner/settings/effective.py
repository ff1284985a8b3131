"""What the settings give each call of one tool, worked out once and not for each call."""

from dataclasses import dataclass

from runner.settings.execution import ExecutionSettings
from runner.settings.rights import Rights
from sandbox.deadlines import Deadlines
from sandbox.policy import Limits

__all__ = ["EffectiveToolSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveToolSettings:
    """What a call of one tool may have.

    Attributes:
        deadlines: How long it may take.
        limits: What it may use.
        rights: What it may do, where that is not what all may.
        keeps_worker: Whether its worker may stay with its user.
        shares_worker: Whether it runs beside other calls in one worker of its user.
        shares_if_asked: The same, where its author asks for that.
        lets_go_on: Whether what it begins may go on between calls, where its author asks for that.
        scopes: The scopes that a token must have for it.
    """

    deadlines: Deadlines
    limits: Limits
    rights: Rights | None
    keeps_worker: bool
    shares_worker: bool
    shares_if_asked: bool
    lets_go_on: bool
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: ExecutionSettings, tool: str | None) -> "EffectiveToolSettings":
        """Return what holds for one tool, or for all that have no settings of their own."""
        rights = settings.rights(tool)
        return cls(
            deadlines=settings.deadlines(tool),
            limits=settings.limits(tool),
            rights=None if rights == settings.rights() else rights,
            keeps_worker=settings.keeps_worker(tool),
            shares_worker=settings.shares_worker(tool),
            shares_if_asked=settings.shares_worker(tool, wish=True),
            lets_go_on=settings.lets_go_on(tool),
            scopes=() if tool is None else settings.scopes(tool),
        )
