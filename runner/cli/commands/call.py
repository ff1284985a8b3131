"""`runner call`: one call from a shell, processed like a call of an MCP client."""

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from runner.call import Completed, Request, execute
from runner.cli.arguments import ParsedArguments, coerce, parse_arguments
from runner.cli.commands.files import writable
from runner.cli.exits import EXIT_INTERRUPTED, EXIT_USAGE, print_error
from runner.cli.options import BOUNDS, LOGS, WHOSE, AsJson, Config, File, Flags, takes
from runner.cli.start import explained, start
from runner.errors import CallError, Code, UsageError
from runner.files.my_files import MyFiles
from runner.formats.json_pieces import json_pieces
from runner.formats.terminal_text import one_line
from runner.settings.settings import Settings
from runner.steps.listener import LOG_LEVELS, MESSAGE, PROGRESS, ClientRefusal
from runner.steps.shell_view import as_text
from runner.store.protocol import Origin
from runner.system.terminal import draw, write_exactly
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.users.identity import User, resolve
from runner.worker.targets import check_targets
from runner.worker.wire import RequestFacts, WireError
from sandbox.host.launch import Launched

__all__ = ["call", "put_files", "read_by_schema"]

_PROTOCOL = "2026-07-28"
_CLIENT = {"name": "runner", "version": "1"}
_TOKEN = "terminal"  # noqa: S105 - a progress token, no secret
_WIDTH = 24
_METHOD_NOT_FOUND = -32601


class Terminal:
    """Display of progress and messages on standard error. A `runner.steps.listener.Client`."""

    def __init__(self) -> None:
        self._stream: TextIO = sys.stderr
        self._live = self._stream.isatty()
        self._bar = False

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Show one notification."""
        if method == PROGRESS:
            self._progress(params)
        elif method == MESSAGE:
            data = params.get("data")
            text = data.get("msg") if isinstance(data, Mapping) else data
            self._line(f"{params.get('level', 'info')}: {_plain(text)}")

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse: a shell command cannot answer requests of a tool."""
        raise ClientRefusal(_METHOD_NOT_FOUND, f"`runner call` cannot answer {method}; use an MCP client")

    def printed(self, output: str) -> None:
        """Show the tool's output, line by line."""
        for line in output.splitlines():
            self._line(_plain(line))

    def close(self) -> None:
        """End the bar's line, if there is one."""
        if self._bar:
            self._stream.write("\n")
            self._bar = False
        self._stream.flush()

    def _progress(self, params: Mapping[str, Any]) -> None:
        value, total, message = params["progress"], params.get("total"), _plain(params.get("message"))
        if not total:
            self._line(message or f"{value:g}")
            return
        share = min(1.0, max(0.0, value / total))
        if not self._live:
            self._line(f"{share:4.0%} {message}".rstrip())
            return
        bar = ("#" * round(share * _WIDTH)).ljust(_WIDTH, ".")
        draw(f"\r\x1b[K[{bar}] {share:4.0%} {message[:100]}", self._stream)
        self._stream.flush()
        self._bar = True

    def _line(self, text: str) -> None:
        self.close()
        self._stream.write(text + "\n")
        self._stream.flush()


def _plain(text: object) -> str:
    return one_line(str(text or ""))


@takes("idle_timeout_s", "total_timeout_s", *WHOSE, *BOUNDS, "fresh", *LOGS)
def call(
    context: typer.Context,
    file: File,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[name=value | name:=json | name=@path]...")
    ] = None,
    *,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="All arguments as one object.")] = None,
    put: Annotated[
        list[Path] | None, typer.Option("--file", metavar="PATH", help="Put a file into My Files first.")
    ] = None,
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write artifacts to this folder.")] = None,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session the call belongs to.")] = "cli",
    config: Config = None,
    flags: Flags,
) -> int:
    """Call one tool and print its result."""
    target = check_targets([file])[0]
    # The tool's output goes to this terminal, and its exception into the error.
    settings = start({"log_level": "warning", **flags}, config).model_copy(update={"tool_output": "drop"})
    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    made = partial(
        _call,
        user=replace(user, session=session),
        session=session,
        tool=tool,
        parsed=parse_arguments(arguments or [], args),
        paths=put or [],
        as_json=as_json,
        out=out,
    )
    called = _interruptible(settings, user, target, made, launched=context.obj)
    return asyncio.run(explained(called, [target]))


