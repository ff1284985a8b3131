"""The report of a run: sections with tables, targets, and all figures as JSON."""

import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import Target

__all__ = ["Report", "Section", "machine", "progress"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One measurement.

    Attributes:
        key: Its name in JSON.
        title: Its heading.
        text: Markdown: tables and sentences.
        facts: All figures.
        targets: The figures that have a limit.
    """

    key: str
    title: str
    text: str
    facts: Any
    targets: Sequence[Target] = ()


@dataclass(slots=True)
class Report:
    """The sections of one run, in order.

    Attributes:
        machine: The hardware and versions that the figures depend on.
        sections: The measurements.
    """

    machine: dict[str, str]
    sections: list[Section] = field(default_factory=list)

    @property
    def targets(self) -> list[Target]:
        """All targets, in the order of the sections."""
        return [target for section in self.sections for target in section.targets]

    def json(self) -> str:
        """Return everything as a JSON document."""
        document = {
            "machine": self.machine,
            "measured": {section.key: section.facts for section in self.sections},
            "targets": [{**asdict(target), "verdict": target.verdict} for target in self.targets],
        }
        return json.dumps(document, indent=1) + "\n"


def machine() -> dict[str, str]:
    """Return the processor, memory, kernel and Python that figures depend on."""
    models = {
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    }
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": ", ".join(sorted(models)) or platform.machine(),
        "cores": f"{os.cpu_count()} cores",
        "memory": f"{pages / _MIB / 1024:.0f} GiB",
        "kernel": f"Linux {platform.release()}",
        "python": f"Python {platform.python_version()}",
    }


def progress(text: str) -> None:
    """Log a step of the run with its time, on standard error."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stderr.flush()
