"""What `runner proxy` stands in front of: a URL, a command, or the servers of an `mcp.json`.

`-- command args…` is a server that speaks over stdio; it is started confined. A file has the servers under
`mcpServers`, or `servers`, as the configuration of MCP clients has them.

Source: `docs/cli.md`, `runner proxy`.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import urlsplit

from runner.errors import UsageError
from runner.proxy.contract import Contract
from runner.settings.trust import quoted, read_trusted
from runner.system.private_files import read_file

__all__ = ["SCRIPTS", "Target", "read_targets", "target_of"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts")
_TABLES = ("mcpServers", "servers")
_KEYS = frozenset(
    {
        *("url", "headers", "command", "args", "env", "cwd", "type", "transport", "disabled"),
        *("allow_read", "allow_write", "contract"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One remote server.

    Attributes:
        name: Its name, which prefixes what it offers where there are several.
        url: Its address; empty for a command.
        headers: Headers of each request to it.
        command: The command that starts it, with its arguments; empty for a URL.
        env: Variables that the command sees beside those that every confined program sees.
        folder: Where the command's relative paths are taken from.
        allow_read: What is lent to the command to read, instead of the setting; None if nothing is said.
        allow_write: What is lent to it to read and write, instead of the setting; None if nothing is said.
        source: The file that names it, if one does.
        contract: Whether its tools are treated like our own, instead of the setting; None if nothing is said.
    """

    name: str
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    allow_read: tuple[Path, ...] | None = None
    allow_write: tuple[Path, ...] | None = None
    source: Path | None = None
    contract: Contract | None = None


def read_targets(words: Sequence[str]) -> tuple[Target, ...]:
    """Return the servers that the arguments of `runner proxy` name.

    Raises:
        UsageError: They name none, or what they name is wrong; the message says where.
    """
    first = words[0] if words else ""
    if not first:
        raise UsageError("name a server: https://host/mcp, mcp.json, or `-- command args…`")
    is_address, is_file = "://" in first, first.endswith(".json")
    if (is_address or is_file) and len(words) > 1:
        raise UsageError(
            f"{first} is one server or one file, and {words[1]!r} follows it; put several into a file"
        )
    if is_address:
        address = _address(first, first)
        return (Target(name=_short(urlsplit(address).hostname or "server"), url=address),)
    if is_file:
        return _from_file(Path(first))
    return (Target(name=_program_name(words), command=tuple(words), folder=Path.cwd()),)


def target_of(name: str, entry: Mapping[str, Any]) -> Target:
    """Return the server that somebody names beside any file.

    Args:
        name: What they call it.
        entry: As an entry of an `mcp.json`; paths are taken from the working folder.

    Raises:
        UsageError: What it says is wrong.
    """
    return _entry(name, _short(name), entry, Path.cwd())


def _from_file(path: Path) -> tuple[Target, ...]:
    try:
        said = json.loads(read_file(path).decode())
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: this is no JSON: {error.msg}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise UsageError(f"{path} cannot be read as JSON: it nests too deep") from None
    table = next((said[key] for key in _TABLES if key in said), None) if isinstance(said, dict) else None
    if not isinstance(table, dict) or not table:
        raise UsageError(f"{path} names no server; it needs an object `mcpServers` from names to servers")
    lends = [name for name, entry in table.items() if isinstance(entry, dict) and _lends(entry)]
    if lends:
        # The commands are confined; what they are lent beside is the caller's to say.
        read_trusted(path, f"what it lends to {', '.join(map(quoted, lends))}")
    folder = path.absolute().parent
    return tuple(
        replace(_entry(f"{path}: {name}", name, entry, folder), source=path.absolute())
        for name, entry in table.items()
        if not (isinstance(entry, dict) and entry.get("disabled") is True)
    )


def _entry(where: str, name: str, entry: Any, folder: Path) -> Target:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: a name has letters, digits, _ and - only, since it prefixes names of tools"
        )
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is no object; it needs `url` or `command`")
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        raise UsageError(f"{where}: there is no key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    _check_text(where, entry)
    if ("url" in entry) == ("command" in entry):
        raise UsageError(f"{where} needs one of `url` and `command`")
    if "url" in entry:
        headers = _strings(where, "headers", entry.get("headers", {}))
        address, contract = _address(where, entry["url"]), _contract(where, entry)
        return Target(name=name, url=address, headers=headers, contract=contract)
    command, arguments = entry["command"], entry.get("args", [])
    if not isinstance(command, str) or not command:
        raise UsageError(f"{where}: `command` is the name of a program, got {command!r}")
    if not isinstance(arguments, list) or not all(isinstance(item, str) for item in arguments):
        raise UsageError(f"{where}: `args` is a list of strings, got {arguments!r}")
    return Target(
        name=name,
        command=(command, *arguments),
        env=_variables(where, entry.get("env", {})),
        folder=folder / str(entry.get("cwd", ".")),
        allow_read=_folders(where, "allow_read", entry, folder),
        allow_write=_folders(where, "allow_write", entry, folder),
        contract=_contract(where, entry),
    )


def _lends(entry: Mapping[str, Any]) -> bool:
    return any(entry.get(key) for key in ("allow_read", "allow_write"))


def _contract(where: str, entry: Mapping[str, Any]) -> Contract | None:
    said = entry.get("contract")
    if said is not None and said not in get_args(Contract):
        words = " or ".join(f'"{word}"' for word in get_args(Contract))
        raise UsageError(f"{where}: `contract` is {words}, got {said!r}; leave it out to decide by each tool")
    return cast("Contract | None", said)


def _folders(where: str, key: str, entry: Mapping[str, Any], folder: Path) -> tuple[Path, ...] | None:
    """Return what is lent; relative paths are taken from where the file lies."""
    named = entry.get(key)
    if named is None:
        return None
    if not isinstance(named, list) or not all(isinstance(item, str) and item for item in named):
        raise UsageError(f"{where}: `{key}` is a list of folders and files, got {named!r}")
    return tuple(folder / os.path.expanduser(item) for item in named)


def _check_text(where: str, value: object) -> None:
    """Refuse what no program can be given: a zero byte, half of a character, a variable without a name."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_text(f"{where}, `{key}`", item)
    elif isinstance(value, list):
        for item in value:
            _check_text(where, item)
    elif isinstance(value, str) and (
        "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value)
    ):
        raise UsageError(f"{where}: there is a zero byte or half of a character in it; take it out")


def _variables(where: str, value: Any) -> dict[str, str]:
    variables = _strings(where, "env", value)
    for name in variables:
        if not name.isprintable() or not name or "=" in name:
            raise UsageError(f"{where}: {name!r} under `env` is no name of a variable")
    return variables


def _strings(where: str, key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        # Never with the value: there are keys among them.
        raise UsageError(f"{where}: `{key}` is an object of strings")
    return dict(value)


def _address(where: str, url: Any) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        usable = False
    if not usable:
        raise UsageError(f"{where}: the address of a server is written http://host/mcp or https://host/mcp")
    return str(url)


def _program_name(words: Sequence[str]) -> str:
    """Return a name for a command: of the script that it runs, else of its program."""
    scripts = (word for word in words[1:] if Path(word).suffix in SCRIPTS)
    return _short(Path(next(scripts, words[0])).name)


def _short(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name.rpartition(".")[0] or name).strip("_-")
    return plain[:40] or "server"
