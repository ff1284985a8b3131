"""Targets of `runner proxy`: a URL, a command, or the servers of an `mcp.json`.

`-- command args…` is a stdio server, which is started confined. A file lists servers under `mcpServers` or
`servers`, like the configuration of MCP clients.

Source: `docs/cli.md`, `runner proxy`.
"""

import itertools
import json
import logging
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from runner.errors import UsageError
from runner.settings.trust import how_to_trust, quoted, read_trusted
from runner.system.private_files import read_file
from runner.toolset.catalog import ToolSpec

__all__ = [
    "SCRIPTS",
    "Contract",
    "Target",
    "Wish",
    "contract_of",
    "expanded",
    "read_targets",
]

log = logging.getLogger(__name__)

Contract = Literal["full", "guard"]
"""Contract of one tool."""

Wish = Literal["auto", "full", "guard"]
"""Contract setting of a server; `auto` decides by the tool."""


def contract_of(wish: Wish, spec: ToolSpec | None, arguments: object, *, identity: str) -> Contract:
    """Return the contract of one call: `full` rewrites its arguments and treats its result as ours.

    Args:
        wish: The server's contract setting.
        spec: The tool, if the server lists it.
        arguments: The client's arguments. An identity among them is never forwarded, even to a tool that
            is unlisted or has changed since it was listed.
        identity: Name of the parameter for the caller's name, if the tool is not listed.
    """
    if wish != "auto":
        return wish
    name = identity if spec is None else spec.identity
    forged = isinstance(arguments, str) or (isinstance(arguments, Mapping) and name in arguments)
    has_words = spec is not None and (spec.takes_username or spec.takes_files or spec.takes_links)
    return "full" if forged or has_words else "guard"


