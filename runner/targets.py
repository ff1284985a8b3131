"""The FILE argument: a path, and perhaps the name of an object in it. Pure; imports no framework."""

from collections.abc import Iterable
from pathlib import Path

from runner.errors import UsageError

__all__ = ["check_targets", "split_target", "tool_files"]


def split_target(target: str) -> tuple[str, str | None]:
    """Split `FILE:NAME` into the file and the name of the object, if one is given."""
    path, colon, name = target.rpartition(":")
    if colon and name.isidentifier() and path.endswith(".py"):
        return path, name
    return target, None


def tool_files(targets: Iterable[str]) -> list[Path]:
    """Return the files that the targets name."""
    return [Path(split_target(target)[0]).absolute() for target in targets]


def check_targets(targets: list[str]) -> list[str]:
    """Return the targets with absolute paths.

    Raises:
        UsageError: A file is missing, is no file, or cannot be read.
    """
    return [_check(target) for target in targets]


def _check(target: str) -> str:
    file, name = split_target(target)
    path = Path(file).absolute()
    if not path.exists():
        raise UsageError(f"there is no file {file}")
    if not path.is_file():
        raise UsageError(f"{file} is no file; name a Python file with a FastMCP object in it")
    if path.suffix != ".py":
        raise UsageError(f"{file} is no Python file: its name must end in .py")
    try:
        path.open("rb").close()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    return f"{path}:{name}" if name else str(path)
