"""`runner check`: findings in a tool file. `runner.check` makes them."""

import asyncio

from runner.check.report import check_from_shell
from runner.cli.options import BOUNDS, LOGS, AsJson, Config, File, Flags, takes
from runner.cli.start import explained, start
from runner.worker.targets import check_targets

__all__ = ["check"]


@takes(*BOUNDS, *LOGS)
def check(file: File, *, as_json: AsJson = False, config: Config = None, flags: Flags) -> int:
    """Check a tool file, with a dry run of its tools."""
    target = check_targets([file])[0]
    # A dry run reports denials itself; the log would repeat them.
    settings = start({"log_level": "error", **flags}, config)
    return asyncio.run(explained(check_from_shell(settings, target, as_json=as_json), [target]))