_DERIVED_CHARS = 40
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SCRIPTS = (".py", ".js", ".mjs", ".cjs", ".ts")
_TABLES = ("mcpServers", "servers")
_OF_OTHER_CLIENTS = frozenset({"disabled", "enabled", "transport", "type"})
_REFERENCE = re.compile(
    r"\$\{(?:(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|(?P<other>(?:input|command|config):[^}]*))\}"
)
# Strings are matched whole, so that no comment or comma is found within one.
_STRING = r'("(?:[^"\\]++|\\.)*+"?)'
_COMMENT = re.compile(_STRING + r"|//[^\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*+[}\]])", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One remote server.

    Attributes:
        name: Its name, used as a prefix if there are several servers.
        url: Its address; empty for a command.
        headers: Headers of each request to it.
        command: The command that starts it, with its arguments; empty for a URL.
        env: Variables of the command, in addition to those of every confined program.
        folder: Folder to which the command's relative paths refer.
        runs_there: Whether it is the command's working folder; else that is its home.
        allow_read: Paths that the command may read, instead of the setting; None for the setting.
        allow_write: Paths that it may read and write, instead of the setting; None for the setting.
        source: The file that lists it, if any.
        contract: Whether its tools are treated like our own, instead of the setting; None for the setting.
        is_trusted: Whether the operator trusts `source`, so that it may name any variable.
    """

    name: str
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    folder: Path = field(default_factory=Path)
    runs_there: bool = False
    allow_read: tuple[Path, ...] | None = None
    allow_write: tuple[Path, ...] | None = None
    source: Path | None = None
    contract: Contract | None = None
    is_trusted: bool = False


def _storable(text: object) -> object:
    if isinstance(text, str) and ("\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text)):
        raise ValueError("there is a zero byte or half of a character in it; take it out")
    return text


def _nameable(variable: str) -> str:
    if not variable or not variable.isprintable() or "=" in variable:
        raise ValueError("this is not the name of a variable")
    return variable


# Text that can be passed to a program.
_Text = Annotated[str, BeforeValidator(_storable)]
_Name = Annotated[_Text, Field(min_length=1)]


class _Entry(BaseModel):
    """A server's entry in a file. Other clients have more keys, so extra ones are allowed."""

    model_config = ConfigDict(strict=True, extra="allow")

    url: _Text | None = Field(None, validation_alias=AliasChoices("url", "serverUrl", "httpUrl"))
    headers: dict[_Text, _Text] = Field(default_factory=dict)
    command: _Name | None = None
    args: list[_Text] = Field(default_factory=list)
    env: dict[Annotated[_Text, BeforeValidator(_nameable)], _Text] = Field(default_factory=dict)
    cwd: _Text = "."
    allow_read: list[_Name] | None = None
    allow_write: list[_Name] | None = None
    contract: Contract | None = None


def read_targets(words: Sequence[str]) -> tuple[Target, ...]:
    """Return the servers named by the arguments of `runner proxy`.

    Raises:
        UsageError: No server is named, or one is invalid; the message has the place.
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
    # Named after its script, else after its program.
    script = next((word for word in words[1:] if Path(word).suffix in SCRIPTS), first)
    return (Target(name=_short(Path(script).name), command=tuple(words), folder=Path.cwd()),)


def expanded(target: Target, variables: Mapping[str, str], *, allowed: Collection[str]) -> Target:
    """Return a server of an `mcp.json` with the variables in its entry replaced by their values.

    `${NAME}`, `${NAME:-default}` and `${env:NAME}` are replaced, as in MCP clients. A file that the operator
    trusts may name any variable except the runner's own. An untrusted file may name only the variables that
    every confined command sees, and none in a URL or header.

    Args:
        target: The server.
        variables: The variables of this process.
        allowed: Names of the variables that confined commands may see.

    Raises:
        UsageError: A variable may not be named there, or is not set; the message has its name, not its value.
    """

    def filled(text: str, place: str, *, leaves: bool) -> str:
        def value(found: re.Match[str]) -> str:
            name, default, other = found["name"], found["default"], found["other"]
            where = f"{target.name}: {found[0] if other else '${' + name + '}'} in `{place}`"
            if other:
                raise UsageError(f"{where} is known to editors only; write the value, or ${{NAME}}")
            if name.startswith("RUNNER_"):
                raise UsageError(f"{where} is a setting of the runner, which no server is given")
            if not target.is_trusted and (leaves or name not in allowed):
                option = "" if leaves or target.source is None else f"start with --allow-env {name}, or "
                how = "write the value" if target.source is None else how_to_trust(target.source)
                raise UsageError(f"{where} is not given to this server: {option}{how}")
            # As in a shell, the default applies to an empty variable, too.
            if not variables.get(name) and default is None and name not in variables:
                raise UsageError(f"{where} is not set; set it, or write ${{{name}:-default}}")
            return variables.get(name) or default or ""

        made = _REFERENCE.sub(value, text)
        try:
            _storable(made)
        except ValueError as error:
            raise UsageError(f"{target.name}, `{place}`: {error}") from None
        if leaves and not made.isprintable():
            raise UsageError(f"{target.name}: there is a control character in `{place}`; take it out")
        return made

    url = filled(target.url, "url", leaves=True)
    return replace(
        target,
        url=_address(target.name, url) if url else "",
        headers={key: filled(value, "headers", leaves=True) for key, value in target.headers.items()},
        command=tuple(
            filled(word, "args" if number else "command", leaves=False)
            for number, word in enumerate(target.command)
        ),
        env={key: filled(value, "env", leaves=False) for key, value in target.env.items()},
    )


def _from_file(path: Path) -> tuple[Target, ...]:
    try:
        content = read_file(path)
        document = _read_json(path, content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}, line {error.lineno}: this is not JSON: {error.msg}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    except RecursionError:
        raise UsageError(f"{path} cannot be read as JSON: it nests too deep") from None
    known = document if isinstance(document, dict) else {}
    table = next((known[key] for key in _TABLES if key in known), None)
    if not isinstance(table, dict) or not table:
        raise UsageError(f"{path} names no server; it needs an object `mcpServers` from names to servers")
    lends = [
        name
        for name, entry in table.items()
        if isinstance(entry, dict) and (entry.get("allow_read") or entry.get("allow_write"))
    ]
    # The commands are confined, but lending needs the caller's trust; so do variables.
    use = f"what it lends to {', '.join(map(quoted, lends))}"
    try:
        is_trusted = read_trusted(path, use) == content
    except UsageError:
        is_trusted = False
        if lends:
            raise
    if lends and not is_trusted:
        raise UsageError(f"{path} has changed while it was read; start again")
    folder = path.absolute().parent
    able = {
        name: entry
        for name, entry in table.items()
        if not (isinstance(entry, dict) and (entry.get("disabled") is True or entry.get("enabled") is False))
    }
    prefixes = _prefixes(able)
    derived = {name: prefix for name, prefix in prefixes.items() if name != prefix}
    for name, prefix in derived.items():
        log.info("server name derived", extra={"file": str(path), "entry": quoted(name), "prefix": prefix})
    return tuple(
        replace(
            _entry(f"{path}: {quoted(name) if name in derived else name}", prefixes[name], entry, folder),
            source=path.absolute(),
            is_trusted=is_trusted,
        )
        for name, entry in able.items()
    )


def _prefixes(names: Iterable[str]) -> dict[str, str]:
    """Return a unique prefix for each server: its name, or one derived from it.

    Other clients allow any name, such as `GitHub Copilot` or `io.github.owner/server`, but a prefix is part
    of tool names.
    """
    prefixes = {name: name for name in names if _NAME.fullmatch(name)}
    taken = {prefix.lower() for prefix in prefixes.values()}
    for name in names:
        if name in prefixes:
            continue
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("_-")[:_DERIVED_CHARS] or "server"
        numbers = (plain if number == 1 else f"{plain}_{number}" for number in itertools.count(1))
        prefix = next(one for one in numbers if one.lower() not in taken)
        taken.add(prefix.lower())
        prefixes[name] = prefix
    return prefixes


def _read_json(path: Path, text: str) -> Any:
    """Return the contents of a JSON file; ignore comments and trailing commas, which editors allow.

    Raises:
        json.JSONDecodeError: It is not JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        bare = _COMMENT.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), text)
        document = json.loads(_LAST_COMMA.sub(lambda found: found[1] or "", bare))
    log.warning("comments and commas ignored", extra={"file": str(path)})
    return document


