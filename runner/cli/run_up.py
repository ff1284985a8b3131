"""`runner up`, `ps` and `down`: a server for each user of a file, kept by one supervisor.

Source: `docs/cli.md`, "up, ps, down"; `docs/deploy.md`.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.cli.start import load_checked
from runner.errors import StartError
from runner.formats.terminal_text import json_text, table
from runner.system.logging_setup import set_up
from runner.up.control import NoSupervisor, ask, supervise
from runner.up.folders import Folders
from runner.up.keeping import shown
from runner.up.processes import last_line
from runner.up.record import read_record
from runner.up.supervisor import Supervisor, check_users, only_one

__all__ = ["Up", "down_from_shell", "ps_from_shell", "up_from_shell"]

_BEGIN_S = 30.0
_LOOK_S = 0.05
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """What `runner up` was asked.

    Attributes:
        users: The file of users.
        folder: The folder of the installation; None: the usual one.
        config: The configuration file, of which the range of user ids and the log count.
        detach: Whether to go on in the background.
        as_json: Whether to print exactly one JSON document.
        flags: Settings given on the command line.
    """

    users: Path
    folder: Path | None
    config: Path | None
    detach: bool
    as_json: bool
    flags: Mapping[str, Any]


def up_from_shell(asked: Up) -> int:
    """Apply a file of users, by the supervisor that runs or as one; return the exit status.

    Raises:
        UsageError: The file or a setting is wrong; nothing has changed.
        StartError: The folder cannot be used, or the supervisor does not answer.
    """
    settings = load_checked(asked.flags, asked.config, whole=True)
    set_up(settings.log_level, settings.log_format)
    folders = Folders.at(asked.folder)
    check_users(asked.users, folders)
    folders.make()
    question = {"do": "up", "users": str(asked.users.absolute())}
    if asked.detach:
        _begin(asked, folders)
        return _tell(ask(folders, question), as_json=asked.as_json)
    with only_one(folders) as alone:
        if not alone:
            return _tell(ask(folders, question), as_json=asked.as_json)
        supervisor = Supervisor(folders, settings)

        def told(answer: dict[str, Any]) -> None:
            _tell({"supervisor": os.getpid(), **answer}, as_json=asked.as_json)

        return asyncio.run(supervise(supervisor, folders, asked.users.absolute(), told))


def ps_from_shell(folder: Path | None, *, as_json: bool) -> int:
    """List the servers; return the exit status.

    Raises:
        StartError: The folder cannot be used, or the supervisor does not answer.
    """
    folders = Folders.at(folder)
    try:
        answer = ask(folders, {"do": "ps"})
    except NoSupervisor:
        answer = {"supervisor": None, "servers": asyncio.run(_left(folders))}
    _print({**answer, "folder": str(folders.top)}, as_json=as_json)
    return 0


def down_from_shell(names: Sequence[str], folder: Path | None, config: Path | None, *, as_json: bool) -> int:
    """End servers, by the supervisor that runs or without one; return the exit status.

    Raises:
        UsageError: There is no server of somebody.
        StartError: The folder cannot be used, or the supervisor does not answer.
    """
    folders = Folders.at(folder)
    try:
        answer = ask(folders, {"do": "down", "names": list(names)})
    except NoSupervisor:
        answer = {"supervisor": None, **_down_alone(folders, names, config)}
    if as_json:
        print(json_text(answer, indent=2))  # noqa: T201
    else:
        print("\n".join(f"ended {name}" for name in answer["ended"]) or "no server runs")  # noqa: T201
    return 0


def _down_alone(folders: Folders, names: Sequence[str], config: Path | None) -> dict[str, Any]:
    """End what a supervisor has left that was killed."""
    if not folders.supervisor.is_dir():
        return {"ended": [], "servers": []}
    with only_one(folders) as alone:
        if not alone:
            raise StartError(f"the supervisor of {folders.top} is just starting or ending; try again")

        async def end() -> dict[str, Any]:
            supervisor = Supervisor(folders, load_checked({}, config, whole=True))
            supervisor.take_over()
            return await supervisor.down(names)

        return asyncio.run(end())


async def _left(folders: Folders) -> list[dict[str, Any]]:
    entries = read_record(folders.record) if folders.record.exists() else {}
    return [await shown(entries[name], folders) for name in sorted(entries) if entries[name].pid is not None]


def _begin(asked: Up, folders: Folders) -> None:
    """Start a supervisor in the background, unless one runs; wait until it can be asked.

    Raises:
        StartError: It has ended, or cannot be asked in half a minute.
    """
    if _answers(folders):
        return
    log = folders.supervisor / "supervisor.log"
    words = ["up", "--users", str(asked.users.absolute()), "--folder", str(folders.top)]
    if asked.config is not None:
        words += ["--config", str(asked.config.absolute())]
    for name, value in asked.flags.items():
        words += [f"--{name.replace('_', '-')}", str(value)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(log, flags, 0o600), "wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner", *words],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    deadline = time.monotonic() + _BEGIN_S
    while time.monotonic() < deadline:
        if _answers(folders):
            # It goes on without us.
            process.returncode = 0
            return
        if process.poll() is not None:
            break
        time.sleep(_LOOK_S)
    raise StartError(f"the supervisor did not start: {last_line(log)}; {log} has all that it said")


def _answers(folders: Folders) -> bool:
    try:
        ask(folders, {"do": "ps"})
    except NoSupervisor:
        return False
    return True


def _tell(answer: Mapping[str, Any], *, as_json: bool) -> int:
    """Print what a file came to; return 1 where a server of it takes no calls."""
    if not as_json:
        for word in ("started", "restarted", "ended"):
            for name in answer[word]:
                print(f"{word} {name}", file=sys.stderr)  # noqa: T201
    _print(answer, as_json=as_json)
    return int(any(server["state"] != "ready" for server in answer["servers"]))


def _print(answer: Mapping[str, Any], *, as_json: bool) -> None:
    text = json_text(answer, indent=2) if as_json else "\n".join(_lines(answer))
    print(text, flush=True)  # noqa: T201


def _lines(answer: Mapping[str, Any]) -> list[str]:
    servers = answer["servers"]
    if not servers:
        return ["no server runs"]
    head = ("USER", "STATE", "URL", "PID", "UID", "RESTARTS", "MEMORY", "BOUNDED BY")
    rows = [head, *(_row(server) for server in servers)]
    lines = table(rows)
    lines += [f"{server['user']}: {server['problem']}" for server in servers if server["problem"]]
    if answer.get("supervisor") is None:
        lines.append("no supervisor runs: what dies is not started again; `runner up` takes these over")
    return lines


def _row(server: Mapping[str, Any]) -> tuple[str, ...]:
    state = server["state"]
    if server["again_in_s"] is not None:
        state = f"{state} {server['again_in_s']:.0f} s"
    memory = "" if server["memory_bytes"] is None else f"{server['memory_bytes'] // _MIB} MiB"
    shown = (
        server["user"],
        state,
        server["url"],
        server["pid"] or "",
        server["uid"],
        server["restarts"],
        memory,
    )
    return (*map(str, shown), _bounds(server["bounded_by"].items()))


def _bounds(said: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {by}" for name, by in said if by != "not asked for")
