"""`runner trust`: record a configuration file as trusted, with its digest; list and remove records.

Source: `docs/settings.md`, "Trust".
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from runner.errors import UsageError
from runner.output_guard.guard import config_of
from runner.output_guard.operator_code import module_beside
from runner.settings import trust as records
from runner.settings.sources import load, needing_trust
from runner.settings.trust import (
    CONFIG_FILE,
    ConfigFile,
    JudgedFile,
    UnsafeFile,
    distrust,
    quoted,
    read_judged,
    read_named,
    trusted_files,
)

__all__ = ["trust"]


def trust(
    path: Annotated[
        Path, typer.Argument(metavar="[DIR|FILE]", help="A folder with a runner.toml, or a file.")
    ] = Path(),
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the trust.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what is trusted.")] = False,
) -> int:
    """Trust a configuration file as it is now, remove it from the trusted ones, or list them."""
    print(_list() if listed else _distrusted(path) if remove else _trusted(path))  # noqa: T201
    return 0


def _trusted(path: Path) -> str:
    """Trust a file with its current content; return lines about it and its rights.

    Raises:
        UsageError: It cannot be read, others can change it, or the record cannot be written.
    """
    file = _read(_file_of(path))
    lines = [f"trusted {quoted(file.path)}"]
    files = [file]
    if file.path.suffix == ".toml":
        needing = needing_trust(ConfigFile(path=file.path, label=str(file.path), content=file.content))
        lines += [f"  {quoted(name)} = {json.dumps(value, default=str)}" for name, value in needing.items()]
        modules = [_read(module) for module in _modules(file.path)]
        lines += [f"trusted {quoted(module.path)}, which runs unconfined" for module in modules]
        files += modules
    records.trust(files)
    return "\n".join([*lines, "a file that changes is no longer trusted"])


def _distrusted(path: Path) -> str:
    """Remove the record of a file; return a line about it.

    Raises:
        UsageError: There is none, or the record cannot be written.
    """
    file = _file_of(path)
    if not distrust(file):
        raise UsageError(f"{quoted(file)} is not trusted; `runner trust --list` lists what is")
    return f"{quoted(file)} is no longer trusted"


def _list() -> str:
    """Return a line for each trusted file, with its state."""
    lines = [f"{quoted(path)}  {_state(path, mark)}" for path, mark in sorted(trusted_files().items())]
    return "\n".join(lines) or "no file is trusted"


def _file_of(path: Path) -> Path:
    return path.absolute() / CONFIG_FILE if path.is_dir() else path.absolute()


def _read(path: Path) -> JudgedFile:
    return read_named(path, quoted(path), refusal="cannot be trusted")


def _modules(config: Path) -> Iterator[Path]:
    """Yield files of the operator's own code that a configuration names, if they are beside it."""
    settings = load({}, config=config)
    if not settings.output_guard:
        return
    for named in config_of(settings).transformers():
        module = module_beside(named.partition(":")[0], config.parent)
        if module is not None:
            yield module


def _state(path: Path, mark: tuple[str, int]) -> str:
    try:
        file = read_judged(path)
    except FileNotFoundError:
        return "gone"
    except UnsafeFile as error:
        return str(error)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "unchanged" if file.mark == mark else "changed: not trusted"
