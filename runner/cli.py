"""The command line, from `runner serve` to `runner schema`. Its names and exit codes are a contract.

Source: `docs/cli.md`.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.errors import RunnerError, StartError, UsageError
from runner.rights import spell_out
from runner.settings import Settings
from runner.settings_sources import config_report, config_text, load
from runner.targets import check_targets
from runner.telemetry import set_up
from sandbox.errors import ConfinementError, IsolationUnavailable, LoadError, SandboxError, ZygoteDied
from sandbox.launch import Launched

__all__ = ["app", "main"]

log = logging.getLogger(__name__)

EXIT_FAULT = 1
EXIT_USAGE = 2
EXIT_ISOLATION = 5

app = typer.Typer(
    name="runner",
    help="Serve a FastMCP file so that every call runs in its own confined, killable process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

_File = Annotated[
    str, typer.Argument(metavar="FILE", help="A FastMCP file; FILE:NAME picks one object in it.")
]
_User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Serve or act as this user.")]
_Isolation = Annotated[
    str | None, typer.Option("--isolation", help="auto, process, user, namespace or guard.")
]
_Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Instead of ./runner.toml.")]
_Store = Annotated[str | None, typer.Option("--store", metavar="URL", help="Where My Files are kept.")]
_AllowNet = Annotated[
    str | None,
    typer.Option(
        "--allow-net",
        metavar="=HOST[:PORT],…",
        help="What tools may reach; without a value, every public address.",
    ),
]
_AllowEnv = Annotated[
    str | None, typer.Option("--allow-env", metavar="NAME,…", help="Variables that tools may see.")
]
_AllowRun = Annotated[
    str | None, typer.Option("--allow-run", metavar="PROGRAM,…", help="The only programs that tools may run.")
]
_DenyRun = Annotated[bool | None, typer.Option("--deny-run", help="Tools may run no other program.")]
_LogLevel = Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")]
_LogFormat = Annotated[str | None, typer.Option("--log-format", help="text or json.")]
_Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON document.")]


@app.command()
def serve(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="FastMCP files.")],
    *,
    transport: Annotated[str | None, typer.Option(help="auto, stdio or http.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    user: _User = None,
    isolation: _Isolation = None,
    config: _Config = None,
    store: _Store = None,
    allow_net: _AllowNet = None,
    allow_env: _AllowEnv = None,
    allow_run: _AllowRun = None,
    deny_run: _DenyRun = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Serve tool files over MCP: stdio when standard input is a pipe, HTTP when it is a terminal."""
    flags = _flags(
        locals(), "transport", "host", "port", "user", "isolation", "store", "allow_net", "allow_env",
        "allow_run", "deny_run", "log_level", "log_format",
    )  # fmt: skip
    _exit(lambda: _serve(files, flags, config, context.obj))


@app.command()
def dev(
    context: typer.Context,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="FastMCP files.")],
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    user: _User = None,
    isolation: _Isolation = None,
    config: _Config = None,
    store: _Store = None,
    allow_net: _AllowNet = None,
    allow_env: _AllowEnv = None,
    allow_run: _AllowRun = None,
    deny_run: _DenyRun = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Serve tool files with the Playground, and load them anew when they change."""
    flags = _flags(
        locals(), "host", "port", "user", "isolation", "store", "allow_net", "allow_env",
        "allow_run", "deny_run", "log_level", "log_format",
    )  # fmt: skip
    _exit(lambda: _dev(files, {**flags, "transport": "http"}, config, context.obj))


@app.command()
def proxy(
    target: Annotated[
        list[str], typer.Argument(metavar="URL | mcp.json | -- COMMAND...", help="Servers to stand before.")
    ],
    *,
    transport: Annotated[str | None, typer.Option(help="auto, stdio or http.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    user: _User = None,
    isolation: _Isolation = None,
    config: _Config = None,
    store: _Store = None,
    allow_net: _AllowNet = None,
    allow_env: _AllowEnv = None,
    allow_run: _AllowRun = None,
    deny_run: _DenyRun = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Stand in front of other MCP servers: their results pass the output guard."""
    flags = _flags(
        locals(), "transport", "host", "port", "user", "isolation", "store", "allow_net", "allow_env",
        "allow_run", "deny_run", "log_level", "log_format",
    )  # fmt: skip
    _exit(lambda: _proxy(target, flags, config))


