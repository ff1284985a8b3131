"""Rules of `runner check` by id, and one finding in a file.

Source: `docs/guide.md`, which explains each rule by an example.
"""

import ast
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["RULES", "Finding", "Severity", "without_waived"]


class Severity(enum.Enum):
    """Weight of a finding: the file does not work as written, or works less well than it could."""

    MUST = "must"
    SHOULD = "should"


_MUST = (
    "write-without-username", "write-outside-home", "write-at-import", "username-type", "unreadable-path",
    "misspelled-results", "misspelled-key", "widget-mime", "widget-csp-on-tool", "widget-invocation-text",
    "widget-remote-code",
)  # fmt: skip
_SHOULD = (
    "result-for-results", "filename-without-username", "missing-docstring", "unannotated-parameter",
    "print-to-stdout", "silent-loop", "slow-import", "threads-at-import", "store-in-memory",
    "unreturned-file", "widget-visibility",
)  # fmt: skip

RULES = {**dict.fromkeys(_MUST, Severity.MUST), **dict.fromkeys(_SHOULD, Severity.SHOULD)}
"""Severity of each rule by its id."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule that one line of the author's file breaks; line and column count from 1."""

    rule: str
    line: int
    message: str
    cure: str
    column: int = 1

    @classmethod
    def at(cls, node: ast.AST, rule: str, message: str, cure: str) -> "Finding":
        """Make a finding at the place of a node."""
        return cls(rule, getattr(node, "lineno", 1), message, cure, getattr(node, "col_offset", 0) + 1)

    @property
    def severity(self) -> Severity:
        """Return the severity of its rule."""
        return RULES[self.rule]


def without_waived(findings: Iterable[Finding], waived: Mapping[int, set[str]]) -> tuple[Finding, ...]:
    """Return findings in the order of the text, one for a rule and line, without those a comment waives."""
    found: dict[tuple[int, str], Finding] = {}
    for finding in findings:
        if finding.rule not in waived.get(finding.line, ()):
            found.setdefault((finding.line, finding.rule), finding)
    return tuple(sorted(found.values(), key=lambda finding: (finding.line, finding.column, finding.rule)))
