"""Places and tests of each requirement, read from the ids that code and tests carry.

A requirement of `docs/spec/requirements.md` is *built* where a source file, or a page of `docs`, names its
id, and *shown* by the tests that name it, in a docstring, a comment, or the `seed_ref` of a conformance
case. `S1-76 to S1-87` names every id between. `docs/spec/requirements.toml` has a short phrase for each id,
and a sentence for each that is not built, partly built, or asks nothing of this program.

usage: scripts/requirements        rewrites docs/spec/coverage.md
"""

import ast
import json
import re
import subprocess
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

__all__ = [
    "COVERAGE",
    "Marks",
    "Requirement",
    "Status",
    "complaints",
    "ids_in",
    "lines_of_tests",
    "marked",
    "read",
    "table",
]

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "docs/spec"
COVERAGE = SPEC / "coverage.md"
CODE = ("runner/", "sandbox/", "sample_tools/", "scripts/", "docs/")
SUFFIXES = {".py", ".ts", ".tsx", ".css", ".md", ".jsonl", ""}
OWN = {Path(__file__).name, "test_requirements.py"}
"""Files that name ids without implementing or testing them."""
SHOWN_TESTS = 3
"""So many tests of a requirement the table names; it counts the others."""

_SENTENCE = re.compile(r"^- \*\*(S\d-\d+)\*\* ", re.MULTILINE)
_HEADING = re.compile(r"^## (S\d): (.+)$", re.MULTILINE)
_RANGE = re.compile(r"\b(S[0-9])-([0-9]+)(?:\s+to\s+\1-([0-9]+))?\b")


