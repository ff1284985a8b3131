"""`runner reload`: make running servers reload their configuration, and print the outcome of each.

Source: `docs/cli.md`, "Reload".
"""

import os
import signal
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from runner.cli.exits import Report
from runner.cli.options import AsJson, Config
from runner.cli.start import load_and_warn
from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.system.running_servers import Running, one_at_a_time, running_in

__all__ = ["reload"]

# Each operator's command that fetches a secret may take 20 seconds.
_PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.05


def reload(
    *,
    pid: Annotated[int | None, typer.Option(metavar="PID", help="Only this server.")] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> Report:
    """Reload the servers of the state folder; exit with status 1 if one refuses its new configuration."""
    settings = load_and_warn({}, config)
    with one_at_a_time(settings.state_dir, patience_s=_PATIENCE_S):
        running = running_in(settings.state_dir)
        servers = [server for server in running if server.is_near and pid in (None, server.pid)]
        if not servers:
            raise UsageError(_nobody(settings, running, pid))
        reports = [{"pid": server.pid, "serves": server.serves, **_reload(server)} for server in servers]
    status = int(any(report["error"] is not None for report in reports))
    return Report(reports, "\n".join(map(_text, reports)), status=status, indent=2)


def _nobody(settings: Settings, running: list[Running], pid: int | None) -> str:
    which = "no server runs" if pid is None else f"no server with the process id {pid} runs"
    far = len([server for server in running if not server.is_near])
    hint = (
        f"; {far} run in other containers: call `runner reload` there, or send their process SIGHUP"
        if far
        else "; where it has another one, name that with RUNNER_STATE_DIR or --config"
    )
    return f"{which} with the state folder {settings.state_dir}{hint}"


def _reload(server: Running) -> Mapping[str, Any]:
    """Signal a server and return the outcome it records."""
    os.kill(server.pid, signal.SIGHUP)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        now = server.again()
        if now is None:
            return {"changed": [], "restart": [], "error": "the server has ended"}
        if now.reloads > server.reloads:
            return now.outcome
        time.sleep(_LOOK_EVERY_S)
    return {"changed": [], "restart": [], "error": f"it has not answered within {_PATIENCE_S:g} seconds"}


def _text(report: Mapping[str, Any]) -> str:
    server = f"{report['serves']} (process {report['pid']})"
    if report["error"] is not None:
        return "\n".join(
            [f"{server}: nothing changed", *(f"  {line}" for line in report["error"].splitlines())]
        )
    lines = [f"{server}: {len(report['changed'])} changes hold from now on"]
    lines += [f"  {line}" for line in report["changed"]]
    if report["restart"]:
        lines += ["  needs a restart:", *(f"    {line}" for line in report["restart"])]
    return "\n".join(lines)
