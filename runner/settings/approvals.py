"""Rules that hold calls until a person approves them: tools, users, annotations and arguments of each.

A rule compares text. It does not recognise aliases of an argument or other spellings of a path, so a rule for
security should name tools only.

Source: `docs/isolation.md`, "Approvals"; MCP specification 2025-11-25, "Tool annotations".
"""

import json
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from runner.settings.values import NARROWS, Names, SettingsTable

__all__ = ["ApprovalSettings", "rule_for"]

_WEEK_S = 7 * 24 * 3600


class ApprovalSettings(SettingsTable):
    """A rule that holds calls for an approval."""

    tools: Annotated[Names, NARROWS] = Field(
        ("*",),
        min_length=1,
        description="Tools whose calls it holds, by name as clients see them, or by pattern: `delete_*`.",
    )
    users: Annotated[Names, NARROWS] = Field(
        ("*",), min_length=1, description="Users whose calls it holds, by name or pattern."
    )
    destructive: Annotated[bool, NARROWS] = Field(
        default=False,
        description="Hold only tools that may destroy something: all but those with the annotation "
        "`readOnlyHint` true or `destructiveHint` false.",
    )
    arguments: Annotated[Names | None, NARROWS] = Field(
        None,
        min_length=1,
        description="Hold only calls with one of these arguments, each as `NAME=PATTERN`: `path=/etc/*`, or "
        "`*=*DROP TABLE*` for any argument. Compared with each text in it, and with numbers as JSON.",
    )
    by: Annotated[Literal["client", "operator"], NARROWS] = Field(
        "client",
        description="Approver: `client` is the person at the MCP client, or the operator where the client "
        "shows no forms; `operator` is `runner approve` only.",
    )
    expires_s: Annotated[float, NARROWS] = Field(
        600.0,
        gt=0,
        le=_WEEK_S,
        description="Life of a question and of an unused approval, in seconds; at most a week.",
    )

    @model_validator(mode="after")
    def _has_named_arguments(self) -> Self:
        for each in self.arguments or ():
            if not each.partition("=")[0] or "=" not in each:
                raise ValueError(f"{each!r} is not written as NAME=PATTERN, such as path=/etc/*")
        return self

    def holds(
        self, *, tool: str | None, user: str, is_destructive: bool, arguments: Mapping[str, object]
    ) -> bool:
        """Return whether the rule holds a call.

        Args:
            tool: Name of its tool, as clients see it; None for a tool that its server does not list.
            user: Name of its user.
            is_destructive: Whether the tool may destroy something.
            arguments: Its arguments.
        """
        if self.destructive and not is_destructive:
            return False
        # A server may treat an unlisted name as another spelling of a tool in a rule.
        if tool is not None and not any(fnmatchcase(tool, one) for one in self.tools):
            return False
        if not any(fnmatchcase(user, one) for one in self.users):
            return False
        if self.arguments is None:
            return True
        pairs = [(name, pattern) for name, _, pattern in (each.partition("=") for each in self.arguments)]
        return any(
            fnmatchcase(text, pattern)
            for name, pattern in pairs
            for argument, value in arguments.items()
            if fnmatchcase(argument, name)
            for text in _texts(value)
        )


def rule_for(
    rules: Mapping[str, ApprovalSettings],
    *,
    tool: str | None,
    user: str,
    is_destructive: bool,
    arguments: Mapping[str, object],
) -> tuple[str, ApprovalSettings] | None:
    """Return the strictest rule that holds a call, with its name; None if no rule does.

    One that needs the operator comes first, then the one that expires first.
    """
    found = [
        (name, rule)
        for name, rule in rules.items()
        if rule.holds(tool=tool, user=user, is_destructive=is_destructive, arguments=arguments)
    ]
    return min(found, key=lambda one: (one[1].by != "operator", one[1].expires_s), default=None)


def _texts(value: object) -> Iterator[str]:
    """Yield each text in a JSON value, keys included, and other leaves as JSON."""
    left = [value]
    while left:
        match left.pop():
            case str() as text:
                yield text
            case Mapping() as members:
                yield from map(str, members)
                left += members.values()
            case list() as items:
                left += items
            case leaf:
                yield json.dumps(leaf)
