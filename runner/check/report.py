"""`runner check`: findings in the text of a tool file, in its import and in a dry run in the sandbox."""

import asyncio
import sys
import tokenize
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner.check.source import RULES, SourceFile
from runner.check.text_rules import check_text, needs
from runner.formats.terminal_text import json_text, one_line, visible
from runner.settings.settings import Settings
from runner.toolset.hidden_files import hidden_files
from runner.worker.targets import entry_of
from sandbox.errors import ConfinementError, IsolationUnavailable, SandboxError

__all__ = ["check_from_shell", "parsed"]

_HOMES = {
    "none": "reads system folders only",
    "read": "reads the files it is given",
    "write": "writes /tmp/{username}/, reads the files in it",
}
_NO_LINUX = (
    "only its text was looked at: its import and the dry run of its tools need a Linux kernel, as in "
    "`runner --in docker check`"
)
_NEEDS = {
    "network": "the network, which is closed unless it is allowed",
    "programs": "other programs, which may run unless `--deny-run` is given",
    "environment": "a variable that is not there unless `--allow-env` names it",
    "hidden": "a hidden file, which tools do not see",
    "dotenv": "a variable of a hidden file, which tools do not see",
}


async def check_from_shell(settings: Settings, target: str, *, as_json: bool) -> int:
    """Check one tool file, print the report, and return the exit status.

    Raises:
        LoadError: The file cannot be loaded. Findings in its text have been printed.
        SandboxError: It cannot be loaded here; the message gives the reason.
    """
    path = entry_of(target).file
    source = parsed(path, settings.username_parameter)
    findings = list(check_text(source))
    hidden = await asyncio.to_thread(hidden_files, [path], settings)
    flags = {name: file.flag for file in hidden for name in file.variables}
    needed: list[dict[str, str | int]] = [
        {"kind": "hidden", "what": file.path.name, "line": file.line, "option": file.flag} for file in hidden
    ]
    for need in needs(source):
        flag = flags.get(str(need["what"]), "") if need["kind"] == "environment" else ""
        needed.append(need | ({"kind": "dotenv"} if flag else {}) | {"option": flag})
    report: dict[str, Any] = {
        "file": path.name, "loads": False, "error": None, "runs": None, "tools": [], "background_refused": [],
        "secrets": {}, "needs": needed, "dry_run": [], "not_looked_at": [],
    }  # fmt: skip
    failure: SandboxError | None = None
    try:
        if sys.platform == "linux":
            # Imported here: running tools needs Linux system calls.
            from runner.check.dry_run import in_sandbox  # noqa: PLC0415

            findings += await in_sandbox(settings, target, source, report)
        else:
            report |= {"loads": None, "error": _NO_LINUX}
    except (ConfinementError, IsolationUnavailable):
        # Not a fault of the file, so it is not in the report.
        raise
    except SandboxError as error:
        failure, report["error"] = error, str(error)
    found = source.without_waived(findings)
    report["findings"] = [asdict(each) | {"severity": RULES[each.rule]} for each in found]
    print(json_text(report, indent=2) if as_json else visible(_text(report, settings)))  # noqa: T201
    if failure is not None:
        raise failure
    return int(any(RULES[each.rule] == "must" for each in found))


def parsed(path: Path, identity: str) -> SourceFile:
    """Return a parsed file; an empty one if it is not Python, whose fault is reported on loading."""
    try:
        with tokenize.open(path) as file:
            return SourceFile(file.read(), name=path.name, identity=identity)
    except (SyntaxError, ValueError, LookupError, RecursionError, MemoryError):
        # An unsupported source encoding, or a text nested too deeply.
        return SourceFile("", name=path.name, identity=identity)


def _text(report: Mapping[str, Any], settings: Settings) -> str:
    file, findings = report["file"], report["findings"]
    lines = [
        f"{file}:{each['line']}:{each['column']}: {each['severity']}: {one_line(each['message'])}\n"
        f"    {each['cure']}  [{each['rule']}]"
        for each in findings
    ]
    runs = {run["tool"]: run for run in report["dry_run"]}
    for tool in report["tools"]:
        lines.append(f"tool {tool['name']}({', '.join(tool['arguments'])}): {_HOMES[tool['home']]}")
        if (run := runs.get(tool["name"])) is not None:
            denied = [f"{denial['operation']} {denial['path']}" for denial in run["denied"]]
            done = {"wrote": run["wrote"], "read": run["read"], "was denied": denied}
            shown = [f"{verb} {', '.join(names)}" for verb, names in done.items() if names]
            shown += [f"ended with an error: {run['error']}"] if run["error"] is not None else []
            lines.append(f"    dry run: {one_line('; '.join(shown)) or 'touched no files'}")
    lines += [
        f"needs {_NEEDS[need['kind']]}: `{need['what']}`, line {need['line']}"
        + (f"; `{need['option']}` lends it" if need["option"] else "")
        for need in report["needs"]
    ]
    if refused := report["background_refused"]:
        lines.append(f"needs `background_jobs = true` to go on between calls: {', '.join(refused)}")
    for name, fault in report["secrets"].items():
        lines.append(f"secret {name}: {fault or settings.secrets[name].report}")
    if unseen := report["not_looked_at"]:
        lines.append(f"not looked at, because not defined in this file: {', '.join(unseen)}")
    lines += [report["runs"]["why"]] if report["runs"] is not None else []
    lines += [str(report["error"])] if report["loads"] is None else []
    must = sum(each["severity"] == "must" for each in findings)
    counted = f"{file}: {must} must change, {len(findings) - must} should" if findings else f"{file} is fine"
    return "\n".join([*lines, counted if report["loads"] is not False else f"{file} cannot be loaded"])
