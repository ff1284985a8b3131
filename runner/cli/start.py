"""Start of a command: read the settings, set up the log, refuse an isolation tier that is not available.

It also starts and ends commands that serve: `serve`, `worker`, `dev`, `proxy`.
"""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Awaitable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from runner.errors import UsageError
from runner.settings.execution import ExecutionSettings
from runner.settings.settings import Settings
from runner.settings.sources import load, origins, widening
from runner.settings.trust import ConfigFile, read_trusted
from runner.system.allocator import keep_little
from runner.system.logging_setup import set_up
from runner.system.state_access import check_access
from runner.system.stop_signals import StopSignals
from runner.users.resource import is_loopback
from runner.worker.targets import entry_of, split_target
from sandbox.errors import IsolationUnavailable, LoadError, ZygoteDied
from sandbox.host.descriptors import raise_limit

__all__ = [
    "as_configured",
    "explained",
    "for_one_user",
    "load_and_warn",
    "of_fleet",
    "start",
    "start_server",
    "stopped_by_signals",
    "warn_ignored",
]

log = logging.getLogger(__name__)


def start(flags: Mapping[str, Any], config: Path | None, *, whole: bool = False) -> Settings:
    """Return the settings, checked, after setting up the log.

    Args:
        flags: Settings given on the command line.
        config: The file of settings, instead of the usual one.
        whole: Whether to refuse a configuration with ignored settings, as a server does.

    Raises:
        UsageError: A setting is wrong.
        IsolationUnavailable: The requested isolation is not available.
        StartError: This user may not use a file of the state folder or of the store.
    """
    settings = load_and_warn(flags, config, whole=whole)
    set_up(settings.log_level, settings.log_format)
    if os.path.expanduser("~") == "~":
        # FastMCP requires a home on import; this user has none, as is usual in a container.
        os.environ["HOME"] = str(settings.state_dir)
    # On other systems only commands run that call no tools.
    if sys.platform == "linux":
        _check_isolation(settings)
    check_access(settings.state_dir, settings.local_store)
    return settings


def load_and_warn(
    flags: Mapping[str, Any], config: Path | ConfigFile | None, *, whole: bool = False
) -> Settings:
    """Return the settings, and print those ignored because their configuration file is not trusted.

    The section for the output guard is checked too, instead of at the first call.

    Args:
        flags: Settings given on the command line.
        config: The file of settings, instead of the usual one; or the one of the start, to be reread.
        whole: Whether to refuse such a configuration instead.

    Raises:
        UsageError: A setting is wrong, or one is ignored that must not be.
    """
    settings = load(flags, config=config)
    if settings.ignored and whole:
        raise UsageError("\n".join(settings.ignored))
    warn_ignored(settings)
    if settings.output_guard:
        from runner.output_guard.guard import config_of  # noqa: PLC0415 - only where the section is given

        config_of(settings)
    return settings


def warn_ignored(settings: ExecutionSettings) -> None:
    """Print the settings ignored because their configuration file is not trusted."""
    for sentence in settings.ignored:
        print(f"runner: {sentence}", file=sys.stderr)  # noqa: T201


def start_server(flags: Mapping[str, Any], config: Path | None) -> Settings:
    """Start a server: raise the descriptor limit, since each user needs some, and limit retained memory."""
    settings = start(flags, config, whole=True)
    raise_limit()
    keep_little()
    return settings


def for_one_user(settings: Settings, transport: Literal["stdio", "http"]) -> Settings:
    """Return settings with the defaults of a server for a single user, if it is one.

    Calls share a process, and the user may have all places: such a server replaces one that runs all calls
    in its own process, and there are no other users to protect.
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
    """Return a module of the fleet, after checking that the settings are those of a fleet.

    Raises:
        UsageError: They are not, or packages that it needs are not installed.
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
    """Run a server; a signal during its start shuts it down gracefully, like a later one."""
    signals, serving = StopSignals.install(), asyncio.ensure_future(server)
    waits = [asyncio.create_task(event.wait()) for event in (signals.stopped, signals.again)]
    for wait in waits:
        wait.add_done_callback(lambda _: serving.cancel())
    try:
        return await serving
    except asyncio.CancelledError:
        # The server has shut down gracefully. A thread may still be importing: it cannot be interrupted,
        # and takes many seconds on a busy machine.
        logging.shutdown()
        os._exit(signals.exit_status)


def as_configured(settings: Settings, targets: list[str]) -> Settings:
    """Return the settings, with defaults for serving from a `fastmcp.json`.

    Raises:
        UsageError: A value is not valid for its setting, or widens rights and the file is not trusted.
    """
    deployments = [(target, entry_of(target).deployment) for target in targets]
    if len(deployments) != 1:
        return settings
    ((target, deployment),) = deployments
    origin = origins(settings)
    names = [name for name in ("transport", "host", "port", "log_level") if origin[name] == "default"]
    wanted = {name: deployment[name] for name in names if deployment.get(name) is not None}
    if wanted.get("transport") in ("sse", "streamable-http"):
        wanted["transport"] = "http"
    if isinstance(wanted.get("log_level"), str):
        level = wanted["log_level"].lower()
        wanted["log_level"] = "error" if level == "critical" else level
    # A named file is served over HTTP on loopback at a terminal anyway.
    wide = [name for name, value in wanted.items() if name != "transport" and widening((name,), value)]
    if wide == ["host"] and is_loopback(str(wanted["host"])):
        wide = []
    if wide:
        read_trusted(Path(split_target(target)[0]), f"its {', '.join(wide)}")
    if deployment.get("path") not in (None, "/mcp", "/mcp/"):
        log.warning("deployment path ignored", extra={"file": target, "served_at": "/mcp"})
    try:
        return settings.model_copy(update=Settings(**wanted).model_dump(include=set(wanted)))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UsageError(f"{target}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


async def explained(command: Awaitable[int], targets: list[str]) -> int:
    """Run a command; prefix its errors with the names of the tool files."""
    try:
        return await command
    except (LoadError, ZygoteDied) as error:
        names = ", ".join(Path(target).name for target in targets)
        line = error.line if isinstance(error, LoadError) else None
        raise LoadError(f"{names} cannot be served: {error}", line) from error


def _check_isolation(settings: Settings) -> None:
    """Refuse an explicitly requested isolation that this machine or version does not support."""
    # Imported here: `config` does not need the probe of the kernel.
    from runner.settings.isolation import has_ids, in_force, lacking, unfit  # noqa: PLC0415

    if missing := lacking(settings):
        raise IsolationUnavailable(missing)
    if closed := unfit(in_force(settings), (), settings):
        raise IsolationUnavailable((closed,))
    if settings.isolation == "guard":
        # At level ERROR, so that no `log_level` hides it.
        log.error("ISOLATION IS OFF", extra={"advice": "guard stops no attack; never let others call this"})
        return
    has_network = any(settings.rights(tool).network for tool in (None, *settings.tools))
    if not (has_network or settings.has_sockets):
        return
    # Network rights cannot be granted on a machine without a gate.
    from sandbox.probe.gate import try_gate  # noqa: PLC0415 - only where it is needed

    gate = try_gate(settings.uids.start if has_ids(in_force(settings)) else None)
    if not gate.enforced:
        name = "allow_net" if has_network else "allow_sockets"
        raise IsolationUnavailable((f"{name} cannot be given here: {gate.detail}",))
