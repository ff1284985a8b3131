"""The commands that say how things are: `doctor`, `config`, `check`, `selftest` and `schema`."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.exits import end_with
from runner.cli.options import (
    AsJson,
    Config,
    ConfinementOptions,
    File,
    Isolation,
    LogOptions,
    UserOptions,
    WorkerOptions,
    given,
)
from runner.cli.start import explained, load_checked, load_told, start, tell_ignored
from runner.formats.terminal_text import json_text
from runner.settings.sources import config_report, config_text
from runner.settings.targets import check_targets
from sandbox.errors import IsolationUnavailable

__all__ = ["check", "doctor", "schema", "selftest", "show_config"]


def doctor(
    *,
    as_json: AsJson = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend the local store, and say what it was.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every stored file, and name those that are damaged.")
    ] = False,
    whole_bucket: Annotated[
        bool, typer.Option("--whole-bucket", help="List a store in S3 to its end, however long that takes.")
    ] = False,
    isolation: Isolation = None,
    config: Config = None,
    whose: UserOptions,
) -> None:
    """Say what this machine and configuration can enforce, and what not, with the cure."""
    flags = given(whose, isolation=isolation)
    told = {"repair": repair, "verify": verify, "whole_bucket": whole_bucket}
    end_with(lambda: _doctor(flags, config, as_json=as_json, **told))


def show_config(
    *,
    as_json: AsJson = False,
    whose: UserOptions,
    config: Config = None,
    bounds: ConfinementOptions,
    workers: WorkerOptions,
    logs: LogOptions,
    tool: Annotated[
        str | None, typer.Option("--tool", metavar="NAME", help="Say which output rules apply to it.")
    ] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="NAME", help="The tool's server.")] = None,
) -> None:
    """Print the effective settings and where each one came from."""
    flags = given(whose, bounds, workers, logs)
    end_with(lambda: _config(flags, config, as_json=as_json, tool=tool, server=server))


def check(
    file: File,
    *,
    as_json: AsJson = False,
    config: Config = None,
    bounds: ConfinementOptions,
    logs: LogOptions,
) -> None:
    """Say what in a tool file would surprise its author, each finding with its line and its cure."""
    # A dry run reports what was denied; the log would report it again.
    flags = {"log_level": "error", **given(bounds, logs)}
    end_with(lambda: _check(file, flags, config, as_json=as_json))


def selftest(
    *,
    as_json: AsJson = False,
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
    reuse: Annotated[
        str, typer.Option(metavar="user|call", help="Workers that stay with their user, or not; else both.")
    ] = "",
) -> None:
    """Try to break out, here and now; the exit status is 0 only if nothing got out."""
    told = {
        "kinds": tuple(kind or ()),
        "only": tuple(only or ()),
        "against": against,
        "junit": junit,
        "reuse": reuse,
    }
    end_with(lambda: _selftest({**told, "guard": not without_guard, "as_json": as_json}, isolation))


def schema() -> None:
    """Print the result contract, what a tool returns and a caller gets, as JSON Schema."""
    end_with(_schema)


def _doctor(
    flags: Mapping[str, Any],
    config: Path | None,
    *,
    as_json: bool,
    repair: bool,
    verify: bool,
    whole_bucket: bool = False,
) -> int:
    from runner.doctor import repair as store  # noqa: PLC0415 - only `doctor` needs it
    from runner.doctor.report import report  # noqa: PLC0415 - tries every layer, which only `doctor` needs
    from runner.system.state_access import denied_in  # noqa: PLC0415

    settings = load_told(flags, config)
    # What may not be read is not taken for lost: the report names it, and nothing is mended before.
    usable = not any(denied_in(settings.state_dir, settings.local_store))
    mended = asyncio.run(store.repair(settings)) if repair and usable else ()
    read = asyncio.run(store.verify(settings)) if verify and usable else ()
    # After the repair, so that it says what is left.
    found = report(settings, *mended, *read, whole_bucket=whole_bucket)
    print(json_text(found.to_json(), indent=2) if as_json else found.text())  # noqa: T201
    return found.exit_status


def _config(
    flags: Mapping[str, Any], config: Path | None, *, as_json: bool, tool: str | None, server: str | None
) -> int:
    settings = load_checked(flags, config)
    if tool is not None:
        from runner.cli.run_config import explanation, explanation_text  # noqa: PLC0415 - only for a tool

        rules = json_text(explanation(settings, tool, server), indent=2) if as_json else None
        print(rules or explanation_text(settings, tool, server))  # noqa: T201
        return 0
    print(json_text(config_report(settings), indent=2) if as_json else config_text(settings))  # noqa: T201
    return 0


def _check(file: str, flags: Mapping[str, Any], config: Path | None, *, as_json: bool) -> int:
    target = check_targets([file])[0]
    settings = start(flags, config)
    from runner.check.report import check_from_shell  # noqa: PLC0415 - after the cheap checks

    return asyncio.run(explained(check_from_shell(settings, target, as_json=as_json), [target]))


def _selftest(told: Mapping[str, Any], isolation: str | None) -> int:
    from runner.selftest.report import (  # noqa: PLC0415 - only `selftest`
        SelftestOptions,
        selftest_from_shell,
        settings_to_attack,
    )
    from runner.settings.isolation import in_force, lacking  # noqa: PLC0415 - asks the kernel

    settings = settings_to_attack(isolation, against=told["against"])
    tell_ignored(settings)
    missing = lacking(settings)
    if missing:
        raise IsolationUnavailable(missing)
    options = SelftestOptions(**told, tier=in_force(settings), uids=settings.uids)
    return asyncio.run(selftest_from_shell(options))


def _schema() -> int:
    from runner.contract.models import contract_schema  # noqa: PLC0415 - only `schema` needs it

    print(json_text(contract_schema(), indent=2))  # noqa: T201
    return 0
