"""Calls repeated with one more narrow grant each time, and the policy that they need.

A call first runs confined without any right. Each denial names the next grant: the exact host and port,
file or folder, program or variable. All reports of a tool may be forged. So a grant must exist on this
machine, must pass the checks of a start, and stays only if the call fails without it. A policy under which
its call never passed is printed as comments.

Source: `docs/isolation.md`, "Learn a policy".
"""

import os
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runner.check.dry_run import Arguments, CallEnd, call_once, closed, prepared
from runner.check.source import SourceFile
from runner.check.text_rules import needs
from runner.contract.error_messages import legible
from runner.errors import RunnerError, UsageError
from runner.formats.terminal_text import has_hidden, one_line
from runner.settings.execution import ServiceSettings, ToolSettings, is_pattern
from runner.settings.lendable import flag_for, within
from runner.system.worker_environment import framework_environment
from runner.toolset.lending import lend
from runner.toolset.toolset import Toolset
from runner.users.identity import User
from runner.users.tool_secrets import Secrets
from runner.worker.targets import tool_files
from sandbox.denials.network import BIND
from sandbox.errors import LoadError, ZygoteDied
from sandbox.network.destinations import Destination
from sandbox.outcome import Denial
from sandbox.probe.machine import Tier

__all__ = ["Grant", "Learned", "Learner", "grant_of", "policy_text"]

RIGHTS = ("allow_net", "allow_read", "allow_write", "allow_run", "allow_env")
_MOST_GRANTS = 32
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_OF_OTHERS = ("/root", "/home")
_ANY_PORT = Destination(port=1)


@dataclass(frozen=True, slots=True)
class Grant:
    """One value of a right.

    Attributes:
        setting: Name of the right.
        value: The value.
        reason: Observation that it is based on.
        denial: The denial that named it, if one did.
    """

    setting: str
    value: str
    reason: str = field(compare=False, default="")
    denial: Denial | None = field(compare=False, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """The policy of one tool.

    Attributes:
        tool: Name of the tool.
        grants: The grants, in the order in which they were needed.
        error: Error of the call with all of them; None if it passes.
        notes: Further observations.
    """

    tool: str
    grants: tuple[Grant, ...] = ()
    error: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, eq=False)
