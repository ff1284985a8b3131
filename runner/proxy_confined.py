"""A remote server that is a command: started confined, with a scratch home of its own and no network.

It may read what a tool file may read, with the folders of the files that its command names; it may write in
its home, which goes when the connection ends. What has to fetch itself from the network first is refused.

Source: issue "Nothing floods the model", line 6; architecture, decisions "Network", "Reads" and "Programs".
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastmcp.client.transports import ClientTransport
from fastmcp.client.transports.stdio import StdioTransport
from mcp import ClientSession

from runner.cell import GUARD_ONLY
from runner.environment import FOLDERS, call_environment, framework_environment
from runner.errors import UsageError
from runner.homes import Homes
from runner.identity import User
from runner.proxy_targets import Target
from runner.settings import Settings
from sandbox.policy import Policy
from sandbox.readable import default_read

__all__ = ["ConfinedTransport", "check_command"]

_FETCHERS = {
    ("npx",): "npm install -g",
    ("bunx",): "bun install -g",
    ("pnpx",): "pnpm add -g",
    ("npm", "exec"): "npm install -g",
    ("npm", "x"): "npm install -g",
    ("pnpm", "dlx"): "pnpm add -g",
    ("yarn", "dlx"): "npm install -g",
    ("bun", "x"): "bun install -g",
    ("uvx",): "pip install",
    ("uv", "tool", "run"): "pip install",
    ("uv", "run"): "pip install",
    ("pipx", "run"): "pip install",
}


def check_command(target: Target, settings: Settings) -> Path:
    """Return the program that a command names.

    Raises:
        UsageError: There is no such program, it may not be run, or it would have to fetch the server first.
    """
    if settings.isolation in ("user", "namespace"):
        raise UsageError(
            f"{target.name} is a command, which runs in the tier process in this version and not in "
            f"{settings.isolation}; leave --isolation out"
        )
    if settings.deny_run:
        raise UsageError(f"{target.name} is a command, and deny_run lets nothing be run; leave it out")
    called = (Path(target.command[0]).name, *target.command[1:])
    for fetcher, instead in _FETCHERS.items():
        if called[: len(fetcher)] == fetcher:
            raise UsageError(
                f"{target.name}: `{' '.join(fetcher)}` fetches the server from the network when it starts, "
                "and a confined server has no network. --allow-net would allow it, and comes with a later "
                f"version; install the server before (`{instead} PACKAGE`) and name its program instead"
            )
    name = target.command[0]
    wanted = str(target.folder / name) if "/" in name else name
    found = shutil.which(wanted)
    if found is None:
        raise UsageError(f"{target.name}: there is no program {name}; check the name and PATH")
    return Path(found).absolute()


class ConfinedTransport(ClientTransport):
    """The way to one process of the command, which ends with the connection."""

    def __init__(self, target: Target, program: Path, settings: Settings, user: User) -> None:
        self._target = target
        self._program = program
        self._settings = settings
        self._user = user

    @contextlib.asynccontextmanager
    async def connect_session(self, **session_kwargs: Any) -> AsyncIterator[ClientSession]:
        """Start the process, and end it and all that it started when the block ends."""
        parent = self._settings.state_dir / "scratch"
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(dir=parent, prefix="proxy-"))
        try:
            inner = StdioTransport(
                command=sys.executable,
                args=self._arguments(place),
                # No secret of ours: what the server may see is in its policy.
                env=framework_environment(os.environ, ()),
                keep_alive=False,
            )
            try:
                async with inner.connect_session(**session_kwargs) as session:
                    yield session
            finally:
                await inner.disconnect()  # type: ignore[no-untyped-call]
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _arguments(self, place: Path) -> list[str]:
        home, said = place / "home", place / "policy.json"
        for folder in FOLDERS.values():
            (home / folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(self._policy(home).to_json(), file)
        command = (str(self._program), *self._target.command[1:])
        launcher = ("-P", "-m", "sandbox.inside.exec_main", str(said), str(os.getpid()))
        return [*launcher, *_absolute(command, self._target.folder)]

    def _policy(self, home: Path) -> Policy:
        settings = self._settings
        environment = framework_environment(os.environ, settings.allow_env)
        personal = call_environment(user=self._user.name, home=home)
        read, list_only = self._readable()
        return Policy(
            home=home,
            read=read,
            list_only=list_only,
            homes=(settings.homes,),
            programs=not settings.deny_run,
            environment={**environment, **personal, **self._target.env},
            limits=settings.limits(),
            guard=False,
            without=GUARD_ONLY if settings.isolation == "guard" else (),
        )

    def _readable(self) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        settings = self._settings
        deny = (*settings.private_paths, settings.homes)
        homes = Homes(settings.homes, settings.state_dir).recorded()
        read: dict[Path, None] = {}
        listed: dict[Path, None] = {}
        for file in _files(self._program, self._target):
            found = default_read(deny=deny, tool_file=file, extra=_packages(file), homes=homes)
            read |= dict.fromkeys(found.read)
            listed |= dict.fromkeys(found.list_only)
        return tuple(read), tuple(listed)


def _files(program: Path, target: Target) -> list[Path]:
    """Return the files that a command names: its program, and what of its arguments is a file."""
    named = [target.folder / argument for argument in target.command[1:]]
    found = [program, program.resolve(), *(path.absolute() for path in named if path.is_file())]
    return list(dict.fromkeys(found))


def _packages(file: Path) -> tuple[Path, ...]:
    """Return the folder of installed packages that a program is one of, where Node's lies in one."""
    real = file.resolve()
    return tuple(parent for parent in real.parents if parent.name == "node_modules")[-1:]


def _absolute(command: Sequence[str], folder: Path) -> list[str]:
    """Return a command whose arguments that are files are absolute: its working folder is its home."""
    rest = [str((folder / word).absolute()) if (folder / word).is_file() else word for word in command[1:]]
    return [command[0], *rest]