@app.command()
def call(
    context: typer.Context,
    file: _File,
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Name of the tool.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[name=value | name:=json | name=@path]...")
    ] = None,
    *,
    args: Annotated[str | None, typer.Option(metavar="JSON", help="All arguments as one object.")] = None,
    put: Annotated[
        list[Path] | None, typer.Option("--file", metavar="PATH", help="Put a file into My Files first.")
    ] = None,
    user: _User = None,
    as_json: _Json = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write artifacts to this folder.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest silence.")] = None,
    total_timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Longest call.")] = None,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session the call belongs to.")] = "cli",
    isolation: _Isolation = None,
    config: _Config = None,
    store: _Store = None,
    allow_net: _AllowNet = None,
    allow_env: _AllowEnv = None,
    allow_run: _AllowRun = None,
    deny_run: _DenyRun = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Call one tool and print its result; progress and notices go to standard error."""
    flags = _flags(
        locals(), "user", "isolation", "store", "allow_net", "allow_env", "allow_run", "deny_run",
        "log_format",
    )  # fmt: skip
    flags |= {"idle_timeout_s": timeout, "total_timeout_s": total_timeout}
    flags["log_level"] = log_level or "warning"
    given = {"tool": tool, "words": arguments or [], "args": args, "put": put or [], "as_json": as_json}
    _exit(lambda: _call(file, flags, config, {**given, "out": out, "session": session}, context.obj))


@app.command()
def doctor(
    *,
    as_json: _Json = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend the local store, and say what it was.")
    ] = False,
    isolation: _Isolation = None,
    config: _Config = None,
    store: _Store = None,
    user: _User = None,
) -> None:
    """Say what this machine and configuration can enforce, and what not, with the cure."""
    flags = _flags(locals(), "isolation", "store", "user")
    _exit(lambda: _doctor(flags, config, as_json=as_json, repair=repair))


@app.command("config")
def show_config(
    *,
    as_json: _Json = False,
    user: _User = None,
    isolation: _Isolation = None,
    config: _Config = None,
    store: _Store = None,
    allow_net: _AllowNet = None,
    allow_env: _AllowEnv = None,
    allow_run: _AllowRun = None,
    deny_run: _DenyRun = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="Say which output rules apply to it.")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", help="The tool's server.")] = None,
) -> None:
    """Print the effective settings and where each one came from."""
    flags = _flags(
        locals(), "user", "isolation", "store", "allow_net", "allow_env", "allow_run", "deny_run",
        "log_level", "log_format",
    )  # fmt: skip
    _exit(lambda: _config(flags, config, as_json=as_json, tool=tool, server=server))


@app.command()
def check(
    file: _File,
    *,
    as_json: _Json = False,
    isolation: _Isolation = None,
    config: _Config = None,
    allow_net: _AllowNet = None,
    allow_env: _AllowEnv = None,
    allow_run: _AllowRun = None,
    deny_run: _DenyRun = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """Say what in a tool file would surprise its author, each finding with its line and its cure."""
    flags = _flags(locals(), "isolation", "allow_net", "allow_env", "allow_run", "deny_run", "log_format") | {
        "log_level": log_level or "warning"
    }
    _exit(lambda: _check(file, flags, config, as_json=as_json))


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Folder to write to.")] = Path(),
) -> None:
    """Write a working tool file, its test and a runner.toml; what exists is never overwritten."""
    _exit(lambda: _init(folder))


@app.command()
def install(
    client: Annotated[str, typer.Argument(help="claude-desktop, cursor, vscode or mcp-json.")],
    file: _File,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Of the entry; else of the file.")] = None,
    user: _User = None,
    only_print: Annotated[bool, typer.Option("--print", help="Show the result and write nothing.")] = False,
) -> None:
    """Write the entry that an MCP client needs to serve a tool file; its other entries stay."""
    _exit(lambda: _install(client, file, name=name, user=user, only_print=only_print))


@app.command()
def files(
    action: Annotated[str, typer.Argument(metavar="ls|put|get|rm|context|end-session")],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH... | NAME...]", help="Paths to put; else names.")
    ] = None,
    *,
    user: _User = None,
    session: Annotated[str, typer.Option(metavar="NAME", help="Session the files are used in.")] = "cli",
    as_json: _Json = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="put: keep the file by this name.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="PATH", help="get: file or folder to write.")] = None,
    force: Annotated[bool, typer.Option("--force", help="get: overwrite.")] = False,
    config: _Config = None,
    store: _Store = None,
    log_level: _LogLevel = None,
    log_format: _LogFormat = None,
) -> None:
    """List, put, get and remove a user's files, tell a model of them, or end their session."""
    flags = _flags(locals(), "user", "store", "log_format") | {"log_level": log_level or "warning"}
    given = {"action": action, "words": tuple(words or ()), "as_json": as_json, "name": name}
    _exit(lambda: _files(flags, config, session, {**given, "out": out, "force": force}))


