"""Read grants of tool files and commands, all made by one function; operators' grants are in `lending`.

A granted path has no links, contains nothing of the runner's state, store and keys, and no place of keys in
anybody's home folder. So a link in an untrusted folder opens nothing.

Source: `docs/isolation.md`, "Files beside the tool file"; architecture, decision "Reads".
"""

import os
import pwd
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from runner.errors import UsageError
from runner.settings.execution import ExecutionSettings
from runner.settings.lendable import KEYS, never_lent, within
from sandbox.readable import Readable, default_read, system_secrets

__all__ = ["check_files", "opened", "readable", "refused_word"]


def readable(
    settings: ExecutionSettings,
    *,
    beside: Sequence[Path],
    files: Sequence[Path] = (),
    extra: Sequence[Path] = (),
) -> Readable:
    """Return everything that a process may read besides its home and the operator's grants.

    Args:
        settings: The effective settings.
        beside: Files whose folders may be read, as paths without links.
        files: Further files and packages, each granted alone, as paths without links.
        extra: Folders of installed packages.
    """
    keys = (place for path in (*beside, *files) if (place := _key_place(path)) is not None)
    return default_read(
        deny=(settings.homes,),
        never=(*settings.private_paths, *_key_places(), *keys),
        beside=beside,
        files=files,
        extra=extra,
        homes=_made_homes(settings),
    )


def opened(path: Path, settings: ExecutionSettings) -> str | None:
    """Return the private path that a grant would open, if any, as a clause.

    Args:
        path: A path without links.
        settings: The effective settings.
    """
    for private in map(_real, settings.private_paths):
        if within(path, private) or within(private, path):
            return (
                f"would open {private}, where the runner keeps its state, files of users, keys or its "
                "configuration"
            )
    own = _key_place(path)
    for key in (*_key_places(), *(() if own is None else (own,))):
        if within(path, key) or within(key, path):
            return f"would open {key}, where keys are kept"
    return None


def check_files(settings: ExecutionSettings, files: Iterable[Path]) -> None:
    """Check tool files, which are paths without links.

    Raises:
        UsageError: One of them is in a place that is never granted.
    """
    for file in files:
        why = opened(file, settings)
        if why is not None:
            raise UsageError(f"{file} as a tool file {why}; move the tool file to a folder of its own")


def refused_word(path: Path, settings: ExecutionSettings) -> str | None:
    """Return why a file named in a command is not granted, as a clause, by the rules of lending; else None.

    Args:
        path: A path without links.
        settings: The effective settings.
    """
    if never_lent(path):
        return "lies among processes, devices or sockets of this machine, which are never lent"
    for home in map(_real, _made_homes(settings)):
        if within(path, home):
            return f"lies in {home}, which is the home of a user of this runner"
    return opened(path, settings)


def _made_homes(settings: ExecutionSettings) -> Sequence[Path]:
    # It needs Linux, which `runner check` does not.
    from runner.homes.homes import Homes  # noqa: PLC0415

    return Homes.of(settings).made()


def _key_place(path: Path) -> Path | None:
    """Return the place of keys that a path is or lies in, in any user's home folder."""
    text = f"{path}/"
    found = [text.index(f"/{key}/") + len(key) + 1 for key in KEYS if f"/{key}/" in text]
    return Path(text[: min(found)]) if found else None


def _key_places() -> Iterator[Path]:
    """Yield the existing places of keys: of the system, and in the home folders of its users."""
    yield from map(_real, system_secrets())
    # Home folders of services are in /var, which tools may read.
    people = {Path(entry.pw_dir) for entry in pwd.getpwall() if entry.pw_dir.startswith("/")}
    for home in {Path(os.path.expanduser("~")), *people}:
        for key in KEYS:
            if os.path.exists(home / key):
                yield _real(home / key)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
