"""`runner audit`: check the audit log, or digest a value as the log does.

Source: `docs/operating.md`, "Audit log".
"""

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from runner.cli.exits import Report
from runner.cli.options import AsJson, Config
from runner.cli.start import load_and_warn
from runner.errors import UsageError
from runner.observation.audit_log import AuditLog, AuditVerdict, verify

__all__ = ["audit"]


def audit(
    action: Annotated[Literal["verify", "digest"], typer.Argument(metavar="verify|digest")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Of the log; by default the setting audit_dir.")
    ] = None,
    *,
    expect: Annotated[
        str | None, typer.Option(metavar="HASH", help="verify: a record with this hash must be in it.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> int | Report:
    """Check that no line was changed or is missing (exit status 1 if one was), or make a digest."""
    settings = load_and_warn({}, config, whole=True)
    if expect is not None and action != "verify":
        raise UsageError("--expect belongs to `runner audit verify`")
    log = folder or settings.audit_dir
    if log is None:
        raise UsageError("there is no audit log: set audit_dir, or name its folder")
    if action == "digest":
        if not log.is_dir():
            raise UsageError(f"there is no audit log in {log}; is it the setting audit_dir?")
        try:
            value = json.load(sys.stdin)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"standard input is not JSON: {error}") from error
        with contextlib.closing(AuditLog(log)) as opened:
            print(opened.digest(value))  # noqa: T201
        return 0
    verdict = verify(log, expected=expect)
    answer = {**asdict(verdict), "is_whole": verdict.is_whole}
    return Report(answer, _text(verdict), status=int(not verdict.is_whole))


def _text(verdict: AuditVerdict) -> str:
    state = "every one as it was written" if verdict.is_whole else "NOT AS IT WAS WRITTEN"
    lines = [f"{verdict.records} records, {verdict.first} to {verdict.last}: {state}"]
    lines += [f"fault: {fault}" for fault in verdict.faults]
    lines += [f"note: {note}" for note in verdict.notes]
    lines += [f"no end: call {call} of {facts}" for call, facts in verdict.open_calls.items()]
    return "\n".join([*lines, f"last hash: {verdict.hash}"])
