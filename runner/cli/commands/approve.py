"""`runner approve`: list the calls waiting for the operator, approve or refuse one.

Source: `docs/isolation.md`, "Approvals".
"""

import contextlib
import os
from dataclasses import asdict
from typing import Annotated

import typer

from runner.cli.exits import Report
from runner.cli.options import LOGS, AsJson, Config, Flags, takes
from runner.cli.start import load_and_warn
from runner.errors import UsageError
from runner.formats.terminal_text import one_line
from runner.observation.audit_log import AuditLog
from runner.toolset.approvals import ApprovalFiles

__all__ = ["approve"]


@takes(*LOGS)
def approve(
    name: Annotated[str | None, typer.Argument(metavar="[ID]", help="ID of the call, from the list.")] = None,
    *,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse the call instead.")] = False,
    as_json: AsJson = False,
    config: Config = None,
    flags: Flags,
) -> Report:
    """List the calls that wait for an approval, approve or refuse one."""
    if name is None and refuse:
        raise UsageError("--refuse needs the ID of a call; `runner approve` lists them")
    settings = load_and_warn(flags, config, whole=True)
    files = ApprovalFiles(settings.state_dir)
    if name is None:
        found = [
            {**asdict(pending), "state": state, "left_s": round(left_s)}
            for pending, state, left_s in files.listed()
        ]
        return Report({"approvals": found}, _list(found))
    # Opened first: a call is not approved if that cannot be recorded.
    audit = None if settings.audit_dir is None else AuditLog(settings.audit_dir)
    with contextlib.nullcontext() if audit is None else contextlib.closing(audit):
        try:
            pending = files.answer(name, approve=not refuse)
        except OSError as error:
            raise UsageError(
                f"the answer cannot be noted in {settings.state_dir}: {error.strerror}; run it as the "
                "user of the server"
            ) from error
        if pending is None:
            raise UsageError(
                f"no call waits as {name!r} in {settings.state_dir}; it has expired, was used, or "
                "belongs to a server with another state_dir: `runner approve` lists those of this one"
            )
        act = "call refused" if refuse else "call approved"
        if audit is not None:
            facts = {"user": pending.user, "tool": pending.tool, "rule": pending.rule, "key": pending.key}
            audit.add({"kind": "administration", "act": act, "id": pending.id, "uid": os.getuid(), **facts})
    outcome = {"id": pending.id, "outcome": act, "user": pending.user, "tool": pending.tool}
    then = "" if refuse else f"; the identical call of {one_line(pending.user)} passes once"
    text = f"{act}: {one_line(pending.tool)}{then}"
    return Report(outcome, text)


def _list(found: list[dict[str, object]]) -> str:
    """Return the calls for a terminal, without control sequences."""
    lines = []
    for one in found:
        head = "{id}  {state}, {left_s} s left  {user}  {tool}  ({server}; rule approvals.{rule})"
        lines.append(one_line(head.format_map(one)))
        arguments = one["arguments"]
        lines += [f"    {one_line(line)}" for line in (arguments if isinstance(arguments, tuple) else ())]
    if not lines:
        return "no call waits for an approval"
    return "\n".join(
        [*lines, "approve one with `runner approve ID`, refuse it with `runner approve --refuse ID`"]
    )
