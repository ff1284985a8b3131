"""`runner install`: the entry for a tool file in the configuration of a known MCP client.

Source: the clients' own documentation of `claude_desktop_config.json`, `~/.claude.json` of Claude Code,
`~/.cursor/mcp.json` and VS Code's `mcp.json`.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from runner.cli.launcher import Engine
from runner.cli.options import File
from runner.cli.start import explained, start
from runner.errors import UsageError
from runner.system.state_files import write_whole
from runner.worker.targets import check_targets, entry_of

__all__ = ["CLIENTS", "ClientConfig", "ClientEntry", "config_path", "install", "install_entry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Location and shape of one client's server configuration.

    Attributes:
        file: Its configuration, below a folder that differs between systems.
        in_home: Whether that folder is the user's home on every system.
        key: Key of the object that holds the servers.
        typed: Whether an entry names its transport.
    """

    file: str
    in_home: bool = False
    key: str = "mcpServers"
    typed: bool = False


CLIENTS = {
    "claude-desktop": ClientConfig(file="Claude/claude_desktop_config.json"),
    "claude-code": ClientConfig(file=".claude.json", in_home=True, typed=True),
    "cursor": ClientConfig(file=".cursor/mcp.json", in_home=True),
    "vscode": ClientConfig(file="Code/User/mcp.json", key="servers", typed=True),
}
"""The clients whose files we know."""