class Learner:
    """Learner of the policies of the tools of one file.

    Attributes:
        settings: The effective settings; their rights are not used.
        target: The tool file.
        source: The parsed tool file, which names the variables that it reads.
        folder: Folder for the files of calls.
        report: Receives a line before each call.
    """

    settings: ServiceSettings
    target: str
    source: SourceFile
    folder: Path
    report: Callable[[str], None]
    at_import: tuple[Grant, ...] = ()

    async def learn(self, calls: Mapping[str, Arguments], other: Arguments) -> list[Learned]:
        """Return the policy of each tool.

        Args:
            calls: The tools, each with its arguments; without any, all tools of the file.
            other: Arguments of tools without their own.

        Raises:
            UsageError: There is no such tool, or no isolation.
            LoadError: The file cannot be loaded with any grants.
        """
        user = User(f"runner-learn-{os.getpid() % 16}")
        ready: dict[str, Mapping[str, Any] | str] = {}
        while not ready:
            try:
                async with self._open(None, ()) as toolset:
                    if toolset.tier is Tier.GUARD:
                        raise UsageError("isolation guard denies nothing, so nothing can be learned from it")
                    if unknown := calls.keys() - toolset.catalog.tools.keys():
                        names = ", ".join(map(one_line, toolset.catalog.tools))
                        raise UsageError(f"there is no tool {min(unknown)}; the file has {names or 'none'}")
                    for name, spec in toolset.catalog.tools.items():
                        if not calls or name in calls:
                            ready[name] = await prepared(calls.get(name, other), toolset, user, spec)
                    if not ready:
                        raise UsageError("the file has no tool to learn from")
            except (LoadError, ZygoteDied) as error:
                # Only variables are learned from an import: its error names its other needs.
                fresh = next((one for one in self._variables() if one not in self.at_import), None)
                if fresh is None:
                    raise
                self.report(f"import failed ({one_line(str(error))}): once more with {_shown(fresh)}")
                self.at_import = (*self.at_import, fresh)
        return [await self._of_tool(user, name, arguments) for name, arguments in ready.items()]

    async def _of_tool(self, user: User, tool: str, arguments: Mapping[str, Any] | str) -> Learned:
        """Return the policy of one tool: add grants until it passes, then remove unnecessary ones."""
        if is_pattern(tool) or _has_surrogate(tool):
            return Learned(tool=tool, error="a configuration cannot name it, or names other tools so")
        if isinstance(arguments, str):
            return Learned(tool=tool, error=arguments)
        grants, notes, tried = self.at_import, dict[str, None](), set(self.at_import)
        self.report(f"{tool}: called without rights")
        attempt = await self._attempt(user, tool, arguments, grants)
        while attempt.error is not None and len(grants) < _MOST_GRANTS:
            found = list(self._candidates(attempt))
            notes |= dict.fromkeys(one for one in found if isinstance(one, str))
            fresh = next((one for one in found if isinstance(one, Grant) and one not in tried), None)
            if fresh is None:
                break
            tried.add(fresh)
            self.report(f"{tool}: failed ({attempt.error}): once more with {_shown(fresh)}")
            following = await self._attempt(user, tool, arguments, (*grants, fresh))
            is_denied_still = fresh.denial is not None and fresh.denial in following.denials
            if following.error is None or not (is_denied_still or following == attempt):
                grants, attempt = (*grants, fresh), following
            else:
                notes[f"{_shown(fresh)} was granted in vain"] = None
        for grant in grants if attempt.error is None else ():
            rest = tuple(one for one in grants if one != grant)
            if grant in self.at_import:
                continue
            self.report(f"{tool}: passed: once more without {_shown(grant)}")
            without = await self._attempt(user, tool, arguments, rest)
            if without.error is None:
                grants, attempt = rest, without
                notes[f"{_shown(grant)} is not needed"] = None
        if attempt.error is None:
            denied = (one for one in attempt.denials if isinstance(self._grant(one), Grant))
            notes |= dict.fromkeys(f"passes although denied: {one.operation} {one.path}" for one in denied)
        return Learned(tool=tool, grants=grants, error=attempt.error, notes=tuple(notes))

    def _open(self, tool: str | None, grants: Sequence[Grant]) -> Any:
        """Open the file as a toolset in which one tool has these rights, and its import the variables."""
        shut = closed(self.settings, self.folder)
        times = {name: getattr(self.settings, name) for name in ("idle_timeout_s", "total_timeout_s")}
        none: dict[str, Any] = dict.fromkeys(RIGHTS, ()) | {"allow_sockets": False}
        values = {name: tuple(one.value for one in grants if one.setting == name) for name in RIGHTS}
        own = {} if tool is None else {**self.settings.own(tool), **none, **values, "scopes": ()}
        tools = {} if tool is None else {tool: ToolSettings(**own)}
        variables = tuple(one.value for one in self.at_import)
        update = {**none, **times, "allow_env": variables, "tools": tools}
        settings: Any = shut.model_copy(update={**update, "persist_files_across_sessions": True})
        return Toolset.open(settings, [self.target], secrets=Secrets())

    async def _attempt(
        self, user: User, tool: str, arguments: Mapping[str, Any], grants: Sequence[Grant]
    ) -> CallEnd:
        try:
            async with self._open(tool, grants) as toolset:
                return await call_once(toolset, user, tool, arguments)
        except (LoadError, ZygoteDied) as fault:
            return CallEnd(error=legible(str(fault)))

    def _candidates(self, tried: CallEnd) -> Iterator[Grant | str]:
        """Yield the grants that a failed call may need, and sentences about what cannot be granted."""
        for denial in tried.denials:
            yield self._grant(denial)
        # In the tier `namespace` a denied path does not exist.
        if tried.missing.startswith("/") and os.path.exists(tried.missing):
            found = self._grant(Denial(operation="open", path=tried.missing, wants="read"))
            # The denial is inferred, not reported by the tool.
            yield replace(found, denial=None) if isinstance(found, Grant) else found
        yield from self._variables()

    def _grant(self, denial: Denial) -> Grant | str:
        return grant_of(denial, self.settings, self.target)

    def _variables(self) -> Iterator[Grant]:
        """Yield the variables that the file reads, which are set here but hidden from tools."""
        open_anyway = framework_environment(os.environ, ())
        for need in needs(self.source):
            name = str(need["what"])
            if need["kind"] == "environment" and name in os.environ and name not in open_anyway:
                grant = Grant("allow_env", name, f"read on line {need['line']}")
                if _is_valid(grant):
                    yield grant


