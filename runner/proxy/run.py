"""`runner proxy`: other MCP servers behind the output guard, over stdio or streamable HTTP."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from fastmcp import FastMCP

from runner.errors import UsageError
from runner.protocol.internals.proxy import mend_messages_over_http
from runner.protocol.result_messages import DownloadUrl
from runner.proxy.confined_command import command_server
from runner.proxy.http_transport import AnswerBound, HttpTransport, most_message_bytes
from runner.proxy.remote import Reach, Server, ServerTransport, StartFailed
from runner.proxy.server import make_proxy
from runner.proxy.targets import Target, expanded
from runner.proxy.upstreams import Upstreams
from runner.server.ahead import transport_of
from runner.server.serve import serve_application, with_code
from runner.settings.execution import ExecutionSettings
from runner.settings.settings import Settings
from runner.system.worker_environment import framework_environment
from runner.users.identity import User, is_loopback

__all__ = ["serve_proxy", "ways_to"]


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
    return command_server(target, settings, contract)


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
