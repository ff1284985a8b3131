"""The form of a denial in logs, results and reports."""

from runner.settings.lendable import flag_for
from runner.toolset.toolset import Toolset
from sandbox.outcome import Denial

__all__ = ["denial_facts", "plain_denial"]

_NOT_OF_FILES = ("run", "connect", "lookup")


def denial_facts(denial: Denial, toolset: Toolset) -> dict[str, str]:
    """Return a denial as results and reports have it, with the option that would allow it, if one would."""
    facts = plain_denial(denial)
    is_of_files = denial.operation not in _NOT_OF_FILES and not denial.operation.startswith("socket.")
    flag = flag_for(denial.path, denial.wants, homes=toolset.settings.homes) if is_of_files else None
    return facts if flag is None else {**facts, "flag": flag}


def plain_denial(denial: Denial) -> dict[str, str]:
    """Return the operation, path and layer of a denial."""
    return {"operation": denial.operation, "path": denial.path, "layer": denial.layer}
