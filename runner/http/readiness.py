"""Health routes. `/healthz`: the process answers. `/readyz`: a call would work now, and if not, why.

They reveal nothing about users, files or tools, so they need no token and have no rate limit.

Each part is checked at most once a second, by one task at a time, and no request waits for it for long: while
a check is slow, the last result is used, unless it is too old.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from runner.contract.own_paths import OwnPaths
from runner.files.download_links import DownloadLinks
from runner.files.my_files import Library
from runner.http.context import Site
from runner.settings.execution import ExecutionSettings
from runner.store.protocol import ArtifactStore
from runner.users.capability_tokens import Tokens

__all__ = ["PATHS", "Readiness", "least_free_bytes", "routes"]

PATHS = ("/healthz", "/readyz")
"""Paths of the health routes."""

Ask = Callable[[], Awaitable[Mapping[str, str]]]

_HEADERS = {"Cache-Control": "no-store"}
_FRESH_S = 1.0
_STALE_S = 5.0
# Probes of orchestrators time out after one second by default.
_PATIENCE_S = 0.7
_MIB = 1024 * 1024
_LEAST_BYTES, _LEAST_SHARE = 64 * _MIB, 50


@dataclass(slots=True, eq=False)
class _Part:
    """One check and its last result."""

    name: str
    ask: Ask
    _asking: "asyncio.Task[Mapping[str, str]] | None" = field(init=False, default=None)
    _faults: Mapping[str, str] = field(init=False, default_factory=dict)
    _checked_at: float = field(init=False, default=float("-inf"))

    async def faults(self) -> Mapping[str, str]:
        """Return the faults, by part."""
        if time.monotonic() - self._checked_at < _FRESH_S:
            return self._faults
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait({self._asking}, timeout=_PATIENCE_S)
        if time.monotonic() - self._checked_at < _STALE_S:
            return self._faults
        return {self.name: "it could not be checked yet: the check takes unusually long; ask again"}

    async def _ask(self) -> Mapping[str, str]:
        try:
            self._faults = await self.ask()
        except OSError as error:
            self._faults = {self.name: f"it could not be checked: {error.strerror}"}
        finally:
            self._asking = None
        self._checked_at = time.monotonic()
        return self._faults


class Checked(Protocol):
    """Parts of a server that readiness checks."""

    library: Library
    links: DownloadLinks

    @property
    def settings(self) -> ExecutionSettings:
        """Return the effective settings."""

    @property
    def named_files(self) -> Sequence[Path]:
        """Return the files that are served."""

    async def faults(self) -> Mapping[str, str]:
        """Return the parts at fault, by name, each with a sentence on why calls cannot be taken now."""


class Readiness:
    """Readiness of a server: the faults that keep it from taking calls.

    Args:
        settings: The effective settings.
        tools: Returns the faults of what executes calls, by part.
        store: The store of My Files.
        tokens: Signer of links.
        own_paths: Paths of the server, redacted from answers.
        stopping: Returns why no more calls are accepted, once the server is stopping.
        identity: Returns why tokens cannot be checked at present, if so.
    """

    def __init__(
        self,
        settings: ExecutionSettings,
        *,
        tools: Ask,
        store: ArtifactStore,
        tokens: Tokens,
        own_paths: OwnPaths,
        stopping: Callable[[], str | None] = lambda: None,
        identity: Callable[[], Awaitable[str | None]] | None = None,
    ) -> None:
        async def store_fault() -> Mapping[str, str]:
            fault = await store.fault()
            return {} if fault is None else {"store": fault}

        async def disk() -> Mapping[str, str]:
            return await asyncio.to_thread(_disk_faults, settings.state_dir, settings.homes)

        async def keys() -> Mapping[str, str]:
            fault = await asyncio.to_thread(tokens.fault)
            return {} if fault is None else {"keys": fault}

        async def issuer() -> Mapping[str, str]:
            fault = None if identity is None else await identity()
            return {} if fault is None else {"identity": fault}

        self._stopping = stopping
        self._own_paths = own_paths
        self._parts = (
            _Part("tools", tools),
            _Part("store", store_fault),
            _Part("state", disk),
            _Part("keys", keys),
            _Part("identity", issuer),
        )

    @classmethod
    def of_site(
        cls, site: Site, *, identity: Callable[[], Awaitable[str | None]] | None = None
    ) -> "Readiness":
        """Return the checks of a server over HTTP."""
        return cls(
            site.settings,
            tools=site.faults,
            store=site.library.store,
            tokens=site.tokens,
            own_paths=site.own_paths,
            stopping=site.stopping,
            identity=identity,
        )

    @classmethod
    def of_services(cls, services: Checked) -> "Readiness":
        """Return the checks of a server without logins: over stdio, or a worker node."""
        return cls(
            services.settings,
            tools=services.faults,
            store=services.library.store,
            tokens=services.links.tokens,
            own_paths=OwnPaths.of(services.settings, services.named_files),
        )

    async def faults(self) -> Mapping[str, str]:
        """Return a sentence for each part at fault, by its name; empty if a call would work."""
        stopping = self._stopping()
        if stopping is not None:
            # Never cached: clients must stop sending requests at once.
            return {"server": stopping}
        found: dict[str, str] = {}
        for faults in await asyncio.gather(*(part.faults() for part in self._parts)):
            found |= faults
        return {name: str(self._own_paths.redact_unlogged(fault)) for name, fault in found.items()}


def routes(*, tier: str, version: str, faults: Ask) -> list[Route]:
    """Return the two routes.

    Args:
        tier: Isolation tier in force.
        version: Version of the runner.
        faults: Returns the faults that keep calls from working, by part; called on every request.
    """

    async def healthz(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "tier": tier, "version": version}, headers=_HEADERS)

    async def readyz(_: Request) -> JSONResponse:
        failed = await faults()
        if not failed:
            return JSONResponse({"status": "ready"}, headers=_HEADERS)
        answer = {"status": "not ready", "failed": dict(failed)}
        return JSONResponse(answer, status_code=503, headers={**_HEADERS, "Retry-After": "1"})

    return [Route(path, act, methods=["GET"]) for path, act in zip(PATHS, (healthz, readyz), strict=True)]


def _disk_faults(state: Path, homes: Path) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, folder, setting in (("state", state, "state_dir"), ("homes", homes, "homes")):
        fault = _writing_fault(folder)
        if fault is not None:
            found[name] = (
                f"nothing can be written in the folder {setting}: {fault}; see to its disk and owner"
            )
            continue
        room = _room_fault(folder)
        if room is not None:
            found["disk"] = f"the disk of {setting} {room}; delete something, or give {setting} a larger one"
    return found


def _writing_fault(folder: Path) -> str | None:
    """Return why no file can be created and written in a folder; None if one can."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"ready?")
            file.flush()
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _room_fault(folder: Path) -> str | None:
    """Return a sentence if the disk has too little room for a call; None if it has enough."""
    there = os.statvfs(folder)
    free, total = there.f_bavail * there.f_frsize, there.f_blocks * there.f_frsize
    if free < least_free_bytes(there):
        return f"has {free // _MIB} MiB left of {total // _MIB}"
    # Some file systems have no inode table, and report zero inodes.
    if there.f_files and not there.f_favail:
        return "can take no further file, though it has room"
    return None


def least_free_bytes(disk: os.statvfs_result) -> int:
    """Return the bytes to leave free on a disk: 64 MiB, or a fiftieth of a small disk.

    With less, a server is not ready for calls, and accepts no upload.
    """
    return min(_LEAST_BYTES, disk.f_blocks * disk.f_frsize // _LEAST_SHARE)
