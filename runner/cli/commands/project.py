"""The commands for files of a project or of a client: `init`, `trust` and `install`."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from runner.cli.exits import end_with
from runner.cli.options import File, User
from runner.cli.start import explained, start
from runner.settings.targets import check_targets

__all__ = ["init", "install", "trust"]


def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to write to.")] = Path(),
) -> None:
    """Write a working tool file, its test and a runner.toml; what exists is never overwritten."""
    end_with(lambda: _init(folder))


def install(
    client: Annotated[str, typer.Argument(help="claude-desktop, claude-code, cursor, vscode or mcp-json.")],
    file: File,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the entry; else of the file.")] = None,
    user: User = None,
    only_print: Annotated[bool, typer.Option("--print", help="Show the result and write nothing.")] = False,
) -> None:
    """Write the entry that an MCP client needs to serve a tool file; its other entries stay."""
    end_with(lambda: _install(client, file, name=name, user=user, only_print=only_print))


def trust(
    path: Annotated[
        Path, typer.Argument(metavar="[DIR|FILE]", help="A folder with a runner.toml, or a file.")
    ] = Path(),
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Trust it no longer.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what is trusted.")] = False,
) -> None:
    """Trust a configuration file as it is now: runner.toml, fastmcp.json or mcp.json."""
    end_with(lambda: _trust(path, remove=remove, listed=listed))


def _init(folder: Path) -> int:
    from runner.cli.init import next_steps, trust_written, write_project  # noqa: PLC0415 - only `init` needs it

    written = write_project(folder)
    print(next_steps(written, trust_written(written[-1])))  # noqa: T201
    return 0


def _trust(path: Path, *, remove: bool, listed: bool) -> int:
    from runner.cli.run_trust import distrusted, list_trusted, trusted  # noqa: PLC0415 - only `trust` needs it

    print(list_trusted() if listed else distrusted(path) if remove else trusted(path))  # noqa: T201
    return 0


def _install(client: str, file: str, *, name: str | None, user: str | None, only_print: bool) -> int:
    from runner.cli.install import ClientEntry, check_client, install_entry  # noqa: PLC0415 - only `install` needs it

    check_client(client)
    target = check_targets([file])[0]
    # Nothing is installed that a client could only find broken.
    asyncio.run(explained(_loaded(target, user), [target]))
    entry = ClientEntry.of(target, name=name, user=user)
    print(install_entry(client, entry, only_print=only_print))  # noqa: T201
    return 0


async def _loaded(target: str, user: str | None) -> int:
    """Load a tool file as `serve` would.

    Raises:
        LoadError: It cannot be served.
    """
    from runner.settings.secrets import Secrets  # noqa: PLC0415
    from runner.toolset.toolset import Toolset  # noqa: PLC0415 - only `install` needs it

    with tempfile.TemporaryDirectory() as folder:
        own = {"state_dir": Path(folder, "state"), "store": Path(folder, "store").as_uri()}
        settings = start({"log_level": "error", **own, **({"user": user} if user else {})}, None)
        # It is imported and not called, so no secret is needed.
        async with Toolset.open(settings, [target], secrets=Secrets()):
            return 0
