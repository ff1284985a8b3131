"""`runner dev`: serve tool files over HTTP, and load them again when they change.

Calls in flight continue in the processes they started in. A file that cannot be loaded changes nothing: the
previous tools stay in use, and terminal and Playground show the reason.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from watchfiles import PythonFilter, awatch

from runner.contract.own_paths import OwnPaths
from runner.server.ahead import first_user
from runner.server.host import make_host
from runner.server.serve import serve_application, with_code
from runner.settings.settings import Settings
from runner.toolset.toolset import Toolset
from runner.worker.targets import entry_of
from sandbox.errors import SandboxError
from sandbox.host.launch import Launched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["RELOADED", "develop", "ended_at_once"]

log = logging.getLogger(__name__)

RELOADED = "tools_reloaded"
"""The event that the files were reloaded, or could not be: `error` is the reason."""

_WIDE = (Path("/"), Path("/tmp"), Path("/var/tmp"))  # noqa: S108 - folders that hold more than a project


async def develop(
    settings: Settings,
    targets: Sequence[str],
    *,
    reread: Callable[[], Settings],
    launched: Launched | None = None,
) -> int:
    """Serve the tool files over HTTP until a signal; return the exit status.

    Args:
        settings: The effective settings.
        targets: Tool files, each optionally with `:NAME` of the object in it.
        reread: Reads the settings again.
        launched: A forkserver process that was started before, if there is one.

    Raises:
        UsageError: The address cannot be listened on, or callers cannot be identified.
        LoadError: A tool file is faulty at the start.
    """
    settings = ended_at_once(settings)
    if "tool_output" not in settings.model_fields_set:
        settings = settings.model_copy(update={"tool_output": "client"})
    opened = with_code(settings, _reloading(settings, targets, launched))
    return await serve_application(settings, "http", opened, partial(make_host, transport="http"), reread)


def ended_at_once(settings: Settings) -> Settings:
    """Return the settings of a server whose only caller stops it: by default, calls are not drained."""
    return (
        settings if "drain_s" in settings.model_fields_set else settings.model_copy(update={"drain_s": 0.0})
    )


@asynccontextmanager
async def _reloading(
    settings: Settings, targets: Sequence[str], launched: Launched | None
) -> "AsyncIterator[Toolset]":
    first = first_user(settings, "http")
    folders = {folder for target in targets for folder in entry_of(target).folders}
    async with Toolset.open(settings, targets, user=first, launched=launched) as toolset:
        watcher = asyncio.create_task(_watch(toolset, folders))
        try:
            yield toolset
        finally:
            watcher.cancel()
            await asyncio.wait({watcher})


async def _watch(toolset: Toolset, folders: Collection[Path]) -> None:
    # Folders that contain more than a project are not watched recursively.
    recursive = not any(folder in _WIDE or folder == Path.home() for folder in folders)
    async for changes in awatch(*folders, watch_filter=PythonFilter(), step=100, recursive=recursive):
        names = sorted({Path(path).name for _change, path in changes})
        await _reload(toolset, names)


async def _reload(toolset: Toolset, changed: Sequence[str]) -> None:
    names = ", ".join(changed)
    try:
        await toolset.reload()
    except SandboxError as error:
        print(f"{names} changed and cannot be loaded: {error}", file=sys.stderr, flush=True)  # noqa: T201
        message = OwnPaths.of(toolset.settings, toolset.named_files).redact(str(error))
        toolset.events.publish_to_all({"type": RELOADED, "changed": list(changed), "error": message})
        return
    tools = len(toolset.catalog.tools)
    print(f"{names} changed: {tools} tools reloaded", file=sys.stderr, flush=True)  # noqa: T201
    toolset.events.publish_to_all({"type": RELOADED, "changed": list(changed), "error": None})
