"""`runner call`: one call from a shell, by the same spine that serves MCP clients."""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.arguments import GivenArguments, coerce
from runner.call import Completed, Request, execute
from runner.catalog import ToolSpec
from runner.cell import Cell
from runner.errors import Code, UsageError
from runner.identity import User
from runner.render import human
from runner.request import RequestFacts, WireError
from runner.settings import Settings
from runner.store.local import LocalStore, Origin
from runner.terminal import TOKEN, Terminal

__all__ = ["EXIT_INTERRUPTED", "CallOptions", "call_from_shell"]

EXIT_INTERRUPTED = 130

_PROTOCOL = "2026-07-28"
_CLIENT = {"name": "runner", "version": "1"}
_ALL_LEVELS = frozenset({"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """What one `runner call` was asked to do.

    Attributes:
        target: The tool file.
        tool: Name of the tool.
        arguments: Its arguments, not yet read by a schema.
        files: Files to put into My Files first.
        as_json: Print exactly one JSON document.
        out: Folder to write artifacts to.
        session: Name of the session the call belongs to.
    """

    target: str
    tool: str
    arguments: GivenArguments
    files: tuple[Path, ...]
    as_json: bool
    out: Path | None
    session: str


async def call_from_shell(settings: Settings, user: User, options: CallOptions) -> int:
    """Run one call, print its result, and return the exit status.

    Raises:
        UsageError: A file cannot be put into My Files, or the result cannot be written to `out`.
        LoadError: The tool file is at fault.
        ConfinementError: A layer could not be put in place.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in a task
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    terminal = Terminal()
    try:
        async with Cell.open(settings, [options.target], user=user, keep_s=settings.session_idle_s) as cell:
            return await _call(cell, user, options, terminal)
    except asyncio.CancelledError:
        terminal.close()
        print("interrupted; nothing is left running", file=sys.stderr)  # noqa: T201
        return EXIT_INTERRUPTED


async def _call(cell: Cell, user: User, options: CallOptions, terminal: Terminal) -> int:
    spec = cell.catalog.tools.get(options.tool)
    names = await asyncio.to_thread(_put_files, cell.store, user, options)
    arguments = _arguments(options.arguments, names, spec)
    request = Request(
        user=user,
        method="tools/call",
        params={"name": options.tool, "arguments": arguments, "_meta": _meta()},
        facts=RequestFacts(
            request_id=1,
            protocol=_PROTOCOL,
            session_id=options.session,
            transport="stdio",
            client_info=_CLIENT,
            client_capabilities={},
        ),
        client=terminal,
        levels=_ALL_LEVELS,
        inline_max_bytes=cell.settings.inline_max_bytes,
    )
    try:
        completed = await execute(cell, request)
    except WireError as error:
        terminal.close()
        raise UsageError(f"the tool's server refused the call: {error}") from error
    terminal.close()
    if completed.interim is not None:
        raise UsageError(
            f"the tool {options.tool} asks for input while it runs, which a shell cannot give; "
            "call it from an MCP client"
        )
    if options.out is not None:
        await asyncio.to_thread(_write_out, completed, cell.store, user, options.out)
    _print(completed, options)
    return _exit_status(completed)


def _meta() -> dict[str, Any]:
    prefix = "io.modelcontextprotocol/"
    envelope = {"protocolVersion": _PROTOCOL, "clientInfo": _CLIENT, "clientCapabilities": {}}
    return {"progressToken": TOKEN, **{prefix + key: value for key, value in envelope.items()}}


def _arguments(
    given: GivenArguments, names: Mapping[str, list[str]], spec: ToolSpec | None
) -> dict[str, Any]:
    properties = spec.parameters.get("properties", {}) if spec is not None else {}
    arguments: dict[str, Any] = dict(given.values)
    for name, text in given.texts.items():
        arguments[name] = coerce(text, properties.get(name, {}))
    for name, files in names.items():
        arguments[name] = files[0] if len(files) == 1 and name != "filenames" else files
    return arguments


def _put_files(store: LocalStore, user: User, options: CallOptions) -> dict[str, list[str]]:
    """Put local files into My Files; return for each `name=@path` argument the names they got."""
    for path in options.files:
        _put(store, user, path)
    return {
        name: [_put(store, user, path) for path in paths] for name, paths in options.arguments.files.items()
    }


def _put(store: LocalStore, user: User, path: Path) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} cannot be put into My Files: {error.strerror}") from error
    try:
        return store.put_file(user.name, fd, name=path.name, origin=Origin.UPLOADED).name
    except OSError as error:
        raise UsageError(f"{path} cannot be put into My Files: {error.strerror}") from error
    finally:
        os.close(fd)


def _print(completed: Completed, options: CallOptions) -> None:
    processed = completed.processed
    if options.as_json:
        json.dump(processed.value, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(human(processed) + "\n")
    sys.stdout.flush()


def _write_out(completed: Completed, store: LocalStore, user: User, folder: Path) -> None:
    """Copy every accepted artifact from My Files, whatever its size."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in completed.processed.files:
            stored = store.by_id(user.name, file.id)
            if stored is not None:
                with os.fdopen(store.open(stored), "rb") as source, (folder / file.name).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except OSError as error:
        raise UsageError(f"the artifacts cannot be written to {folder}: {error}") from error


def _exit_status(completed: Completed) -> int:
    """Return the exit status of `docs/cli.md`: the worst of the result and of what was refused."""
    processed = completed.processed
    if processed.failure is not None:
        return processed.failure.code.exit_status
    if processed.errors:
        codes = [refusal.error.code for refusal in processed.errors]
        first = next((code for code in codes if code is Code.E_INVALID_PATH), codes[0])
        return first.exit_status
    return 1 if processed.is_error else 0
