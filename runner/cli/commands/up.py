"""`runner up`: files for the servers of users, and the commands that apply them.

Source: `docs/cli.md`, "up"; `docs/deploying.md`.
"""

import json
import os
import shlex
import shutil
import stat
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import TypeAdapter, ValidationError

from runner.cli.exits import Report
from runner.cli.options import AsJson
from runner.errors import StartError, UsageError
from runner.formats.terminal_text import one_line, table
from runner.settings.trust import UnsafeFile, read_judged
from runner.system.state_files import write_whole
from runner.up.compose import compose_text
from runner.up.units import DROP_IN, INSTALLED, commands, unit_files, warnings
from runner.up.users_file import planned, unit_of

__all__ = ["up"]

_MANIFEST = "up.json"
_PORTS = TypeAdapter(dict[str, int])
_Format = Literal["systemd", "compose"]


def up(
    *,
    users: Annotated[Path, typer.Option("--users", metavar="FILE", help="The users file, TOML or JSON.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the files.")] = Path(
        "toolcell-up"
    ),
    kind: Annotated[_Format, typer.Option("--format", help="Units, or a compose file.")] = "systemd",
    as_json: AsJson = False,
) -> Report:
    """Write the files of a server for each user, and print the commands that apply them."""
    out = out.absolute()
    known = _known(out)
    servers = planned(users, known)
    if kind == "compose":
        texts = {"compose.yaml": compose_text(servers)}
        file = shlex.quote(str(out / "compose.yaml"))
        # The container of a user removed from the file is an orphan.
        run = [f"docker compose --file {file} up --detach --wait --remove-orphans"]
        hidden: list[str] = []
    else:
        units = unit_files(servers)
        texts = {f"units/{name}": text for name, text in units.items()}
        gone = [
            unit for unit in map(unit_of, known.keys() - {one.user for one in servers}) if _installed(unit)
        ]
        changed = [
            one.unit for one in servers if _installed(one.unit) not in (None, units[DROP_IN.format(one.unit)])
        ]
        run, hidden = commands(out / "units", servers, sorted(gone), changed), warnings(servers)
    ports = known | {one.user: one.port for one in servers}
    try:
        out.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = out.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise StartError(f"{out} can be written by other users; choose another folder with --out")
        if (out / "units").exists():
            shutil.rmtree(out / "units")
        for name, text in {_MANIFEST: json.dumps({"ports": ports}, indent=1), **texts}.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(out / name, text.encode())
    except OSError as error:
        raise StartError(
            f"{out} cannot be written: {error.strerror}; choose another folder with --out"
        ) from error
    rows = [{"user": one.user, "unit": one.unit, "port": one.port} for one in servers]
    answer: dict[str, Any] = {"folder": str(out), "files": sorted(texts), "servers": rows}
    answer |= {"commands": run, "warnings": hidden}
    return Report(answer, _shown(answer), indent=2)


def _known(out: Path) -> dict[str, int]:
    """Return the previous ports of users, from the manifest of a folder."""
    manifest = out / _MANIFEST
    try:
        if not out.exists() or not any(out.iterdir()):
            return {}
        if not manifest.exists():
            raise UsageError(
                f"{out} holds files that `runner up` did not write; choose an empty folder with --out"
            )
        document = json.loads(read_judged(manifest).content)
        return _PORTS.validate_python(document["ports"])
    except (OSError, UnsafeFile, ValidationError, ValueError, KeyError, TypeError) as error:
        reason = one_line(str(error)).partition("\n")[0]
        raise UsageError(
            f"{manifest} cannot be used: {reason}; remove {out}, or choose another --out"
        ) from error


def _installed(unit: str) -> str | None:
    """Return the text of the installed drop-in of a unit."""
    try:
        return (INSTALLED / DROP_IN.format(unit)).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _shown(answer: dict[str, Any]) -> str:
    rows = [("USER", "UNIT", "URL")]
    rows += [
        (one_line(one["user"]), one["unit"], f"http://127.0.0.1:{one['port']}/mcp")
        for one in answer["servers"]
    ]
    lines = [*table(rows), "", *(f"warning: {one_line(line)}" for line in answer["warnings"])]
    return "\n".join(
        [*lines, f"written to {answer['folder']}; run:", "", *(f"  {line}" for line in answer["commands"])]
    )
