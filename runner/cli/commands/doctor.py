"""`runner doctor`: a report of what this machine and configuration can enforce; see `runner.doctor`."""

import asyncio
from typing import Annotated

import typer

from runner.cli.exits import Report
from runner.cli.options import WHOSE, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.doctor import report as checks
from runner.system.state_access import denied_in

__all__ = ["doctor"]


@takes("isolation", *WHOSE)
def doctor(
    *,
    as_json: AsJson = False,
    repair: Annotated[bool, typer.Option("--repair", help="Repair the local store, and report it.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every stored file, and name those that are damaged.")
    ] = False,
    whole_bucket: Annotated[
        bool, typer.Option("--whole-bucket", help="List a store in S3 to its end, however long that takes.")
    ] = False,
    config: Config = None,
    flags: Flags,
) -> Report:
    """Report the layers, the store and the configuration."""
    settings = load_and_warn(flags, config)
    # An unreadable file is not lost: the report names it, and repairs wait until it is accessible.
    usable = not any(denied_in(settings.state_dir, settings.local_store))
    repaired = asyncio.run(checks.repair(settings)) if repair and usable else ()
    read = asyncio.run(checks.verify(settings)) if verify and usable else ()
    # After the repair, so that it reports the remaining faults.
    found = checks.report(settings, *repaired, *read, whole_bucket=whole_bucket)
    return Report(found.to_json(), found.text(), status=found.exit_status, indent=2)
