"""The start and end of commands that serve: `serve`, `worker`, `dev`, `proxy`."""

import asyncio
import importlib
import logging
import os
import signal
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal

from runner.cli.exits import EXIT_INTERRUPTED
from runner.cli.start import load_and_warn, start
from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.settings.sources import origins
from runner.system.allocator import keep_little
from sandbox.host.descriptors import raise_limit

__all__ = ["again", "for_one_user", "of_fleet", "start_server", "stopped_by_signals"]


def start_server(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """Do what `start` does for a server: it may have many descriptors, since each user costs some, and lasts.

    So what it no longer uses, it gives back.
    """
    settings = start(flags, config, whole=True)
    raise_limit()
    keep_little()
    return settings


def again(flags: Mapping[str, Any], settings: Settings) -> Settings:
    """Read again the configuration file that a server was started with, and no other."""
    return load_and_warn(flags, settings.config_source, whole=True)


def for_one_user(settings: Settings, transport: Literal["stdio", "http"]) -> Settings:
    """Return settings with the defaults of a server that is bound to one user, if it is.

    Calls share a process, and none is refused a place: such a server replaces one that runs all calls in its
    own process, and there is nobody else to protect.
    """
    has_auth = settings.auth.kind != "none"
    if settings.is_fleet or (transport == "http" and settings.user is None and has_auth):
        return settings
    origin = origins(settings)
    if origin["worker_reuse"] != "default" and settings.worker_reuse != "shared":
        return settings
    values = {"worker_reuse": "shared", "max_calls_per_user": settings.max_calls}
    return settings.model_copy(
        update={name: value for name, value in values.items() if origin[name] == "default"}
    )


def of_fleet(settings: Settings, module: str) -> Any:
    """Return a module of the fleet, once the settings are known to be those of one.

    Raises:
        UsageError: They are not, or the packages that it needs are not installed.
    """
    try:
        found = importlib.import_module(f"runner.fleet.{module}")
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise UsageError("a fleet needs packages that are not installed; install toolcell[fleet]") from error
    importlib.import_module("runner.fleet.serve_node").check_of_fleet(settings)
    return found


async def stopped_by_signals(server: Coroutine[Any, Any, int]) -> int:
    """Run a server; a signal that comes during its start ends it in order, as one that comes later does."""
    came: list[int] = []
    serving = asyncio.ensure_future(server)

    def stop(number: int) -> None:
        came.append(number)
        serving.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await serving
    except asyncio.CancelledError:
        # The server has left in order what it had begun. What goes on is a thread that imports, which nobody
        # can interrupt and which takes many seconds where the machine is busy.
        logging.shutdown()
        os._exit(EXIT_INTERRUPTED if signal.SIGINT in came else 0)
