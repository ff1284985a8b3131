"""Named limits of calls: the tools and users of each, counted for each user or for all together.

One mechanism serves a tool, a tool file (whose tools begin with its name), a server behind the proxy, a user,
each user, or all. `runner.toolset` counts.

Source: `docs/isolation.md`, "Rate limits and quotas".
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runner.settings.values import NARROWS, Count, Names, SettingsTable

__all__ = ["Counted", "LimitSettings", "counted"]

_AMOUNTS = ("max_calls", "calls_per_minute")


class LimitSettings(SettingsTable):
    """A limit of calls."""

    tools: Annotated[Names, NARROWS] = Field(
        ("*",),
        min_length=1,
        description="Names of the tools that it limits, as clients see them; `sales_*` is a prefix.",
    )
    users: Annotated[Names, NARROWS] = Field(
        ("*",), description="Names of the users that it limits; `*` is all, and an empty list nobody."
    )
    per: Annotated[Literal["all", "user"], NARROWS] = Field(
        "all", description="`all`: one limit for those users together. `user`: one limit for each of them."
    )
    max_calls: Annotated[Count | None, NARROWS] = Field(
        None, description="Concurrent calls; others wait for their turn."
    )
    calls_per_minute: Annotated[Count | None, NARROWS] = Field(
        None, description="Calls in any minute; the next ends with `E_BUSY`."
    )

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if not any(getattr(self, name) for name in _AMOUNTS):
            raise ValueError(f"it limits nothing; give {' or '.join(_AMOUNTS)}")
        return self


@dataclass(frozen=True, slots=True)
class Counted:
    """A limit that a call counts against.

    Attributes:
        name: Its name in the settings.
        whose: The user that it is counted for; empty for a limit shared by all.
        limit: The limit.
    """

    name: str
    whose: str
    limit: LimitSettings


def counted(
    limits: Mapping[str, LimitSettings], *, tool: str | None, user: str, whose: str
) -> Iterator[Counted]:
    """Yield the limits that a call counts against.

    Args:
        limits: All limits.
        tool: Name of its tool; None for other requests, which count only against limits of all tools.
        user: Name of the caller.
        whose: Key that the caller is counted by.
    """
    for name, limit in limits.items():
        is_about = "*" in limit.tools or any(
            fnmatchcase(tool, one) for one in limit.tools if tool is not None
        )
        if is_about and ("*" in limit.users or user in limit.users):
            yield Counted(name, whose if limit.per == "user" else "", limit)
