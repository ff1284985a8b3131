"""Helpers for tests that attack: toolsets for hostile files, and inspection of their processes."""

import contextlib
import dataclasses
import re
import shutil
import stat
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support import ROOT, TOOLS, call, settings_in

from runner.homes.homes import HomeLease
from runner.toolset.policies import PolicyBuilder
from runner.toolset.toolset import Toolset
from runner.toolset.user_pool import HomeAccess
from runner.users.identity import User
from sandbox.policy import Policy

__all__ = [
    "ATTACK",
    "Unguarded",
    "act",
    "attack_toolset",
    "found_in_memory",
    "interpreter_for_anybody",
    "like",
    "opened",
    "snapshot",
]

ATTACK = TOOLS / "attack.py"


class WithoutGuard(PolicyBuilder):
    """Policies without a guard."""

    def policy(self, user: User | None, access: HomeAccess, home: HomeLease | None, scratch: Path) -> Policy:
        return dataclasses.replace(super().policy(user, access, home, scratch), guard=False)


class Unguarded(Toolset):
    """A toolset whose workers have no guard, so that only the kernel denies anything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._pool_maker.policies = like(self._pool_maker.policies, WithoutGuard)


def like(bounds: PolicyBuilder, kind: type[PolicyBuilder]) -> PolicyBuilder:
    """Return a policy builder of class `kind` with the fields of `bounds`."""
    return kind(**{field.name: getattr(bounds, field.name) for field in dataclasses.fields(bounds)})


@asynccontextmanager
async def attack_toolset(
    folder: Path, *, kind: type[Toolset] = Toolset, file: Path = ATTACK, **more: Any
) -> AsyncIterator[Toolset]:
    """Open a toolset for a hostile file, whose import can read `ATTACK` in the environment."""
    settings = settings_in(folder, allow_env=("ATTACK",), **more)
    async with kind.open(settings, [str(file)]) as toolset:
        yield toolset


async def act(toolset: Toolset, user: str, name: str, *arguments: Any) -> Any:
    """Run one act in a worker of `user`; return the result of `acts.perform`."""
    completed = await call(toolset, user, "act", name=name, arguments=list(arguments))
    return completed.processed.value["results"]


def found_in_memory(pid: int, wanted: bytes) -> bool:
    """Return whether the bytes are anywhere in the writable memory, arguments or environment of a process."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if span is None:
                continue
            first, last = (int(number, 16) for number in span.groups())
            memory.seek(first)
            # Guard pages cannot be read. Source: madvise(2), MADV_GUARD_INSTALL.
            with contextlib.suppress(OSError):
                if wanted in (memory.read(last - first) or b""):
                    return True
    return False


def snapshot(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return the entries of a folder by path: mode, link count, modification time and content."""
    found = {}
    for path in (top, *sorted(top.rglob("*"))):
        facts = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(top))] = (facts.st_mode, facts.st_nlink, facts.st_mtime_ns, content)
    return found


def interpreter_for_anybody(top: Path) -> Path:
    """Return an interpreter that any user can run, in a virtual environment with our packages."""
    names = [sys.executable, f"{sys.base_prefix}/bin/python3", f"/usr/bin/python3.{sys.version_info.minor}"]
    real = next((Path(name).resolve() for name in names if open_to_all(Path(name).resolve())), None)
    assert real is not None, "no interpreter of this Python version can be run by an unprivileged user"
    subprocess.run([real, "-m", "venv", "--without-pip", top / "venv"], check=True)
    packages = next((top / "venv/lib").glob("python3*/site-packages"))
    ours = [opened(Path(sysconfig.get_path("purelib")), top / "packages")]
    ours += [opened(ROOT / name, top / "tree" / name).parent for name in ("runner", "sandbox")]
    (packages / "ours.pth").write_text("\n".join(str(path) for path in ours))
    return top / "venv/bin/python"


def opened(folder: Path, copy: Path) -> Path:
    """Return `folder`, or a copy of it if other users cannot reach it."""
    if open_to_all(folder):
        return folder
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    return copy


def open_to_all(path: Path) -> bool:
    return path.exists() and all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))
