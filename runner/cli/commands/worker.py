"""`runner worker`: calls of the hosts of a fleet, on this machine."""

import asyncio

from runner.cli.options import BOUNDS, FLEET, LOGS, Config, Files, Flags, takes
from runner.cli.start import explained, of_fleet, start_server, stopped_by_signals
from runner.worker.targets import check_targets

__all__ = ["worker"]


@takes("store", *BOUNDS, "fresh", *FLEET, *LOGS)
def worker(files: Files, *, config: Config = None, flags: Flags) -> int:
    """Execute calls until a signal."""
    targets = check_targets(files)
    settings = start_server(flags, config)
    serve_node = of_fleet(settings, "serve_node").serve_node
    return asyncio.run(stopped_by_signals(explained(serve_node(settings, targets), targets)))
