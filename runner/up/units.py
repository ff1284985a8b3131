"""Systemd units for the servers of users: a common template, and a drop-in for each.

Source: systemd.syntax(7), systemd.service(5), systemd.exec(5), systemd.unit(5).
"""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from runner.up.users_file import UserServer

__all__ = ["DROP_IN", "INSTALLED", "commands", "unit_files", "warnings"]

INSTALLED = Path("/etc/systemd/system")
DROP_IN = "toolcell@{}.service.d/up.conf"
_ODD = re.compile(rb"[^A-Za-z0-9 _./:@,=+$%~-]")
# Folders hidden by ProtectHome= and PrivateTmp= of the template.
_HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108 - named, not used


def unit_files(servers: Sequence[UserServer]) -> dict[str, str]:
    """Return the text of each unit file by its name."""
    templates = (files("runner.up") / "templates").iterdir()
    units = {template.name: template.read_text(encoding="utf-8") for template in templates}
    return units | {DROP_IN.format(one.unit): "\n".join(_drop_in(one)) + "\n" for one in servers}


def commands(
    folder: Path, servers: Sequence[UserServer], gone: Sequence[str], changed: Sequence[str]
) -> list[str]:
    """Return the commands that root runs to install the unit files of a folder.

    Args:
        folder: The folder of the unit files.
        servers: The servers.
        gone: Installed units of removed users.
        changed: Installed units with another text.
    """
    names = [f"toolcell@{one.unit}" for one in servers]
    add = "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin"
    lines = [f"systemctl disable --now toolcell@{unit}" for unit in gone]
    lines += [f"rm -r {INSTALLED}/toolcell@{unit}.service.d" for unit in gone]
    lines += [f"id tc-{one.unit} >/dev/null 2>&1 || {add} tc-{one.unit}" for one in servers]
    lines += [f"cp -r {shlex.quote(str(folder))}/. {INSTALLED}/", "systemctl daemon-reload"]
    lines += [f"systemctl restart toolcell@{unit}" for unit in changed]
    return [*lines, *([f"systemctl enable --now {' '.join(names)}"] if names else [])]


def warnings(servers: Sequence[UserServer]) -> list[str]:
    """Return a sentence for each file that a unit hides from its server."""
    read = {path for one in servers for path in one.files} | {Path(sys.executable)}
    return [
        f"{path} is hidden from the servers by ProtectHome= and PrivateTmp=; move it, to /opt for example"
        for path in sorted(read)
        if f"{path}/".startswith(_HIDDEN)
    ]


def _drop_in(server: UserServer) -> Iterator[str]:
    values = server.options
    words = ["-P", "-m", "runner", *server.arguments("--port", str(server.port))]
    yield "# Written by `runner up`: change the users file and run it again."
    # Resets the template's file and folder, which these users do not have.
    yield "[Unit]\nAssertPathExists=\n\n[Service]\nEnvironmentFile=\nWorkingDirectory=/"
    yield from (f"Environment={_quoted(f'{name}={value}')}" for name, value in values.environment.items())
    if values.environment_file is not None:
        yield f"EnvironmentFile={values.environment_file.replace('%', '%%')}"
    # systemd does not expand variables in the program itself.
    yield f"ExecStart=\nExecStart={_quoted(sys.executable)} {' '.join(map(_argument, words))}"
    yield f"TimeoutStopSec={server.stop_s:g}"
    share = values.cpus and max(1, round(values.cpus * 100))
    limits = {"MemoryMax={}M": values.memory_mb, "TasksMax={}": values.processes, "CPUQuota={}%": share}
    yield from (limit.format(value) for limit, value in limits.items() if value is not None)


def _argument(word: str) -> str:
    """Return a word for ExecStart=, where `$` begins a variable after unquoting."""
    return _quoted(word.replace("$", "$$"))


def _quoted(text: str) -> str:
    """Return any text as one quoted word of a line.

    All but plain ASCII is written as byte escapes. `%` begins a specifier after unquoting, so it is doubled
    instead of escaped.
    """
    escaped = _ODD.sub(lambda found: b"\\x%02x" % found[0][0], text.replace("%", "%%").encode())
    return f'"{escaped.decode()}"'