@app.command()
def selftest(
    *,
    as_json: _Json = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit report, too.")
    ] = None,
    kind: Annotated[list[str] | None, typer.Option("--kind", metavar="KIND", help="Only this kind.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="Only this attempt.")] = None,
    against: Annotated[
        str, typer.Option(metavar="sandbox|monkeypatch", help="All layers, or the Python patches alone.")
    ] = "sandbox",
    without_guard: Annotated[
        bool, typer.Option("--without-guard", help="The kernel alone, without the Python patches.")
    ] = False,
    isolation: Annotated[
        str | None, typer.Option("--isolation", help="auto, process, user or namespace.")
    ] = None,
) -> None:
    """Try to break out, here and now; the exit status is 0 only if nothing got out."""
    given = {"kinds": tuple(kind or ()), "only": tuple(only or ()), "against": against, "junit": junit}
    _exit(lambda: _selftest({**given, "guard": not without_guard, "as_json": as_json}, isolation))


@app.command()
def schema() -> None:
    """Print the result contract, what a tool returns and a caller gets, as JSON Schema."""
    _exit(_schema)


def main(launched: Launched | None = None) -> None:
    """Run the command line.

    Args:
        launched: A forkserver's process for `serve` and `call`, which stays the caller's to discard.
    """
    try:
        arguments = spell_out(sys.argv[1:])
    except UsageError as error:
        sys.exit(_say(error, EXIT_USAGE))
    app(arguments, obj=launched)


def _flags(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if values[name] is not None}


def _exit(command: Callable[[], int]) -> None:
    """Run a command and end with its status; our own errors end as one sentence, never a traceback."""
    try:
        status = command()
    except UsageError as error:
        status = _say(error, EXIT_USAGE)
    except LoadError as error:
        status = _say(error, EXIT_USAGE)
    except (StartError, ConfinementError, IsolationUnavailable) as error:
        status = _say(error, EXIT_ISOLATION)
    except (RunnerError, SandboxError) as error:
        status = _say(error, EXIT_USAGE)
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # Whoever read our output has enough; there is nobody left to tell.
        status = 1
    except Exception as error:
        log.debug("fault of ours", exc_info=True)
        status = _say(_ours(error), EXIT_FAULT)
    raise typer.Exit(status)


def _ours(error: Exception) -> Exception:
    return RunnerError(
        f"this is a fault of the runner itself, not of your file: {type(error).__name__}: {error}; "
        "run it again with --log-level debug and report what it prints"
    )


def _say(error: Exception, status: int) -> int:
    print(f"runner: {error}", file=sys.stderr)  # noqa: T201
    return status


def _settings(flags: dict[str, Any], config: Path | None) -> Settings:
    settings = _loaded(flags, config)
    set_up(settings.log_level, settings.log_format)
    if os.path.expanduser("~") == "~":
        # FastMCP wants to know a home when it is imported; this user has none, as usual in a container.
        os.environ["HOME"] = str(settings.state_dir)
    _check_isolation(settings)
    return settings


def _loaded(flags: dict[str, Any], config: Path | None) -> Settings:
    settings = load(flags, config=config)
    if settings.output_guard:
        # What is wrong with the section is said now, and not by the first call.
        from runner.guarding import config_of  # noqa: PLC0415 - only where the section is given

        config_of(settings)
    return settings


def _check_isolation(settings: Settings) -> None:
    """Refuse an isolation that was asked for by name and that this machine or version cannot give."""
    # The probe asks the kernel; `config` does without.
    from runner.isolation import has_ids, in_force, lacking  # noqa: PLC0415

    missing = lacking(settings)
    if missing:
        raise IsolationUnavailable(missing)
    if any(settings.rights(tool).network for tool in (None, *settings.tools)):
        from sandbox.gate_probe import try_gate  # noqa: PLC0415 - only where tools have a network

        gate = try_gate(settings.uids.start if has_ids(in_force(settings)) else None)
        if not gate.enforced and settings.isolation != "guard":
            raise IsolationUnavailable((f"allow_net cannot be given here: {gate.detail}",))
    if settings.isolation == "guard":
        log.warning(
            "ISOLATION IS OFF: --isolation guard explains mistakes and stops no attack; "
            "never let others call this server"
        )


def _serve(files: list[str], flags: dict[str, Any], config: Path | None, launched: Launched | None) -> int:
    targets = check_targets(files)
    settings = _settings(flags, config)
    # FastMCP takes 0.7 s to import; a wrong file name or setting is answered before that.
    from runner.serve import serve as run  # noqa: PLC0415

    return asyncio.run(_explained(run(settings, targets, launched=launched), targets))


def _dev(files: list[str], flags: dict[str, Any], config: Path | None, launched: Launched | None) -> int:
    targets = check_targets(files)
    settings = _settings(flags, config)
    from runner.develop import develop as run  # noqa: PLC0415 - after the cheap checks, as above

    return asyncio.run(_explained(run(settings, targets, launched=launched), targets))


def _proxy(words: list[str], flags: dict[str, Any], config: Path | None) -> int:
    from runner.proxy.targets import read_targets  # noqa: PLC0415 - only `proxy` needs these

    targets = read_targets(words)
    settings = _settings(flags, config)
    from runner.proxy.shell import serve_proxy  # noqa: PLC0415 - after the cheap checks, as above

    return asyncio.run(serve_proxy(settings, targets))


def _call(
    file: str, flags: dict[str, Any], config: Path | None, given: dict[str, Any], launched: Launched | None
) -> int:
    target = check_targets([file])[0]
    settings = _settings(flags, config)
    from runner.arguments import parse_arguments  # noqa: PLC0415 - after the cheap checks, as above
    from runner.identity import resolve  # noqa: PLC0415
    from runner.shell_call import CallOptions, call_from_shell  # noqa: PLC0415

    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    options = CallOptions(
        target=target,
        tool=given["tool"],
        arguments=parse_arguments(given["words"], given["args"]),
        files=tuple(given["put"]),
        as_json=given["as_json"],
        out=given["out"],
        session=given["session"],
    )
    called = call_from_shell(settings, user, options, launched=launched)
    return asyncio.run(_explained(called, [target]))


async def _explained(command: Any, targets: list[str]) -> int:
    """Name the tool file in front of what is wrong with it."""
    try:
        status: int = await command
    except (LoadError, ZygoteDied) as error:
        names = ", ".join(Path(target).name for target in targets)
        line = error.line if isinstance(error, LoadError) else None
        raise LoadError(f"{names} cannot be served: {error}", line) from error
    return status


def _doctor(flags: dict[str, Any], config: Path | None, *, as_json: bool, repair: bool) -> int:
    from runner.doctor import report  # noqa: PLC0415 - tries every layer, which only `doctor` needs
    from runner.repair import repair as mend  # noqa: PLC0415 - as above

    settings = load(flags, config=config)
    found = report(settings, *(asyncio.run(mend(settings)) if repair else ()))
    print(json.dumps(found.to_json(), indent=2) if as_json else found.text())  # noqa: T201
    return found.exit_status


def _config(
    flags: dict[str, Any], config: Path | None, *, as_json: bool, tool: str | None, server: str | None
) -> int:
    settings = _loaded(flags, config)
    if tool is not None:
        from runner.shell_config import explanation, explanation_text  # noqa: PLC0415 - only for a tool

        rules = json.dumps(explanation(settings, tool, server), indent=2) if as_json else None
        print(rules or explanation_text(settings, tool, server))  # noqa: T201
        return 0
    print(json.dumps(config_report(settings), indent=2) if as_json else config_text(settings))  # noqa: T201
    return 0


def _check(file: str, flags: dict[str, Any], config: Path | None, *, as_json: bool) -> int:
    target = check_targets([file])[0]
    settings = _settings(flags, config)
    from runner.shell_check import check_from_shell  # noqa: PLC0415 - after the cheap checks, as above

    return asyncio.run(_explained(check_from_shell(settings, target, as_json=as_json), [target]))


def _init(folder: Path) -> int:
    from runner.scaffold import next_steps, write_project  # noqa: PLC0415 - only `init` needs it

    print(next_steps(write_project(folder)))  # noqa: T201
    return 0


def _install(client: str, file: str, *, name: str | None, user: str | None, only_print: bool) -> int:
    from runner.clients import Entry, install_entry  # noqa: PLC0415 - only `install` needs it

    entry = Entry.of(check_targets([file])[0], name=name, user=user)
    print(install_entry(client, entry, only_print=only_print))  # noqa: T201
    return 0


def _files(flags: dict[str, Any], config: Path | None, session: str, given: dict[str, Any]) -> int:
    from runner.identity import resolve  # noqa: PLC0415 - only what works with files needs these
    from runner.shell_files import FilesOptions, files_from_shell  # noqa: PLC0415
    from runner.user_files import UserFiles  # noqa: PLC0415

    options = FilesOptions(**given)
    settings = load(flags, config=config)
    set_up(settings.log_level, settings.log_format)
    user = resolve(settings, transport="stdio", claims=None, host=settings.host)
    return asyncio.run(files_from_shell(UserFiles.of(settings, user, session=session), options))


def _selftest(given: dict[str, Any], isolation: str | None) -> int:
    from runner.isolation import in_force, lacking  # noqa: PLC0415 - asks the kernel
    from runner.shell_selftest import (  # noqa: PLC0415 - only `selftest`
        SelftestOptions,
        selftest_from_shell,
        settings_to_attack,
    )

    settings = settings_to_attack(isolation, against=given["against"])
    missing = lacking(settings)
    if missing:
        raise IsolationUnavailable(missing)
    options = SelftestOptions(**given, tier=in_force(settings), uids=settings.uids)
    return asyncio.run(selftest_from_shell(options))


def _schema() -> int:
    from runner.contract.models import contract_schema  # noqa: PLC0415 - only `schema` needs it

    print(json.dumps(contract_schema(), indent=2))  # noqa: T201
    return 0


@app.callback(invoke_without_command=True)
def _version(
    *, show: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False
) -> None:
    """Serve a FastMCP file so that every call runs in its own confined, killable process."""
    if show:
        print(version("toolcell"))  # noqa: T201
        raise typer.Exit


if __name__ == "__main__":
    main()
