"""Survey results of others' packages and servers: the second part of docs/compatibility.md."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compat_compare import ADDED
from compat_entries import Entry
from compat_run import SAME, TIERS

__all__ = ["OTHERS", "others", "summary", "toolset_of"]

OTHERS = "## Packages and servers of others\n"
_INTRODUCTION = """\

Each runs unchanged, plain and behind the runner, in one run of `scripts/compat`, and the answers are
compared: lists of tools, resources and prompts, and every call of its entry in
[packages.toml](../tests/compat/packages.toml) or [servers.toml](../tests/compat/servers.toml).
A package is used by a small tool, served by `fastmcp run` and by `runner serve`; so is a server that is a
tool file. A server that is a command is started directly and by `runner proxy`. Servers are spoken to
without sessions (2026-07-28) and, in the strongest tier, with
them (2025-06-18).

- *yes*: the answers are equal, with the defaults.
- *with options*: they are equal with the options in the column beside, and not without them.
- *no*: something differs; the remark has the reason, and the first difference of the run.
- *not tried*: the run did not get there, or the entry has changed since. What another machine has tried
  stays as it found it.
- *plain fails*: it does not work here without the runner either, so it shows nothing.

Folders of a run lie below `/var/tmp`, with the state of the runners that serve there. What lies there could
be read in every tier, so an entry that reads a folder says *yes* where it needs `--allow-read` elsewhere.

Left out of the comparison on both sides, for all entries:

"""


def others(
    sections: Mapping[str, Sequence[Entry]], outcomes: Mapping[str, Mapping[str, Any]], before: str = ""
) -> str:
    """Return the second part of the page.

    Args:
        sections: The entries, by the heading that they stand under.
        outcomes: What was found of each entry, by its name; a changed entry counts as not tried.
        before: The page as it was; it has the rows of entries that were tried on another machine.
    """
    rows = _rows(before)
    lines = [OTHERS, _tried_when(outcomes.values(), before), _INTRODUCTION]
    lines += [f"- {what}: {why}\n" for what, why in ADDED.items()]
    lines.append("- folders of the run, which are its own on each side\n")
    for heading, entries in sections.items():
        lines.append(f"\n### {heading}\n\n{summary(entries, outcomes, before)}\n\n")
        lines.append(f"| what | version | {' | '.join(TIERS)} | options | remark |\n")
        lines.append(f"| --- | --- | {' --- |' * len(TIERS)} --- | --- |\n")
        lines += [
            rows[entry.name] if _is_unchanged(entry, outcomes, rows) else _row(entry, _found(entry, outcomes))
            for entry in entries
        ]
        lines += _rules(entries)
    return "".join(lines)


def _rows(page: str) -> dict[str, str]:
    """Return the rows of a page by what they are of."""
    tables = page.partition(OTHERS)[2].splitlines(keepends=True)
    return {line.split(" | ")[0].removeprefix("| "): line for line in tables if line.startswith("| ")}


def _is_unchanged(entry: Entry, outcomes: Mapping[str, Mapping[str, Any]], rows: Mapping[str, str]) -> bool:
    """Return whether the row of an entry stays: no outcome is known here for that entry, changed or not."""
    return entry.name not in outcomes and entry.name in rows


def _tried_when(outcomes: Iterable[Mapping[str, Any]], before: str) -> str:
    """Return a sentence about when the entries were tried; nothing where none was."""
    match = re.search(r"^Tried .*$", before, re.MULTILINE)
    earlier = re.findall(r"\d{4}-\d\d-\d\d", match.group()) if match else []
    days = sorted({found["tried"] for found in outcomes if "tried" in found} | set(earlier))
    if not days:
        return ""
    return f"\nTried on {days[0]}.\n" if len(days) == 1 else f"\nTried from {days[0]} to {days[-1]}.\n"


def summary(entries: Sequence[Entry], outcomes: Mapping[str, Mapping[str, Any]], before: str = "") -> str:
    """Return how many entries give equal answers in each tier, in a sentence."""
    lines, rows = [], _rows(before)
    for column, tier in enumerate(TIERS, 2):
        toolsets = [
            rows[entry.name].split(" | ")[column].strip()
            if _is_unchanged(entry, outcomes, rows)
            else toolset_of(_found(entry, outcomes), tier)
            for entry in entries
        ]
        tried = [toolset for toolset in toolsets if toolset.split()[0] in ("yes", "with", "no")]
        alike, optional = tried.count("yes"), tried.count("with options")
        lines.append(f"{tier}: {alike} alike with the defaults and {optional} with options, of {len(tried)}")
    return f"{len(entries)} entries; {'; '.join(lines)} that were tried."


def toolset_of(found: Mapping[str, Any], tier: str) -> str:
    """Return what the table says of an entry in a tier."""
    if not found:
        return "not tried"
    if found["plain"]:
        return "not installed" if found["plain"].startswith("not installed") else "plain fails"
    eras = found["toolsets"].get(tier)
    if not eras:
        return "not tried"
    if all(toolset["bare"] == SAME for toolset in eras.values()):
        return "yes"
    if all(SAME in toolset.values() for toolset in eras.values()):
        return "with options"
    differing = [era for era, toolset in eras.items() if SAME not in toolset.values()]
    return "no" if len(differing) in (0, len(eras)) else f"no ({', '.join(differing)})"


def _found(entry: Entry, outcomes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    found = outcomes.get(entry.name, {})
    return found if found.get("digest") == entry.digest else {}


def _row(entry: Entry, found: Mapping[str, Any]) -> str:
    toolsets = [toolset_of(found, tier) for tier in TIERS]
    options = ", ".join(f"`{flag}`" for flag in entry.flags) if "with options" in toolsets else ""
    words = [
        entry.name,
        found.get("version", ""),
        *toolsets,
        options,
        " ".join(_remarks(entry, found, toolsets)),
    ]
    return f"| {' | '.join(' '.join(word.split()).replace('|', chr(92) + '|') for word in words)} |\n"


def _remarks(entry: Entry, found: Mapping[str, Any], toolsets: Sequence[str]) -> Iterator[str]:
    if not found:
        return
    if found["plain"]:
        yield found["plain"]
        return
    if found.get("sessions"):
        yield "Supports sessions only (MCP 2025-11-25)."
    if any(toolset.split()[0] == "no" for toolset in toolsets):
        yield entry.why
        yield f"First difference: {_first(found)}"


def _first(found: Mapping[str, Any]) -> str:
    for eras in found["toolsets"].values():
        for toolset in eras.values():
            if SAME not in toolset.values():
                return f"`{toolset.get('flagged', toolset['bare']).replace('`', chr(39))}`"
    return ""


def _rules(entries: Sequence[Entry]) -> Iterator[str]:
    lines = [f"- {entry.name}: `{rule.pattern}` ({rule.why})\n" for entry in entries for rule in entry.rules]
    if lines:
        yield "\nExpected to differ, and replaced on both sides before they are compared:\n\n"
        yield from lines