def _entry(where: str, name: str, entry: Any, folder: Path) -> Target:
    if not isinstance(entry, dict):
        raise UsageError(f"{where} is not an object; it needs `url` or `command`")
    try:
        known = _Entry.model_validate(entry)
    except ValidationError as error:
        # Without the value, which may be an API key.
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{where}, `{place}`: {problem}") from None
    unknown = sorted((known.model_extra or {}).keys() - _OF_OTHER_CLIENTS)
    if (known.url is None) == (known.command is None):
        hint = f"; there is no key {unknown[0]!r}" if unknown else ""
        raise UsageError(f"{where} needs one of `url` and `command`{hint}")
    if unknown:
        log.warning("foreign keys ignored", extra={"entry": where, "keys": ", ".join(map(quoted, unknown))})
    if known.url is not None:
        # A URL with a variable is checked after expansion.
        address = known.url if _REFERENCE.search(known.url) else _address(where, known.url)
        return Target(name=name, url=address, headers=known.headers, contract=known.contract)

    def lent(paths: Iterable[str] | None) -> tuple[Path, ...] | None:
        return None if paths is None else tuple(folder / os.path.expanduser(path) for path in paths)

    return Target(
        name=name,
        command=(str(known.command), *known.args),
        env=known.env,
        folder=folder / known.cwd,
        runs_there="cwd" in known.model_fields_set,
        allow_read=lent(known.allow_read),
        allow_write=lent(known.allow_write),
        contract=known.contract,
    )


def _address(where: str, url: Any) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        usable = False
    if not usable:
        raise UsageError(f"{where}: the address of a server is written http://host/mcp or https://host/mcp")
    return str(url)


def _short(name: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "_", name.rpartition(".")[0] or name).strip("_-")
    return plain[:40] or "server"
