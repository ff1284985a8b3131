"""`runner doctor`: what this machine and configuration can enforce. `runner.doctor` finds out."""

import asyncio
from typing import Annotated

import typer

from runner.cli.exits import Report
from runner.cli.options import WHOSE, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.doctor import repair as store
from runner.doctor.report import report
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
    # A file that may not be read is not lost: the report names it, and nothing is repaired before.
    usable = not any(denied_in(settings.state_dir, settings.local_store))
    repaired = asyncio.run(store.repair(settings)) if repair and usable else ()
    read = asyncio.run(store.verify(settings)) if verify and usable else ()
    # After the repair, so that it has what is left.
    found = report(settings, *repaired, *read, whole_bucket=whole_bucket)
    return Report(found.to_json(), found.text(), status=found.exit_status, indent=2)