async def _interruptible(
    settings: Settings,
    user: User,
    target: str,
    made: Callable[[Toolset, Terminal], Awaitable[int]],
    *,
    launched: Launched | None,
) -> int:
    """Open a tool file, make a call, and return the exit status; a signal cancels the call.

    Raises:
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
        opening = Toolset.open(
            settings, [target], user=user, keep_s=settings.session_idle_s, launched=launched
        )
        async with opening as toolset:
            return await made(toolset, terminal)
    except asyncio.CancelledError:
        terminal.close()
        print("interrupted; nothing is left running", file=sys.stderr)  # noqa: T201
        return EXIT_INTERRUPTED


async def _call(
    toolset: Toolset,
    terminal: Terminal,
    *,
    user: User,
    session: str,
    tool: str,
    parsed: ParsedArguments,
    paths: Sequence[Path],
    as_json: bool,
    out: Path | None,
) -> int:
    """Put files into My Files, call a tool, print its result, and return the exit status.

    Raises:
        UsageError: A file cannot be put into My Files.
    """
    files = toolset.files(user)
    for path in paths:
        await _put(files, path)
    names = await put_files(files, parsed)
    arguments = read_by_schema(parsed, names, toolset.catalog.tools.get(tool))
    request = Request(
        user=user,
        method="tools/call",
        params={"name": tool, "arguments": arguments, "_meta": _meta()},
        facts=RequestFacts(
            request_id=1,
            protocol=_PROTOCOL,
            session_id=session,
            transport="stdio",
            client_info=_CLIENT,
            client_capabilities={},
        ),
        client=terminal,
        levels=LOG_LEVELS,
        inline_max_bytes=toolset.settings.inline_max_bytes,
    )
    try:
        completed = await execute(toolset, request)
    except WireError as error:
        terminal.close()
        raise UsageError(f"the tool's server refused the call: {error}") from error
    outcome = request.steps.outcome
    processed = completed.processed
    if outcome is not None and (processed.failure is None or "output" not in processed.failure.details):
        # The error of a crash includes the output in its details.
        terminal.printed(outcome.output)
    terminal.close()
    if completed.interim is not None:
        raise UsageError(
            f"the tool {tool} asks for input while it runs, which a shell cannot give; "
            "call it from an MCP client"
        )
    for piece in json_pieces(processed.value) if as_json else [as_text(processed)]:
        write_exactly(piece)
    write_exactly("\n")
    sys.stdout.flush()
    if out is not None:
        try:
            await _write_out(completed, files, out)
        except (OSError, CallError) as error:
            # The result has been printed, and with `--json` no second document may follow.
            refused = UsageError(f"the artifacts cannot be written to {out}: {error}")
            return print_error(refused, EXIT_USAGE)
    return _exit_status(completed)


def _meta() -> dict[str, Any]:
    prefix = "io.modelcontextprotocol/"
    envelope = {"protocolVersion": _PROTOCOL, "clientInfo": _CLIENT, "clientCapabilities": {}}
    return {"progressToken": _TOKEN, **{prefix + key: value for key, value in envelope.items()}}


def read_by_schema(
    parsed: ParsedArguments, names: Mapping[str, list[str]], spec: ToolSpec | None
) -> dict[str, Any]:
    """Return arguments converted by a tool's schema.

    Args:
        parsed: The arguments of a command line.
        names: For each `name=@path` argument the names of its files.
        spec: The tool, if it is known.
    """
    schema = spec.parameters if spec is not None else {}
    properties = schema.get("properties", {})
    arguments: dict[str, Any] = dict(parsed.values)
    for name, text in parsed.texts.items():
        arguments[name] = coerce(text, properties.get(name, {}), schema)
    for name, files in names.items():
        arguments[name] = files[0] if len(files) == 1 and name != "filenames" else files
    return arguments


async def put_files(files: MyFiles, arguments: ParsedArguments) -> dict[str, list[str]]:
    """Put local files into My Files; return the resulting names for each `name=@path` argument.

    Raises:
        UsageError: One cannot be read.
    """
    return {name: [await _put(files, path) for path in paths] for name, paths in arguments.files.items()}


async def _put(files: MyFiles, path: Path) -> str:
    try:
        return (await files.put(path, name=path.name, origin=Origin.UPLOADED)).shown
    except OSError as error:
        raise UsageError(f"{path} cannot be put into My Files: {error.strerror}") from error


async def _write_out(completed: Completed, files: MyFiles, folder: Path) -> None:
    """Copy every accepted artifact from My Files, of any size."""
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    for file in completed.processed.files:
        stored = await files.by_id(file.id)
        if stored is not None:
            async with files.open(stored) as content:
                with writable(folder / file.name, force=True) as fd:
                    await content.copy_to(fd)


def _exit_status(completed: Completed) -> int:
    """Return the exit status of `docs/cli.md`: the worst of the result and of refused files."""
    processed = completed.processed
    if processed.failure is not None:
        return processed.failure.code.exit_status
    if processed.errors:
        codes = [refusal.error.code for refusal in processed.errors]
        return (Code.E_INVALID_PATH if Code.E_INVALID_PATH in codes else codes[0]).exit_status
    return 1 if processed.is_error else 0
