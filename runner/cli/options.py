"""Options that commands share. Each is written down once, in the group of those that come together.

A command takes a group as one argument; `grouped` makes an option of each of its fields.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

__all__ = [
    "AddressOptions",
    "AsJson",
    "Config",
    "ConfinementOptions",
    "Contract",
    "File",
    "FleetOptions",
    "Isolation",
    "LogOptions",
    "Store",
    "Transport",
    "User",
    "UserOptions",
    "WorkerOptions",
    "given",
    "grouped",
]

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A file with an MCP server, FILE:NAME, fastmcp.json, a package or a module."
    ),
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Serve or act as this user.")]
Isolation = Annotated[
    str | None, typer.Option("--isolation", help="auto, process, user, namespace or guard.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Instead of ./runner.toml.")]
Store = Annotated[str | None, typer.Option("--store", metavar="URL", help="Where My Files are kept.")]
Contract = Annotated[
    str | None,
    typer.Option("--contract", help="full: tools are treated like our own; guard: results are guarded."),
]
Transport = Annotated[str | None, typer.Option(help="auto, stdio or http.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """Where a server listens."""

    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserOptions:
    """Who the user is, and where their files are kept."""

    user: User = None
    store: Store = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfinementOptions:
    """How tools are isolated, and what they may do all the same."""

    isolation: Isolation = None
    allow_net: Annotated[
        str | None,
        typer.Option(
            "--allow-net",
            metavar="=HOST[:PORT],…",
            help="What tools may reach; without a value, every public address.",
        ),
    ] = None
    allow_env: Annotated[
        str | None, typer.Option("--allow-env", metavar="NAME,…", help="Variables that tools may see.")
    ] = None
    allow_run: Annotated[
        str | None,
        typer.Option("--allow-run", metavar="PROGRAM,…", help="The only programs that tools may run."),
    ] = None
    allow_read: Annotated[
        list[str] | None,
        typer.Option("--allow-read", metavar="PATH,…", help="Folders and files that tools may read as well."),
    ] = None
    allow_write: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-write", metavar="PATH,…", help="Folders and files that tools may read and write as well."
        ),
    ] = None
    allow_sockets: Annotated[
        bool | None,
        typer.Option(
            "--allow-sockets", help="Tools may have UNIX sockets in their home, for their own processes only."
        ),
    ] = None
    deny_run: Annotated[bool | None, typer.Option("--deny-run", help="Tools may run no other program.")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How long the processes live that tools run in."""

    fresh: Annotated[
        bool | None, typer.Option("--fresh", help="A process of its own for each call: no state is kept.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What is logged, and how."""

    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = (
        None
    )
    log_format: Annotated[str | None, typer.Option("--log-format", help="text or json.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Which fleet executes calls, if one does."""

    engine: Annotated[
        str | None, typer.Option("--engine", help="local, or docket: worker nodes execute calls.")
    ] = None
    redis_url: Annotated[
        str | None,
        typer.Option("--redis-url", metavar="URL", help="Redis of the fleet; best as RUNNER_REDIS_URL."),
    ] = None
    redis_insecure: Annotated[
        bool | None,
        typer.Option("--redis-insecure", help="A Redis elsewhere may do without TLS and a password."),
    ] = None
    fleet_key_file: Annotated[
        Path | None, typer.Option("--fleet-key-file", metavar="FILE", help="The key of the fleet.")
    ] = None


Group = AddressOptions | UserOptions | ConfinementOptions | WorkerOptions | FleetOptions | LogOptions
_GROUPS = get_args(Group)
_REPEATED = ("allow_read", "allow_write")


def given(*groups: Group, **others: object) -> dict[str, Any]:
    """Return the settings that were given on the command line, those of the groups and others."""
    values = {name: value for group in groups for name, value in asdict(group).items()}
    if values.pop("fresh", None):
        values["worker_reuse"] = "call"
    if values.pop("deny_run", None):
        if values.get("allow_run"):
            raise typer.BadParameter("--allow-run and --deny-run: give one of them")
        values["allow_run"] = ""
    for name in _REPEATED:
        # Given several times, or with commas.
        values[name] = ",".join(values[name]) if values.get(name) else None
    return {name: value for name, value in {**values, **others}.items() if value is not None}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return `command` as typer is to see it: with an option for each field of the groups that it takes."""
    parts = list(inspect.signature(command, eval_str=True).parameters.values())
    groups = {part.name: part.annotation for part in parts if part.annotation in _GROUPS}

    @functools.wraps(command)
    def with_options(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    shown = [option for part in parts for option in _options(part)]
    with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    # typer looks here, too, for what it does not find in the signature: everything is there.
    with_options.__annotations__ = {}
    return with_options


def _options(part: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if part.annotation not in _GROUPS:
        yield part
        return
    for field in fields(part.annotation):
        yield part.replace(name=field.name, default=field.default, annotation=field.type)
