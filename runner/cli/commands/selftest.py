"""`runner selftest`: escape attempts on this machine, made by `runner.selftest`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from runner.cli.options import AsJson
from runner.cli.start import warn_ignored
from runner.selftest.report import Against, SelftestOptions, selftest_from_shell, settings_to_attack
from runner.settings.isolation import in_force, lacking
from sandbox.errors import IsolationUnavailable
from sandbox.selftest.attempt import AttemptKind
from sandbox.selftest.trial import Mode

__all__ = ["selftest"]


def selftest(
    *,
    as_json: AsJson = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write a JUnit report, too.")
    ] = None,
    kind: Annotated[list[AttemptKind] | None, typer.Option(metavar="KIND", help="Only this kind.")] = None,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="ID", help="Only this attempt.")] = None,
    against: Annotated[
        Against, typer.Option(metavar="sandbox|monkeypatch", help="All layers, or the Python patches alone.")
    ] = "sandbox",
    without_guard: Annotated[
        bool, typer.Option("--without-guard", help="The kernel alone, without the Python patches.")
    ] = False,
    isolation: Annotated[
        str | None, typer.Option("--isolation", help="auto, process, user or namespace.")
    ] = None,
    reuse: Annotated[
        Mode | None,
        typer.Option(metavar="user|call", help="Workers that stay with their user, or not; else both."),
    ] = None,
) -> int:
    """Try to break out; the exit status is 0 only if nothing got out."""
    settings = settings_to_attack(isolation, against=against)
    warn_ignored(settings)
    if missing := lacking(settings):
        raise IsolationUnavailable(missing)
    options = SelftestOptions(
        kinds=tuple(kind or ()),
        only=tuple(only or ()),
        against=against,
        junit=junit,
        reuse=reuse,
        guard=not without_guard,
        as_json=as_json,
        tier=in_force(settings),
        uids=settings.uids,
    )
    return asyncio.run(selftest_from_shell(options))
