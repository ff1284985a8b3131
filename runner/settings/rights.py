"""Rights of tools beyond their home: network, programs, environment variables, lent files.

They are set for all tools, or for a single tool instead. Values are checked here once; the kernel enforces
them (`sandbox.network.egress`, `sandbox.layers.landlock`).

Source: architecture, decisions "Network", "Environment" and "Programs"; `docs/isolation.md`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from runner.settings.lendable import OUR_VARIABLES, VARIABLE
from runner.settings.values import OPEN_TO_TOOLS, Names, split_at_commas
from sandbox.network.destinations import Destinations

__all__ = [
    "Lent",
    "Network",
    "Paths",
    "Programs",
    "Rights",
    "Variables",
]


def _destinations(texts: tuple[str, ...]) -> tuple[str, ...]:
    Destinations.parse(texts)
    return texts


def _variables(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not VARIABLE.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a variable name; give names alone, the values are those of this process"
            )
        if name.startswith(OUR_VARIABLES):
            raise ValueError(f"{name} is a setting of the runner and perhaps a key; tools never see these")
    return names


def _programs(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if "\0" in name or ("/" in name and not name.startswith("/")):
            raise ValueError(f"{name!r} is not a program; give a name such as git, or a whole path")
    return names


def _absolute(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    if any(path.name == "*" for path in paths):
        raise ValueError("'*' does not stand for all folders; name each folder or file")
    try:
        # Not normalised: after a link, `..` leads to the parent of the link's target.
        return tuple(dict.fromkeys(path.expanduser().absolute() for path in paths))
    except RuntimeError as error:
        raise ValueError("there is no such home folder; write the whole path") from error


Network = Annotated[Names, AfterValidator(_destinations)]
Variables = Annotated[Names, AfterValidator(_variables)]
Programs = Annotated[Names, AfterValidator(_programs)]
Paths = Annotated[
    tuple[Path, ...], BeforeValidator(split_at_commas), AfterValidator(_absolute), OPEN_TO_TOOLS
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    """Facts about all lent files, found when the runner started.

    Attributes:
        names: Lent paths that contain links.
        owner: User and group id that every process needs to use them; None if those of users suffice.
        umask: File mode creation mask, if anything is lent for writing.
    """

    names: tuple[Path, ...] = ()
    owner: tuple[int, int] | None = None
    umask: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Rights of tools beyond their home.

    Attributes:
        network: Destinations that may be reached.
        variables: Variables of this process that they may see.
        may_run: Whether they may run other programs at all.
        programs: The only programs that they may run; if empty, any that they may read.
        read: Paths that they may read.
        write: Paths that they may read and write.
        sockets: Whether they may have UNIX sockets in their home, among their own processes.
        lent: Facts about all lent files, of these tools or others.
    """

    network: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    may_run: bool = True
    programs: tuple[str, ...] = ()
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    sockets: bool = False
    lent: Lent = Lent()
