"""`runner proxy`: other MCP servers behind the output guard, over stdio or streamable HTTP."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import urlsplit

from fastmcp import FastMCP

from runner.errors import UsageError
from runner.protocol.internals.proxy import mend_messages_over_http
from runner.protocol.result_messages import DownloadUrl
from runner.proxy.confined_command import (
    ConfinedTransport,
    check_command,
    hint_for,
    lent_to,
    named_files,
    tier_of,
)
from runner.proxy.fetched_packages import fetches
from runner.proxy.hints import UnlentPaths
from runner.proxy.http_transport import AnswerBound, HttpTransport, most_message_bytes
from runner.proxy.remote import ServerTransport, StartFailed
from runner.proxy.server import make_proxy
from runner.proxy.stderr import log_budget
from runner.proxy.targets import Target, expanded
from runner.proxy.upstream import Reach, Server
from runner.proxy.upstreams import Upstreams
from runner.server.ahead import transport_of
from runner.server.serve import serve_application, with_code
from runner.settings.execution import ExecutionSettings
from runner.settings.live import with_live
from runner.settings.settings import Settings
from runner.system.worker_environment import framework_environment
from runner.users.identity import User, is_loopback

__all__ = ["serve_proxy", "ways_to"]

_FETCHING_S = 180.0


def ways_to(settings: Settings, targets: Sequence[Target]) -> list[Server]:
    """Return each server; one of several that cannot be started counts as unreachable.

    Raises:
        UsageError: Each server is a command that cannot be run, or names a variable in vain.
    """
    made: list[Server] = []
    problems: list[str] = []
    for target in targets:
        try:
            made.append(_way(settings, target))
        except UsageError as error:
            problem = str(error)
            problems.append(problem)

            def nowhere(*_args: object, problem: str = problem) -> ServerTransport:
                raise StartFailed(problem)

            made.append(Server(name=target.name, transport=nowhere, is_near=True, contract="guard"))
    if len(problems) == len(targets):
        raise UsageError("; ".join(problems))
    return made


def _way(settings: Settings, target: Target) -> Server:
    if target.source is not None:
        seen = framework_environment(os.environ, ())
        allowed = {*settings.rights().variables, *seen}
        target = expanded(target, {**os.environ, **seen}, allowed=allowed)
    contract = target.contract or settings.contract
    if target.url:
        mend_messages_over_http()
        bound = AnswerBound(server=target.name, most_bytes=most_message_bytes(settings))

        def connect(_user: User, now: ExecutionSettings, _reach: Reach | None) -> ServerTransport:
            now_bound = replace(bound, most_bytes=most_message_bytes(now))
            return HttpTransport(target.url, target.headers, now_bound)

        is_near = is_loopback(urlsplit(target.url).hostname or "")
        return Server(
            name=target.name, transport=connect, contract=contract, is_near=is_near, place=target.url
        )
    program = check_command(target, settings)
    lent = lent_to(target, program, settings)
    tier = tier_of(target, program, lent)
    # Each client has a process of its own, and all of them write to one log.
    unlent = UnlentPaths(target.name, lent.rights(), homes=lent.homes, never=lent.private_paths)
    make = partial(ConfinedTransport, target, program, log_budget=log_budget(), unlent=unlent)
    allowing = hint_for(lent, tier)

    def hint(failure: str) -> str | None:
        found = allowing(failure)
        if found is None:
            # An option that only may have helped is for the operator's log.
            unlent.note(failure)
        return found

    def start(user: User, now: ExecutionSettings, reach: Reach | None) -> ServerTransport:
        return make(with_live(lent, now), user, tier, reach=reach)

    return Server(
        name=target.name,
        transport=start,
        is_command=True,
        contract=contract,
        is_near=True,
        tier=tier,
        files=named_files(target),
        hint=hint,
        # The first start depends on the speed of the package registry.
        least_connect_s=_FETCHING_S if fetches(target, settings) else 0.0,
        place="\n".join((str(target.folder), *target.command)),
    )


async def serve_proxy(settings: Settings, targets: Sequence[Target], reread: Callable[[], Settings]) -> int:
    """Serve the proxy until the client leaves or a signal comes; return the exit status.

    Args:
        settings: The effective settings.
        targets: The servers.
        reread: Reloads the settings.

    Raises:
        UsageError: A command cannot be run, or the address cannot be listened on.
    """
    transport = transport_of(settings)
    opened = with_code(settings, Upstreams.open(settings, ways_to(settings, targets)))

    def make(upstreams: Upstreams, download_url: DownloadUrl | None) -> FastMCP:
        return make_proxy(upstreams, transport=transport, download_url=download_url)

    return await serve_application(settings, transport, opened, make, reread)