_PRINTED = "mcp-json"
_Client = Literal["claude-desktop", "claude-code", "cursor", "vscode", "mcp-json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEntry:
    """One server in a client's configuration.

    Attributes:
        name: Its name in the client.
        command: The program to start.
        arguments: The arguments of the program.
    """

    name: str
    command: str
    arguments: tuple[str, ...]

    @classmethod
    def of(
        cls, target: str, *, name: str | None, user: str | None, engine: str | None = None
    ) -> "ClientEntry":
        """Return the entry that serves a tool file on stdio.

        Args:
            target: The tool file.
            name: Name of the entry; None: that of the file.
            user: The user to serve, if one is named.
            engine: The engine of the container that serves it, if any.

        Raises:
            UsageError: The command `runner` is neither beside this interpreter nor on the path.
        """
        beside = Path(sys.executable).with_name("runner")
        command = str(beside) if beside.is_file() else shutil.which("runner")
        if command is None:
            raise UsageError("the command `runner` is not installed beside this Python: pip install toolcell")
        start = ("--in", engine, "serve") if engine else ("serve",)
        arguments = (*start, target, "--transport", "stdio", *(("--user", user) if user else ()))
        chosen = name or entry_of(target).title
        return cls(name=chosen, command=os.path.abspath(command), arguments=arguments)

    def as_json(self, *, typed: bool) -> dict[str, Any]:
        """Return it in the form of a configuration."""
        kind = {"type": "stdio"} if typed else {}
        return {**kind, "command": self.command, "args": list(self.arguments)}


def install(
    client: Annotated[_Client, typer.Argument(help="Its client; most others read mcp-json.")],
    file: File,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Entry name; else the file's.")] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="Serve this user.")] = None,
    engine: Annotated[
        Engine | None, typer.Option("--in", metavar="ENGINE", help="Serve it in a container, unchecked.")
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Show the result and write nothing.")] = False,
) -> int:
    """Write the entry; all other entries stay."""
    target = check_targets([file])[0]
    if engine is None:
        # A tool file that cannot be loaded is not installed.
        asyncio.run(explained(_loaded(target, user), [target]))
    entry = ClientEntry.of(target, name=name, user=user, engine=engine)
    print(install_entry(client, entry, only_print=only_print))  # noqa: T201
    return 0


async def _loaded(target: str, user: str | None) -> int:
    """Load a tool file like `serve`.

    Raises:
        LoadError: It cannot be served.
    """
    # Imported here: an entry for a container is created without Linux.
    from runner.toolset.toolset import Toolset  # noqa: PLC0415
    from runner.users.tool_secrets import Secrets  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        own = {"state_dir": Path(folder, "state"), "store": Path(folder, "store").as_uri()}
        settings = start({"log_level": "error", **own, **({"user": user} if user else {})}, None)
        # The file is only imported, not called, so no secret is needed.
        async with Toolset.open(settings, [target], secrets=Secrets()):
            return 0


def config_path(client: ClientConfig, *, system: str, environment: Mapping[str, str]) -> Path:
    """Return the path of a client's server configuration.

    Args:
        client: The client.
        system: The operating system, as `sys.platform` names it.
        environment: The environment, which may name other folders.
    """
    home = Path(environment.get("HOME") or os.path.expanduser("~"))
    if client.in_home:
        return home / client.file
    if system == "darwin":
        return home / "Library" / "Application Support" / client.file
    if system == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming") / client.file
    configured = environment.get("XDG_CONFIG_HOME", "")
    return (Path(configured) if configured.startswith("/") else home / ".config") / client.file


def install_entry(name: str, entry: ClientEntry, *, only_print: bool) -> str:
    """Write an entry into a client's configuration; return a message for the user.

    Raises:
        UsageError: The client's configuration cannot be read, understood or written.
    """
    if name == _PRINTED:
        return json.dumps({"mcpServers": {entry.name: entry.as_json(typed=False)}}, indent=2)
    client = CLIENTS[name]
    path = config_path(client, system=sys.platform, environment=os.environ)
    before = _read(path)
    after = _merged(before, client, entry, path)
    if only_print:
        return after.rstrip("\n")
    if after == before:
        return f"{path} has this entry already"
    backup = _write(path, before, after)
    saved = f"; the previous file is now {backup.name}" if backup is not None else ""
    return f"wrote {entry.name!r} to {path}{saved}\nrestart {name} to use it"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _merged(before: str | None, client: ClientConfig, entry: ClientEntry, path: Path) -> str:
    """Return the configuration with the entry added; all else is unchanged."""
    ours = entry.as_json(typed=client.typed)
    by_hand = f"add it by hand, as {entry.name!r} below {client.key!r}: {json.dumps(ours)}"
    try:
        config = json.loads(before) if before and before.strip() else {}
    except ValueError as error:
        raise UsageError(f"{path} is not plain JSON ({error}), nothing was written; {by_hand}") from error
    servers = config.get(client.key, {}) if isinstance(config, dict) else None
    if not isinstance(servers, dict):
        raise UsageError(f"{path} does not hold an object {client.key!r}, nothing was written; {by_hand}")
    present = servers.get(entry.name)
    if present is not None and not _is_ours(present, entry):
        raise UsageError(
            f"{path} has another server named {entry.name!r}, nothing was written; name yours with --name"
        )
    other_keys = present if isinstance(present, dict) else {}
    config[client.key] = {**servers, entry.name: {**other_keys, **ours}}
    return json.dumps(config, indent=_indent(before), ensure_ascii=False) + "\n"


def _is_ours(present: object, entry: ClientEntry) -> bool:
    """Return whether the present entry serves the same file, so that it may be replaced."""
    arguments = present.get("args") if isinstance(present, dict) else None
    return isinstance(arguments, list) and _file_words(arguments) == _file_words(entry.arguments)


def _file_words(arguments: Sequence[object]) -> Sequence[object]:
    """Return the words of an entry up to its file, without those for a container."""
    words = tuple(arguments)
    return words[2:4] if words[:1] == ("--in",) else words[:2]


def _indent(before: str | None) -> int | str:
    """Return the indentation of a configuration, so that only our lines differ."""
    found = re.search(r"\n([ \t]+)\S", before or "")
    return found[1] if found else 2


def _write(path: Path, before: str | None, after: str) -> Path | None:
    """Replace a file atomically, with a backup beside it; return the path of the backup."""
    # A configuration may be a link into a folder of dotfiles: the link is kept.
    real = path.resolve()
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        backup = None
        if before is not None:
            backup = _free(real)
            shutil.copy2(real, backup)
        write_whole(real, after.encode())
        if backup is not None:
            shutil.copymode(backup, real)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    return backup


def _free(path: Path) -> Path:
    """Return an unused name for a backup."""
    number, backup = 1, path.with_name(f"{path.name}.bak")
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}.bak{number}")
    return backup
