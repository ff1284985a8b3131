"""The command that works with the audit log: `audit`."""

from pathlib import Path
from typing import Annotated

import typer

from runner.cli.exits import end_with
from runner.cli.options import AsJson, Config
from runner.cli.start import load_told

__all__ = ["audit"]


def audit(
    action: Annotated[str, typer.Argument(metavar="verify|digest")],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="Of the log; by default the setting audit_dir.")
    ] = None,
    *,
    expect: Annotated[
        str | None, typer.Option(metavar="HASH", help="verify: a record with this hash must be in it.")
    ] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Check that no line of the audit log was changed or is missing, or make a digest to search it with."""
    end_with(lambda: _audit(action, folder, expect, as_json=as_json, config=config))


def _audit(
    action: str, folder: Path | None, expect: str | None, *, as_json: bool, config: Path | None
) -> int:
    from runner.cli.run_audit import AuditOptions, audit_from_shell  # noqa: PLC0415 - needed here only

    options = AuditOptions(action=action, folder=folder, expect=expect, as_json=as_json)
    return audit_from_shell(load_told({}, config, whole=True), options)