def grant_of(denial: Denial, settings: ServiceSettings, target: str) -> Grant | str:
    """Return the narrowest grant for a denial, or a sentence with the reason if there is none.

    Args:
        denial: The denial, as a tool reported it.
        settings: The effective settings, with the paths and ports that are closed to tools.
        target: The tool file, which no grant may make writable.
    """
    path, place = denial.path, f"{denial.operation} {denial.path}"
    if "\0" in path:
        return f"{place}: not granted, since no name has a zero byte"
    if denial.operation == "run":
        program = shutil.which(path, path=framework_environment(os.environ, ())["PATH"])
        # Links and `..` may lead elsewhere than the text of a path.
        real = Path(os.path.realpath(program or "/"))
        if program is None or not program.startswith("/") or within(real, os.path.realpath(settings.homes)):
            return f"{place}: not granted, since it is not a program of this machine"
        return Grant("allow_run", program, f"ran {path}", denial)
    if denial.operation in ("connect", "lookup") or denial.operation.startswith("socket."):
        return _network(denial, settings)
    if not path.startswith("/"):
        return f"{place}: not granted, since it is not a whole path"
    real = Path(os.path.realpath(path))
    writes = denial.wants == "write"
    if writes and not (denial.operation == "open" and real.is_file()):
        # Creating, renaming or removing a name requires writing its folder.
        real = real.parent
    if not real.exists():
        return f"{place}: not granted, since there is no {real}"
    if (own := _other_home(real)) or flag_for(
        str(real), denial.wants or "read", homes=settings.homes
    ) is None:
        return f"{place}: not granted: {own or real} is closed to tools"
    grant = Grant("allow_write" if writes else "allow_read", str(real), denial.operation, denial)
    if not _is_valid(grant):
        return f"{place}: not granted, since a configuration cannot name it"
    values: dict[str, Any] = {"allow_read": (), "allow_write": (), "tools": {}} | {grant.setting: (real,)}
    try:
        lend(settings.model_copy(update=values), tool_files([target]))
    except UsageError as error:
        return f"{place}: not granted: {error}"
    return grant


def _network(denial: Denial, settings: ServiceSettings) -> Grant | str:
    text, place = denial.path, f"{denial.operation} {denial.path}"
    if denial.operation == BIND:
        return f"{place}: not granted, since no tool may listen"
    try:
        to = Destination.parse(text)
    except ValueError:
        return f"{place}: not granted, since it names no host and port"
    addresses, is_name = to.network, to.name is not None and "*" not in to.name
    if not to.port or not (is_name if addresses is None else addresses.num_addresses == 1):
        return f"{place}: not granted, since it is not one host and one port"
    if addresses is not None and not _ANY_PORT.covers(addresses.network_address):
        return f"{place}: not granted: machines get their keys there"
    if to.port in settings.closed_ports:
        return f"{place}: not granted: the port is closed to tools"
    return Grant("allow_net", text, denial.operation, denial)


def _other_home(path: Path) -> str:
    """Return the home folder of root or of another account that contains a path; empty for none."""
    own = os.path.expanduser("~") if os.geteuid() else ""
    top = next((top for top in _OF_OTHERS if within(path, top)), "")
    return "" if not top or (own.startswith("/home/") and within(path, own)) else top


def _is_valid(grant: Grant) -> bool:
    try:
        ToolSettings(**{grant.setting: (grant.value,)})
    except ValidationError:
        return False
    return "\0" not in grant.value and not _has_surrogate(grant.value)


def _has_surrogate(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, which TOML cannot contain."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _shown(grant: Grant) -> str:
    return one_line(f"{grant.setting} {grant.value}")


def policy_text(learned: Sequence[Learned], settings: ServiceSettings, at_import: Sequence[Grant]) -> str:
    """Return the policies as lines of runner.toml, each value with its reason.

    Args:
        learned: The policies.
        settings: The effective settings, whose rights the values replace.
        at_import: The variables of the import.
    """
    lines: list[str] = []
    expected: dict[str, Any] = {}
    if at_import:
        expected["allow_env"] = [one.value for one in at_import]
        lines += ["# at import", *_entry("allow_env", at_import), ""]
    for one in learned:
        state = "passes with this" if one.error is None else f"fails, so this is a comment: {one.error}"
        lines += [f"# {one_line(text)}" for text in (f"{one.tool}: {state}", *one.notes)]
        key = one.tool if _BARE_KEY.fullmatch(one.tool) else _quoted(one.tool)
        table = [f"[tools.{key}]"]
        for name in RIGHTS:
            values = [grant for grant in one.grants if grant.setting == name]
            # A value for the tool replaces the general one, so an empty list is written too.
            if values or getattr(settings, name):
                table += _entry(name, values)
                if one.error is None:
                    own = expected.setdefault("tools", {}).setdefault(one.tool, {})
                    own[name] = [grant.value for grant in values]
        if len(table) > 1:
            lines += table if one.error is None else [f"# {line}" for line in table]
        lines.append("")
    text = "\n".join(lines).rstrip("\n")
    if tomllib.loads(text) != expected:
        raise RunnerError("the policy cannot be written as TOML; this is a fault of the runner")
    return text


def _entry(name: str, grants: Sequence[Grant]) -> list[str]:
    if not grants:
        return [f"{name} = []"]
    values = [f"    {_quoted(grant.value)},  # {one_line(legible(grant.reason))}" for grant in grants]
    return [f"{name} = [", *values, "]"]


def _quoted(text: str) -> str:
    """Return a text as a basic string of TOML, with hidden characters escaped."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    return f"\\U{ord(letter):08X}" if has_hidden(letter) else letter
