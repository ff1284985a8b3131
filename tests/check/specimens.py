"""The tool files beside this one: each faulty one says where its fault is, the faultless ones have none."""

import re
from pathlib import Path

__all__ = ["FAULTLESS", "FAULTY", "expected"]

HERE = Path(__file__).parent
FAULTY = sorted((HERE / "faulty").glob("*.py"))
FAULTLESS = sorted((HERE / "faultless").glob("*.py"))


def expected(file: Path) -> set[tuple[int, str]]:
    """Return what the comments `# expect: rule` of a file announce: lines and rules."""
    lines = enumerate(file.read_text().splitlines(), start=1)
    return {(number, rule) for number, line in lines for rule in re.findall(r"# expect: ([\w-]+)", line)}
