"""Collector of files that a call wrote and did not return.

The call that ends last in a home lists all changes there; the other calls leave their changes to it.

Source: requirements S1-24, S1-27; `docs/decisions/0034-collect-generated-files.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from runner.artifacts.accept import Processed
from runner.artifacts.generated import Generated, keep_generated, not_returned
from runner.artifacts.put_while_running import RunningPuts
from runner.contract.normalise import Normalised
from runner.homes.changes import ChangedFile, Changes
from runner.homes.homes import HomeLease
from runner.steps.request import Request, UnreturnedFiles
from runner.toolset.catalog import ToolSpec
from runner.toolset.toolset import Toolset
from runner.users.tool_secrets import CallSecrets
from sandbox.host.lease import Lease

__all__ = ["left_by_others", "left_of"]


def left_of(
    toolset: Toolset,
    request: Request,
    spec: ToolSpec,
    home: HomeLease,
    changes: Changes,
    puts: RunningPuts,
    lease: Lease,
    *,
    is_last: bool,
) -> UnreturnedFiles | None:
    """Return the unreturned files of a home, stored or reported, if calls have changed any.

    Args:
        toolset: The tools.
        request: The call.
        spec: Its tool.
        home: The home, which the tool may write.
        changes: Changes in the home.
        puts: Files that the tool has put into My Files itself.
        lease: The worker.
        is_last: Whether no other call is in flight there; otherwise the files are left to the last one.
    """
    mode = spec.generated or toolset.settings.generated
    secrets = toolset.secrets.of(spec.name, request.user.name)
    found = [] if mode == "ignore" else _nameable(changes.found, secrets)

    def of(normalised: Normalised) -> list[ChangedFile]:
        if not is_last:
            during = [] if mode == "ignore" else _nameable(changes.found_since_begin, secrets)
            changes.leave(not_returned(during, normalised, home, put=puts.inodes))
            return []
        seen = {change.file for change in found}
        others = [each for each in changes.take_left(home.fd) if each.file not in seen]
        return not_returned([*found, *others], normalised, home, put=puts.inodes)

    if not (found or changes.left):
        return None
    rules = _rules(toolset, request, spec, home, lease)
    return UnreturnedFiles(
        of=of, keep=lambda processed, left: keep_generated(processed, left, rules, beyond=changes.beyond)
    )


def _nameable(found: Sequence[ChangedFile], secrets: CallSecrets) -> list[ChangedFile]:
    """Return the files that may be reported: those without a secret in their names."""
    return [change for change in found if secrets.masked_text(change.file) == change.file]


async def left_by_others(
    toolset: Toolset, request: Request, spec: ToolSpec, home: HomeLease, changes: Changes, lease: Lease
) -> Mapping[str, Any] | None:
    """Store the files that other calls have left to a failed call; return their entry in `meta_data`."""
    if not (others := changes.take_left(home.fd)):
        return None
    await lease.at_rest()
    rules = replace(_rules(toolset, request, spec, home, lease), as_seen=True)
    processed = await keep_generated(Processed(value={}), others, rules)
    meta_data: Mapping[str, Any] | None = processed.value.get("meta_data")
    return meta_data


def _rules(toolset: Toolset, request: Request, spec: ToolSpec, home: HomeLease, lease: Lease) -> Generated:
    """Return the treatment of unreturned files, if any call requests one."""
    mode = spec.generated or toolset.settings.generated
    return Generated(
        # A tool whose files are ignored gets here only with files of other tools.
        mode="report" if "report" in (mode, toolset.settings.generated) and mode != "keep" else "keep",
        home=home,
        files=toolset.files(request.user, trace=request.id),
        max_bytes=toolset.settings.max_artifact_bytes,
        why_not="job_goes_on" if lease.worker.goes_on or toolset.has_jobs(home.segment) else None,
        hear=request.steps.generated.append,
        logs=request.steps.logs,
    )
