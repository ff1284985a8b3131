"""What `runner audit` does: checks the audit log, or digests a value as the log does.

Source: `docs/operating.md`, "Audit log".
"""

import contextlib
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.errors import UsageError
from runner.formats.terminal_text import json_text
from runner.observation.audit_chain import AuditVerdict, verify
from runner.observation.audit_log import AuditLog
from runner.settings.settings import Settings

__all__ = ["AuditOptions", "audit_from_shell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """What the command line says.

    Attributes:
        action: `verify` or `digest`.
        folder: Where the log is, if not where the settings say.
        expect: The hash of a record that must be in it.
        as_json: Whether the answer is one JSON document.
    """

    action: str
    folder: Path | None
    expect: str | None
    as_json: bool

    def __post_init__(self) -> None:
        if self.action not in ("verify", "digest"):
            raise UsageError(f"`runner audit` knows verify and digest, not {self.action!r}")
        if self.expect is not None and self.action != "verify":
            raise UsageError("--expect belongs to `runner audit verify`")


def audit_from_shell(settings: Settings, options: AuditOptions) -> int:
    """Do what was asked, print the answer, and return the exit status: 1 if the log is not as it was written.

    Raises:
        UsageError: There is no audit log, or what is to be digested is no JSON.
    """
    folder = options.folder or settings.audit_dir
    if folder is None:
        raise UsageError("there is no audit log: set audit_dir, or name its folder")
    if options.action == "digest":
        print(_digest(settings, folder))  # noqa: T201
        return 0
    verdict = verify(folder, expected=options.expect)
    told = {**asdict(verdict), "is_whole": verdict.is_whole}
    print(json_text(told) if options.as_json else _text(verdict))  # noqa: T201
    return 0 if verdict.is_whole else 1


def _text(verdict: AuditVerdict) -> str:
    state = "every one as it was written" if verdict.is_whole else "NOT AS IT WAS WRITTEN"
    lines = [f"{verdict.records} records, {verdict.first} to {verdict.last}: {state}"]
    lines += [f"fault: {fault}" for fault in verdict.faults]
    lines += [f"note: {note}" for note in verdict.notes]
    lines += [f"no end: call {call} of {facts}" for call, facts in verdict.open_calls.items()]
    return "\n".join([*lines, f"last hash: {verdict.hash}"])


def _digest(settings: Settings, folder: Path) -> str:
    try:
        value = json.load(sys.stdin)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"what came on standard input is no JSON: {error}") from error
    if not folder.is_dir():
        raise UsageError(f"there is no audit log in {folder}; is it the setting audit_dir?")
    with contextlib.closing(AuditLog.open(folder)) as log:
        return log.digest(value)
