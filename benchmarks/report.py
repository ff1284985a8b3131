"""What a run found: sections with tables, figures for JSON, targets; as text for people and for programs."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.figures import TARGET_HEADINGS, Target, table

__all__ = ["Report", "Section", "filled", "load_average", "machine"]

_MIB = 1 << 20
_PLACE = re.compile(r"(?s)(?P<begin><!-- begin (?P<key>\w+) -->\n).*?(?P<end>\n<!-- end (?P=key) -->)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One measurement.

    Attributes:
        key: Its name in JSON.
        title: Its heading.
        text: Markdown: tables and sentences.
        facts: All that was measured.
        targets: What of it is to be reached.
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
        machine: What the figures depend on.
        where: The key of the place that names the machine in a document.
        sections: What was measured.
    """

    machine: dict[str, str]
    where: str = "machine"
    sections: list[Section] = field(default_factory=list)

    @property
    def targets(self) -> list[Target]:
        """All targets, in the order of the sections."""
        return [target for section in self.sections for target in section.targets]

    def parts(self) -> dict[str, str]:
        """Return the Markdown of each section by its key, and of the machine and the targets."""
        parts = {self.where: ", ".join(self.machine.values())}
        parts |= {section.key: section.text for section in self.sections}
        if self.targets:
            parts["targets"] = table(TARGET_HEADINGS, [target.row() for target in self.targets])
        return parts

    def markdown(self) -> str:
        """Return everything as one document."""
        titles = {section.key: section.title for section in self.sections} | {"targets": "Targets"}
        return "\n\n".join(
            f"### {titles[key]}\n\n{text}" if key in titles else text for key, text in self.parts().items()
        )

    def write(self, path: Path) -> None:
        """Write everything as Markdown into a file; of a document with places for it, fill in those.

        A place is between `<!-- begin KEY -->` and `<!-- end KEY -->`.
        """
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = filled(before, self.parts()) if "<!-- begin " in before else f"{self.markdown()}\n"
        path.write_text(after, encoding="utf-8")

    def json(self) -> str:
        """Return everything as a JSON document."""
        document = {
            "machine": self.machine,
            "measured": {section.key: section.facts for section in self.sections},
            "targets": [
                {
                    "what": target.what,
                    "limit": target.limit,
                    "bound": target.bound,
                    "measured": target.measured,
                    "unit": target.unit,
                    "verdict": target.verdict,
                }
                for target in self.targets
            ],
        }
        return json.dumps(document, indent=1) + "\n"


def filled(document: str, parts: Mapping[str, str]) -> str:
    """Return a document with each part in its place; places of other parts stay as they are."""

    def fill(place: re.Match[str]) -> str:
        text = parts.get(place["key"])
        return place[0] if text is None else f"{place['begin']}\n{text}\n{place['end']}"

    return _PLACE.sub(fill, document)


def machine() -> dict[str, str]:
    """Return what figures depend on: the processor, the kernel, Python, memory."""
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


def load_average() -> str:
    """Return the load average of the last minutes."""
    return " ".join(f"{value:.2f}" for value in os.getloadavg())
