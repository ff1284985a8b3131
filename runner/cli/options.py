"""Options of commands, generated from the declarations of their settings."""

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from runner.errors import UsageError
from runner.settings.settings import Settings, option_of
from runner.settings.values import Flag, holds
from sandbox.network.destinations import Destinations

__all__ = [
    "ADDRESS",
    "BOUNDS",
    "FLEET",
    "LOGS",
    "WHOSE",
    "AsJson",
    "Config",
    "File",
    "Files",
    "Flags",
    "flags_of",
    "spell_out",
    "takes",
]

File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A file with an MCP server, FILE:NAME, fastmcp.json, a package or a module."
    ),
]
Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files with an MCP server, packages, modules.")
]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Instead of ./runner.toml.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document.")]
Flags = Mapping[str, Any]
"""The settings given on the command line; a parameter of this type stands for their options."""

ADDRESS = ("host", "port")
WHOSE = ("user", "store")
LOGS = ("log_level", "log_format")
FLEET = ("redis_url", "redis_insecure", "fleet_key_file")
BOUNDS = (
    "isolation", "allow_net", "allow_env", "allow_run", "allow_read", "allow_write", "allow_sockets",
    "deny_run",
)  # fmt: skip

_SHORTHANDS: Mapping[str, tuple[str, str, str]] = {
    "deny_run": ("allow_run", "", "Tools may run no other program."),
    "fresh": ("worker_reuse", "call", "A process of its own for each call: no state is kept."),
}
"""Options for one value of a setting: the setting, the value, the help."""

# Hosts contain a dot or a colon, except `localhost`.
_HOSTS = re.compile(r"(?:localhost|[^\s/=,@]*[.:][^\s=,@]*)(?:,[^\s=,@]+)*")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_ASIDE = re.compile(r" \((?:see )?\[[^\]]+\]\([^)]*\)\)|: \[[^\]]+\]\([^)]*\)")


def takes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Replace a command's parameter `flags` with the options of settings."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_options(**values: Any) -> Any:
            options = {name: values.pop(name) for name in names}
            return command(**values, flags=flags_of(options))

        shown: list[inspect.Parameter] = []
        for part in inspect.signature(command, eval_str=True).parameters.values():
            shown += _options(names) if part.name == "flags" else [part]
        with_options.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
        # typer falls back to these annotations; the signature is complete without them.
        with_options.__annotations__ = {}
        return with_options

    return decorate


def flags_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the given options, without those that are None."""
    # An option may be repeated, or have commas in its value.
    values = {name: ",".join(value) if isinstance(value, list) else value for name, value in options.items()}
    if values.get("deny_run") and values.get("allow_run"):
        raise UsageError("--allow-run and --deny-run: give one of them")
    for name, (setting, value, _) in _SHORTHANDS.items():
        if values.pop(name, None):
            values[setting] = value
    return {name: value for name, value in values.items() if value is not None}


def _options(names: tuple[str, ...]) -> Iterator[inspect.Parameter]:
    for name in names:
        if name in _SHORTHANDS:
            kind: Any = bool
            option = typer.Option(f"--{name.replace('_', '-')}", help=_SHORTHANDS[name][2])
        else:
            field = Settings.model_fields[name]
            kind = _kind(field.annotation)
            flag = next(mark for mark in field.metadata if isinstance(mark, Flag))
            words = "|".join(get_args(field.annotation)) if get_origin(field.annotation) is Literal else None
            option = typer.Option(
                option_of(name), metavar=flag.metavar or words, help=_first_sentence(field.description or "")
            )
        yield inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
        )


def _kind(annotation: Any) -> Any:
    if holds(annotation, tuple):
        return list[str] if holds(annotation, Path) else str
    return next((kind for kind in (bool, int, float, Path) if holds(annotation, kind)), str)


def _first_sentence(description: str) -> str:
    """Return the first sentence of a description, without Markdown."""
    plain = _LINK.sub(r"\1", _ASIDE.sub("", description)).replace("`", "")
    return plain.partition(". ")[0].removesuffix(".") + "."


def spell_out(arguments: Sequence[str]) -> list[str]:
    """Return command line arguments with `--allow-net` and its value as one word, `--allow-net=*` for none.

    Its value is optional. So the next word is used as the value only if it is unambiguous: a host with a dot
    or a port, and neither a file nor the only word that could name one.
    """
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    found: list[str] = []
    words = iter(enumerate(arguments))
    for at, argument in words:
        if at >= end or argument != "--allow-net":
            found.append(argument)
            continue
        following = arguments[at + 1] if at + 1 < end else ""
        others = [word for word in arguments[1:] if not word.startswith("-")]
        if _names_hosts(following) and len(others) > 1:
            found.append(f"--allow-net={following}")
            next(words)
        else:
            found.append("--allow-net=*")
    return found


def _names_hosts(word: str) -> bool:
    """Return whether a word names hosts and neither a file nor a target."""
    if not _HOSTS.fullmatch(word) or word.endswith(".py") or ".py:" in word or os.path.exists(word):
        return False
    try:
        Destinations.parse(word.split(","))
    except ValueError:
        return False
    return True