class Status(StrEnum):
    """Status of a requirement."""

    BUILT = "built"
    PARTLY = "partly"
    NOT = "not"
    NOT_OURS = "does not apply"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement, and what of it was found.

    Attributes:
        says: What it asks for, in a few words.
        status: `BUILT` unless `requirements.toml` says something else.
        why: The sentence that says so; empty where it is built.
        places: Source files that name it.
        tests: Tests that name it, as pytest calls them; files for what no single test holds.
    """

    says: str
    status: Status
    why: str
    places: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()


@dataclass(slots=True)
class Marks:
    """Places of ids: by id, file names and names of tests, in order."""

    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    tests: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def ids_in(text: str) -> Iterator[tuple[str, int]]:
    """Yield each id that `text` names, those inside ranges too, with where in `text` it stands."""
    for found in _RANGE.finditer(text):
        document, first, last = found[1], int(found[2]), int(found[3] or found[2])
        for number in range(first, last + 1):
            yield f"{document}-{number}", found.start()


def sentences() -> list[str]:
    """Return the ids of `requirements.md`, in its order."""
    return _SENTENCE.findall((SPEC / "requirements.md").read_text())


def marked() -> Marks:
    """Look through all that git tracks, or would."""
    marks = Marks()
    for name in _sources():
        path = ROOT / name
        in_code = name.startswith(CODE)
        if not (in_code or name.startswith("tests/")) or path.suffix not in SUFFIXES:
            continue
        if path.name in OWN or path.is_relative_to(SPEC):
            continue
        text = path.read_text(errors="replace")
        for requirement, place in _named(name, text):
            found = (marks.places if in_code else marks.tests)[requirement]
            if place not in found:
                found.append(place)
    return marks


def read(marks: Marks) -> dict[str, Requirement]:
    """Return every requirement of `requirements.toml`, with what names it.

    Raises:
        ValueError: A sentence stands for an id that has no phrase.
    """
    entries = tomllib.loads((SPEC / "requirements.toml").read_text())
    says = {
        f"{document}-{number}": text
        for document in _documents()
        for number, text in entries[document].items()
    }
    judged = {
        requirement: (status, why)
        for status in (Status.PARTLY, Status.NOT, Status.NOT_OURS)
        for requirement, why in entries.get(status.value, {}).items()
    }
    if unknown := judged.keys() - says.keys():
        raise ValueError(f"requirements.toml judges ids that have no phrase: {sorted(unknown)}")
    return {
        requirement: Requirement(
            says=text,
            status=judged.get(requirement, (Status.BUILT, ""))[0],
            why=judged.get(requirement, (Status.BUILT, ""))[1],
            places=tuple(marks.places.get(requirement, ())),
            tests=tuple(sorted(marks.tests.get(requirement, ()), key=_least_general)),
        )
        for requirement, text in says.items()
    }


def complaints(requirements: Mapping[str, Requirement], marks: Marks) -> list[str]:
    """Return what is missing: a phrase, a place, a test, a reason; nothing if the table may be believed."""
    known = sentences()
    missing = [f"{name} has no phrase in requirements.toml" for name in known if name not in requirements]
    unknown = [
        f"{name} is not a requirement, requirements.toml" for name in requirements if name not in known
    ]
    for found in (marks.places, marks.tests):
        unknown += [f"{name} is not a requirement, {found[name][0]}" for name in found if name not in known]
    for name, requirement in requirements.items():
        if requirement.status in {Status.BUILT, Status.PARTLY}:
            missing += [f"{name} is named by no source file"] * (not requirement.places)
            missing += [f"{name} is named by no test"] * (not requirement.tests)
        if requirement.status is not Status.BUILT and not requirement.why.endswith("."):
            missing.append(f"{name} is {requirement.status}, and no sentence says why")
    return unknown + missing


def table(requirements: Mapping[str, Requirement]) -> str:
    """Return `docs/spec/coverage.md`."""
    headings = dict(_HEADING.findall((SPEC / "requirements.md").read_text()))
    counts = {status: sum(each.status is status for each in requirements.values()) for status in Status}
    lines = [
        "# What of the requirements is built",
        "",
        "Written by `scripts/requirements` from the ids that code and tests carry, and from",
        "[requirements.toml](requirements.toml); [requirements.md](requirements.md) has each requirement in",
        f"full. Of several tests, {SHOWN_TESTS} are named; a case is one of `tests/conformance/cases.jsonl`.",
        "",
        "| status | requirements |",
        "| --- | --- |",
        *(f"| {status} | {count} |" for status, count in counts.items()),
        f"| all | {len(requirements)} |",
        "",
    ]
    for document, heading in headings.items():
        lines += [
            f"## {document}: {heading}",
            "",
            "| id | asks for | status | built in | shown by |",
            "| --- " * 5 + "|",
        ]
        lines += [_row(name, each) for name, each in requirements.items() if name.startswith(f"{document}-")]
        lines.append("")
    return "\n".join(lines)


def _row(name: str, requirement: Requirement) -> str:
    status = f"**{requirement.status}**: {requirement.why}" if requirement.why else str(requirement.status)
    places = ", ".join(f"`{place}`" for place in requirement.places)
    more = len(requirement.tests) - SHOWN_TESTS
    tests = ", ".join(f"`{test}`" for test in requirement.tests[:SHOWN_TESTS]) + (
        f" and {more} more" * (more > 0)
    )
    cells = [name, requirement.says, status, places, tests]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _documents() -> list[str]:
    return list(dict.fromkeys(name.partition("-")[0] for name in sentences()))


def _sources() -> list[str]:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True)
    return sorted(name for name in set(done.stdout.splitlines()) if (ROOT / name).is_file())


def _named(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield each id in a file with the place that the table gives: the file, a test in it, or a case."""
    if name.endswith(".jsonl"):
        for line in text.splitlines():
            case = json.loads(line)
            yield from ((requirement, f"case {case['id']}") for requirement in case.get("seed_ref", ()))
        return
    tests = lines_of_tests(text) if name.startswith("tests/") and name.endswith(".py") else {}
    for requirement, position in ids_in(text):
        test = tests.get(text.count("\n", 0, position) + 1)
        yield requirement, f"{name}::{test}" if test else name


def lines_of_tests(text: str) -> dict[int, str]:
    """Return which test each line of a module belongs to: its decorators and the comment above them, too."""
    lines = text.splitlines()
    belongs: dict[int, str] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        first = min(node.lineno, *(decorator.lineno for decorator in node.decorator_list), node.lineno)
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        belongs |= dict.fromkeys(range(first, (node.end_lineno or node.lineno) + 1), node.name)
    return belongs


def _least_general(test: str) -> tuple[bool, bool, str]:
    """Sort named tests first, then conformance cases, then whole files."""
    return "::" not in test and not test.startswith("case "), test.startswith("case "), test


if __name__ == "__main__":
    found = marked()
    requirements = read(found)
    COVERAGE.write_text(table(requirements))
    wrong = complaints(requirements, found)
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    raise SystemExit(bool(wrong))
