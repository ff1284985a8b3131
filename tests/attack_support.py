"""Shared by the tests that attack: cells for hostile files, and what the kernel says of their processes."""

import dataclasses
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support import TOOLS, call, settings_in

from runner.cell import Access, Cell
from runner.homes import HomeLease
from runner.identity import User
from sandbox.policy import Policy

__all__ = [
    "ATTACK",
    "Unguarded",
    "act",
    "attack_cell",
    "children",
    "descendants",
    "found_in_memory",
    "snapshot",
    "zygotes",
]

ATTACK = TOOLS / "attack.py"


class Unguarded(Cell):
    """A cell whose workers have no guard: what is denied is denied by the kernel."""

    def _policy(self, user: User | None, access: Access, home: HomeLease | None, scratch: Path) -> Policy:
        return dataclasses.replace(super()._policy(user, access, home, scratch), guard=False)


@asynccontextmanager
async def attack_cell(
    folder: Path, *, kind: type[Cell] = Cell, file: Path = ATTACK, **more: Any
) -> AsyncIterator[Cell]:
    """Open a cell for a hostile file; `ATTACK` in the environment reaches its import."""
    settings = settings_in(folder, allow_env=("ATTACK",), **more)
    async with kind.open(settings, [str(file)]) as cell:
        yield cell


async def act(cell: Cell, user: str, name: str, *arguments: Any) -> Any:
    """Try something in a worker of `user`; return what `acts.perform` says of it."""
    completed = await call(cell, user, "act", name=name, arguments=list(arguments))
    return completed.processed.value["results"]


def children(pid: int) -> list[int]:
    """Return the children of every thread of a process, in order of age."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        lists = [Path(f"/proc/{pid}/task/{thread}/children").read_text().split() for thread in threads]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(child) for found in lists for child in found]


def descendants(pid: int) -> list[int]:
    """Return everything below a process."""
    below = children(pid)
    return below + [found for child in below for found in descendants(child)]


def zygotes(cell: Cell) -> list[int]:
    """Return the zygotes of a cell."""
    return children(cell.forkserver.process.pid)


def found_in_memory(pid: int, wanted: bytes) -> bool:
    """Say whether the bytes are anywhere in the writable memory, arguments or environment of a process."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if span is None:
                continue
            first, last = (int(number, 16) for number in span.groups())
            memory.seek(first)
            if wanted in (memory.read(last - first) or b""):
                return True
    return False


def snapshot(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return what lies in a folder, with mode, links, time and content of each entry."""
    found = {}
    for path in (top, *sorted(top.rglob("*"))):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (facts.st_mode, facts.st_nlink, facts.st_mtime_ns, content)
    return found
