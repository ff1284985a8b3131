"""`runner check`: is this a good tool file? Its text is read here, its import watched in the sandbox."""

import asyncio
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from runner.check.import_rules import seen_at_import
from runner.check.import_watch import WatchedImport
from runner.check.needs import PolicyNeed
from runner.check.rules import Finding, Severity
from runner.check.text_rules import TextReport, check_text, waived
from runner.check.widgets import seen_of_widgets
from runner.formats.terminal_text import json_text
from runner.settings.secrets import Secrets, SecretSettings, secret_fault
from runner.settings.settings import Settings
from runner.settings.targets import entry_of
from runner.toolset.background import refused_jobs
from runner.toolset.catalog import ToolSpec
from runner.toolset.hidden_files import HiddenFile, hidden_files
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from sandbox.errors import ConfinementError, IsolationUnavailable, SandboxError
from sandbox.host.zygote import Loaded

__all__ = ["check_from_shell"]

_PROGRAM = "runner.check.program"
_FORKED = "every call is forked from a process that has loaded the file"
_ONE_SHOT = "every call gets an interpreter of its own, because a thread runs after the import"
_HOMES = {
    HomeAccess.NONE: "reads system folders only",
    HomeAccess.READ: "reads the files it is given",
    HomeAccess.WRITE: "writes /tmp/{username}/, reads the files in it",
}
_NEEDS = {
    "network": "the network, which is closed unless it is allowed",
    "programs": "other programs, which may run unless `--deny-run` is given",
    "environment": "a variable that is not there unless `--allow-env` names it",
    "hidden": "a hidden file, which tools do not see",
    "dotenv": "a variable of a hidden file, which tools do not see",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """All that is known of one file; `tools` is empty where it could not be loaded.

    `secrets` are those that the settings give its tools, each with why it cannot be had, if it cannot.
    """

    file: str
    findings: tuple[Finding, ...] = ()
    needs: tuple[PolicyNeed, ...] = ()
    tools: Mapping[str, ToolSpec]
    forks: bool | None = None
    homes_for: Literal["declared", "all"] = "declared"
    unseen: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    secrets: Mapping[str, str | None] = field(default_factory=dict)
    rules: Mapping[str, SecretSettings] = field(default_factory=dict)
    error: SandboxError | None = None

    def access(self, tool: ToolSpec) -> HomeAccess:
        """Return what calls of a tool may do with their user's home."""
        return HomeAccess.of(tool, homes_for=self.homes_for)

    @property
    def exit_status(self) -> int:
        return int(any(finding.severity is Severity.MUST for finding in self.findings))


async def check_from_shell(settings: Settings, target: str, *, as_json: bool) -> int:
    """Check one tool file, print what was found, and return the exit status.

    Raises:
        LoadError: The file cannot be loaded. What its text tells has been printed.
        SandboxError: It cannot be loaded here; the message says why.
    """
    report = await _check(settings, entry_of(target).file, target)
    print(json_text(_json(report), indent=2) if as_json else _text(report))  # noqa: T201
    if report.error is not None:
        raise report.error
    return report.exit_status


async def _check(settings: Settings, path: Path, target: str) -> _Report:
    text = _read(path)
    told = _look(text, path.parent, settings.username_parameter) if text is not None else None
    findings = told.findings if told is not None else ()
    hidden = await asyncio.to_thread(hidden_files, [path], settings)
    needs = _with_hidden(told.needs if told is not None else (), hidden)
    try:
        async with (
            # It is imported and not called, so no secret is needed.
            Toolset.open(settings, [target], program=_PROGRAM, secrets=Secrets()) as toolset,
            toolset.user_pool(
                User("nobody"), toolset.key(User("nobody"), access=HomeAccess.NONE)
            ) as user_pool,
        ):
            tools, loaded, forks = (
                toolset.catalog.tools,
                user_pool.pool.loaded,
                user_pool.pool.loaded.threads == 1,
            )
    except (ConfinementError, IsolationUnavailable):
        # Not the file's fault: nothing is said about it.
        raise
    except SandboxError as error:
        return _Report(file=path.name, findings=findings, needs=needs, tools={}, error=error)
    known = {offer.name for offer in told.offers} if told is not None else set()
    if told is not None:
        findings = _with_import(told, path.name, loaded)
    return _Report(
        file=path.name,
        findings=findings,
        needs=needs,
        tools=tools,
        forks=forks,
        homes_for=settings.homes_for,
        unseen=tuple(name for name in tools if name not in known),
        refused=refused_jobs(settings, tools),
        secrets=await asyncio.to_thread(_secrets, settings, tools),
        rules=settings.secrets,
    )


def _with_hidden(needs: Iterable[PolicyNeed], hidden: Sequence[HiddenFile]) -> tuple[PolicyNeed, ...]:
    """Return needs with hidden files among them, and with the option for variables that stand in one."""
    flags = {name: file.flag for file in hidden for name in file.variables}
    return (
        *(
            PolicyNeed(kind="hidden", what=file.path.name, line=file.line, option=file.flag)
            for file in hidden
        ),
        *(
            replace(need, kind="dotenv", option=flags[need.what])
            if need.kind == "environment" and need.what in flags
            else need
            for need in needs
        ),
    )


def _secrets(settings: Settings, tools: Mapping[str, ToolSpec]) -> dict[str, str | None]:
    rules = settings.secrets.items()
    return {
        name: secret_fault(name, rule) for name, rule in rules if any(tool in tools for tool in rule.tools)
    }


def _read(path: Path) -> str | None:
    """Return the text of a file, or None where it is not Python; loading it says why."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeError, LookupError):
        # A coding that Python does not read source in, too.
        return None


def _look(text: str, folder: Path, identity: str) -> TextReport | None:
    """Return what the text tells, or None where it is not Python or nested without end."""
    try:
        return check_text(text, folder, identity=identity)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The parser says of some texts that nest without end that it has no memory.
        return None


def _with_import(told: TextReport, name: str, loaded: Loaded) -> tuple[Finding, ...]:
    """Add what was seen of the import to what the text tells, each thing once."""
    try:
        watched = WatchedImport.from_hello(loaded.hello)
    except ValueError as error:
        raise SandboxError(str(error)) from error
    known = {(finding.rule, finding.line) for finding in told.findings}
    seen = seen_at_import(watched, told.source, name, threads=loaded.threads)
    new = [finding for finding in seen if (finding.rule, finding.line) not in known]
    broken = frozenset(finding.rule for finding in told.findings)
    new += seen_of_widgets(loaded.hello, told.offers, told.source, broken)
    return waived(dict.fromkeys([*told.findings, *new]), told.source.ignored)


def _json(report: _Report) -> dict[str, Any]:
    return {
        "file": report.file,
        "loads": report.error is None,
        "error": str(report.error) if report.error is not None else None,
        "runs": None if report.forks is None else {"forked": report.forks, "why": _way(report)},
        "tools": [
            {
                "name": tool.name,
                "arguments": list(tool.parameters.get("properties", {})),
                "home": report.access(tool).value,
            }
            for tool in report.tools.values()
        ],
        "background_refused": list(report.refused),
        "secrets": dict(report.secrets),
        "needs": [asdict(need) for need in report.needs],
        "not_looked_at": list(report.unseen),
        "findings": [asdict(found) | {"severity": found.severity.value} for found in report.findings],
    }


def _text(report: _Report) -> str:
    lines = [
        f"{report.file}:{found.line}:{found.column}: {found.severity.value}: {found.message}\n"
        f"    {found.cure}  [{found.rule}]"
        for found in report.findings
    ]
    lines += [
        f"tool {tool.name}({', '.join(tool.parameters.get('properties', {}))}): {_HOMES[report.access(tool)]}"
        for tool in report.tools.values()
    ]
    lines += [
        f"needs {_NEEDS[need.kind]}: `{need.what}`, line {need.line}"
        + (f"; `{need.option}` lends it" if need.option else "")
        for need in report.needs
    ]
    if report.refused:
        lines.append(f"needs `background_jobs = true` to go on between calls: {', '.join(report.refused)}")
    lines += [
        f"secret {name}: {fault or report.rules[name].report}" for name, fault in report.secrets.items()
    ]
    if report.unseen:
        lines.append(f"not looked at, because not defined in this file: {', '.join(report.unseen)}")
    if report.forks is not None:
        lines.append(_way(report))
    return "\n".join([*lines, _summary(report)])


def _way(report: _Report) -> str:
    return _FORKED if report.forks else _ONE_SHOT


def _summary(report: _Report) -> str:
    must = sum(finding.severity is Severity.MUST for finding in report.findings)
    should = len(report.findings) - must
    if report.error is not None:
        return f"{report.file} cannot be loaded"
    if not report.findings:
        return f"{report.file} is fine"
    return f"{report.file}: {must} must change, {should} should"
