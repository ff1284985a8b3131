"""What `runner check` can find: the rules by their ids, and one finding in a file.

Source: `docs/check.md`, which explains each rule by an example.
"""

import ast
import enum
from dataclasses import dataclass

__all__ = ["RULES", "CheckRule", "Finding", "Severity", "by_place"]


class Severity(enum.Enum):
    """How much a finding matters."""

    MUST = "must"
    SHOULD = "should"


@dataclass(frozen=True, slots=True)
class CheckRule:
    """One thing that would surprise the author of a tool file.

    Attributes:
        name: Its id, as in `# runner: ignore[id]`.
        severity: Whether the file does not work as written, or works less well than it could.
    """

    name: str
    severity: Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that one line breaks.

    Attributes:
        rule: Id of the rule.
        line: Line of the author's file, from 1.
        column: Column in that line, from 1.
        message: What is there and why that surprises.
        cure: What to write instead.
    """

    rule: str
    line: int
    column: int
    message: str
    cure: str

    @classmethod
    def at(cls, node: ast.AST, rule: str, message: str, cure: str) -> "Finding":
        """Make a finding at the place of a node."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        return cls(rule=rule, line=line, column=column, message=message, cure=cure)

    @property
    def severity(self) -> Severity:
        """Return how much it matters."""
        return RULES[self.rule].severity


def by_place(finding: Finding) -> tuple[int, int, str]:
    """Return what findings are sorted by: where they stand in the file."""
    return finding.line, finding.column, finding.rule


_MUST = (
    "write-without-username",
    "write-outside-home",
    "write-at-import",
    "username-type",
    "unreadable-path",
    "misspelled-results",
    "misspelled-key",
    "widget-mime",
    "widget-csp-on-tool",
    "widget-invocation-text",
    "widget-remote-code",
)
_SHOULD = (
    "result-for-results",
    "filename-without-username",
    "fixed-path",
    "missing-docstring",
    "unannotated-parameter",
    "print-to-stdout",
    "silent-loop",
    "slow-import",
    "threads-at-import",
    "store-in-memory",
    "unreturned-file",
    "widget-visibility",
)

RULES = {name: CheckRule(name, Severity.MUST) for name in _MUST} | {
    name: CheckRule(name, Severity.SHOULD) for name in _SHOULD
}
"""Every rule by its id."""
