"""`runner worker`: runs a worker node until it is stopped; starts a new one after losing Redis."""

import asyncio
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

from runner.errors import UsageError
from runner.fleet.connection import REDIS_FAILURES, FleetConnection, leave_if_cancelled
from runner.fleet.messages import release_of
from runner.fleet.node import Node
from runner.http.readiness import Readiness
from runner.observation.metrics import Gauges, Metrics, metrics_served
from runner.settings.settings import Settings
from runner.system.stop_signals import StopSignals
from runner.toolset.toolset import Toolset

__all__ = ["check_of_fleet", "serve_node"]

log = logging.getLogger(__name__)

_LOOK_S = 0.5


def check_of_fleet(settings: Settings) -> None:
    """Refuse settings with which a fleet cannot run safely.

    Raises:
        UsageError: My Files are not in S3, isolation is `guard`, or the address or key is missing.
    """
    if settings.store_scheme != "s3":
        raise UsageError(
            "a fleet keeps My Files in S3, where all its machines have them; give --store s3://BUCKET/PREFIX"
        )
    if settings.isolation == "guard":
        raise UsageError(
            "--isolation guard stops no tool from reaching the Redis of the fleet; take another tier"
        )
    if settings.redis_url is None:
        raise UsageError("a fleet needs the address of its Redis; give --redis-url or RUNNER_REDIS_URL")
    if settings.fleet_key_file is None:
        raise UsageError(
            "a fleet needs a key, the same file on all its machines; "
            "give --fleet-key-file (openssl rand -base64 33 makes a key)"
        )


async def serve_node(settings: Settings, targets: Sequence[str]) -> int:
    """Execute calls of a fleet until a stop signal arrives; return the exit status.

    Args:
        settings: The effective settings.
        targets: The tool files.

    Raises:
        UsageError: The settings do not name a fleet, or its Redis cannot be used.
        LoadError: A tool file cannot be loaded.
    """
    signals = StopSignals.install()
    # Toolset and readiness of the current node, if there is one.
    current: tuple[Toolset, Readiness] | None = None

    async def gauges() -> Gauges:
        """Return the gauges of a node. Calls are counted by the hosts of their clients."""
        if current is None:
            return Gauges(faults=("fleet",), component="node")
        toolset, readiness = current
        found, faults = await toolset.gauges(), await readiness.faults()
        return replace(found, faults=tuple(faults), component="node")

    async with (
        FleetConnection.open(settings) as connection,
        # Across restarts of the node: waiting for Redis is healthy, and monitoring must see that.
        metrics_served(settings.metrics_address, Metrics(), gauges, hosts=settings.allowed_hosts),
    ):
        while not signals.stopped.is_set():
            leave_if_cancelled()
            try:
                await connection.redis.time()
            except REDIS_FAILURES:
                await asyncio.sleep(_LOOK_S)
                continue
            release = release_of(targets)
            async with (
                Toolset.open(settings, targets, of_fleet=True) as opened,
                Node.open(opened, connection, release) as node,
            ):
                print(f"worker node {node.name} of {connection.shown}", file=sys.stderr, flush=True)  # noqa: T201
                current = opened, Readiness.of_services(opened)
                ends = [asyncio.create_task(event.wait()) for event in (signals.stopped, node.fenced)]
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for task in ends:
                    task.cancel()
                if not node.fenced.is_set():
                    await node.drain(settings.drain_s, signals.again)
                current = None
    return signals.exit_status
