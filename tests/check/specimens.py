"""The tool files beside this one: a comment names each fault on its line, the faultless ones have none."""

import re
from pathlib import Path

__all__ = ["FAULTLESS", "FAULTY", "SANDBOXED", "SLOW", "expected"]

HERE = Path(__file__).parent
FAULTY = sorted((HERE / "faulty").glob("*.py"))
FAULTLESS = sorted((HERE / "faultless").glob("*.py"))
SANDBOXED = HERE / "faulty_in_sandbox" / "faults.py"
SLOW = HERE / "faulty_in_sandbox" / "slow_start.py"


def expected(file: Path) -> set[tuple[int, str]]:
    """Return the lines and rules in the comments `# expect: rule` of a file."""
    lines = enumerate(file.read_text().splitlines(), start=1)
    return {(number, rule) for number, line in lines for rule in re.findall(r"\bexpect: ([\w-]+)", line)}
