"""Entries of the survey of others' packages and servers: `packages.toml` and `servers.toml`, checked.

An entry is data: what it needs, what is run, which calls are made, and which options make it work where the
defaults do not. The two files say at their top what each field means.
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Call", "Entry", "Environment", "FaultyEntry", "Rule", "read_entries", "read_environments"]

Kind = Literal["package", "file", "command"]
_KINDS: Mapping[str, Kind] = {"code": "package", "file": "file", "command": "command"}


class FaultyEntry(Exception):
    """An entry says something that the survey cannot read; the message names it."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A value that differs between two runs and is replaced on both sides before they are compared.

    Attributes:
        pattern: A regular expression; `{work}`, `{lent}` and `{port}` stand for what they name in each run.
        becomes: What stands in place of each match.
        why: Why it differs, for people.
    """

    pattern: str
    becomes: str
    why: str


@dataclass(frozen=True, slots=True)
class Call:
    """One request.

    Attributes:
        method: `tools/call` or another method of MCP.
        params: Its parameters; words in them are filled in as those of a command are.
        fails: Whether an error is the answer that is wanted.
    """

    method: str
    params: Mapping[str, Any]
    fails: bool = False

    @property
    def label(self) -> str:
        """Return what names this call in a difference."""
        named = self.params.get("name") or self.params.get("uri") or ""
        return f"{self.method} {named}".strip().removeprefix("tools/call ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment that entries share.

    Attributes:
        name: The folder below the cache.
        requires: What is installed beside what its entries require.
    """

    name: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A package with a tool that uses it, or a server.

    Attributes:
        name: Names it in the table and for `--only`.
        kind: `package` (a tool of ours that uses it), `file` (a tool file of others), `command` (a server).
        requires: Requirements from PyPI; the first one's version is shown.
        npm: Requirements from npm, `name@version`.
        sdist: A requirement whose source distribution holds `file`.
        code: The tool, for a package.
        file: The tool file, from the top of the source distribution or of the repository.
        command: The words of a server's command.
        environment: Which virtual environment.
        calls: The requests, in order, after the lists.
        flags: Options of the runner, or `NAME=value` for its environment, that make it work.
        files: What lies in the lent folder `{lent}`, by name.
        variables: Environment of both sides.
        rules: What is expected to differ.
        why: Why it does not work where it does not.
        timeout_s: Longest wait for one answer.
    """

    name: str
    kind: Kind
    requires: tuple[str, ...] = ()
    npm: tuple[str, ...] = ()
    sdist: str = ""
    code: str = ""
    file: str = ""
    command: tuple[str, ...] = ()
    environment: str = "tools"
    calls: tuple[Call, ...] = ()
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    why: str = ""
    timeout_s: float = 100.0

    @property
    def digest(self) -> str:
        """Return what changes when something else is run; a reason for people may be corrected."""
        text = json.dumps({**asdict(self), "why": ""}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_entries(file: Path) -> list[Entry]:
    """Read the entries of a file.

    Raises:
        FaultyEntry: One of them cannot be read.
    """
    tables = tomllib.loads(file.read_text()).get("entry", [])
    entries = [_entry(table) for table in tables]
    names = [entry.name for entry in entries]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise FaultyEntry(
            f"{file.name}: several entries are named {', '.join(twice)}; give each its own name"
        )
    return entries


def read_environments(file: Path) -> list[Environment]:
    """Read the environments that a file names."""
    tables = tomllib.loads(file.read_text()).get("environment", [])
    return [Environment(name=table["name"], requires=tuple(table.get("requires", ()))) for table in tables]


def _entry(table: Mapping[str, Any]) -> Entry:
    name = table.get("name") or "an entry without a name"
    kinds = [kind for field_, kind in _KINDS.items() if field_ in table]
    if len(kinds) != 1:
        raise FaultyEntry(f"{name}: give one of {', '.join(_KINDS)}, not {len(kinds)} of them")
    unknown = sorted(set(table) - set(Entry.__dataclass_fields__) | ({"kind"} & set(table)))
    if unknown:
        raise FaultyEntry(f"{name}: no such field: {', '.join(unknown)}")
    calls = tuple(_call(name, call) for call in table.get("calls", [{"tool": "use"}]))
    rules = tuple(_rule(name, rule) for rule in table.get("rules", ()))
    lists = ("requires", "npm", "command", "flags")
    requires, npm, command, flags = (tuple[str, ...](table.get(key, ())) for key in lists)
    plain = {key: value for key, value in table.items() if key not in ("calls", "rules", *lists)}
    return Entry(
        kind=kinds[0], calls=calls, rules=rules, requires=requires, npm=npm, command=command, flags=flags,
        **plain,
    )  # fmt: skip


def _call(name: str, table: Mapping[str, Any]) -> Call:
    fails = bool(table.get("fails", False))
    if "tool" in table:
        return Call("tools/call", {"name": table["tool"], "arguments": table.get("arguments", {})}, fails)
    if "method" in table:
        return Call(table["method"], table.get("params", {}), fails)
    raise FaultyEntry(f"{name}: a call names a tool or a method, not {dict(table)!r}")


def _rule(name: str, words: Any) -> Rule:
    if not isinstance(words, list) or len(words) != 3:
        raise FaultyEntry(f"{name}: a rule is [pattern, becomes, why], not {words!r}")
    return Rule(*words)
