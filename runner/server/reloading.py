"""Reload of the configuration by a running server: changes apply from the next call on, where possible.

Everything is read before anything is changed: a fault in a file, a token or a secret is reported, and
nothing changes.

Source: `docs/operating.md`, "Reload the configuration".
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from fastmcp.server.auth import AuthProvider
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

from runner.errors import RunnerError
from runner.http.context import Site
from runner.http.internals.authentication import replace_tokens
from runner.settings.live import changes, with_live
from runner.settings.parts import ServerSettings
from runner.settings.settings import Settings
from runner.system.running_servers import RunningServer
from runner.users.identity import auth_provider
from runner.users.tokens_file import token_prints

__all__ = ["Prepare", "Reloaded", "Reloads", "Take", "prepare_tokens"]

log = logging.getLogger(__name__)

Take = Callable[[], Sequence[str]]
"""Applies what was read, and returns changes other than settings, in sentences."""
Prepare = Callable[[Settings], Take]
"""Reads the files that settings name, in a thread, and returns a function that applies them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """Outcome of a reload.

    Attributes:
        changed: Applied changes, in sentences.
        restart: Changes that need a restart, in sentences.
        error: Why nothing was changed, or None.
    """

    changed: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    error: str | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Reloads:
    """Reloads of the configuration, one for each request.

    Attributes:
        settings: The current settings, as they were read.
        reread: Reads the settings again.
        prepare: Functions that read and apply further changes.
    """

    settings: Settings
    reread: Callable[[], Settings]
    prepare: list[Prepare] = field(default_factory=list)
    requested: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, server: RunningServer) -> None:
        """Reload on each request; never returns."""
        while True:
            await self.requested.wait()
            self.requested.clear()
            try:
                reloaded = await self.reload()
            except Exception as error:
                # The next reload may succeed, and the waiter for this one must get the error.
                log.exception("configuration reload incomplete")
                reloaded = Reloaded(error=f"{type(error).__name__}: {error}; see the log")
            server.reloaded(asdict(reloaded))

    async def reload(self) -> Reloaded:
        """Read everything again, then apply what can be changed."""
        try:
            then, live, takes = await asyncio.to_thread(self._read)
        except RunnerError as error:
            log.warning("configuration reload failed", extra={"problem": str(error)})
            return Reloaded(error=str(error))
        sentences = [sentence for take in takes for sentence in take()]
        changed = (*changes(self.settings, live).values(), *sentences)
        restart = tuple(changes(live, then).values())
        self.settings = live
        log.info("configuration reloaded", extra={"changed": list(changed), "needs_restart": list(restart)})
        print(f"configuration reloaded: {len(changed)} changes", file=sys.stderr, flush=True)  # noqa: T201
        return Reloaded(changed=changed, restart=restart)

    def _read(self) -> tuple[Settings, Settings, list[Take]]:
        then = self.reread()
        live = with_live(self.settings, then)
        return then, live, [prepare(live) for prepare in self.prepare]


def prepare_tokens(auth: AuthProvider | None, site: Site, settings: ServerSettings) -> Take:
    """Read the list of tokens; return a function that applies it: removed tokens are refused at once.

    Args:
        auth: The token verifier.
        site: Services of the routes beside MCP, which have the valid tokens.
        settings: The new settings.

    Raises:
        UsageError: The list cannot be used.
    """
    if not isinstance(auth, StaticTokenVerifier):
        return list
    fresh, known = auth_provider(settings), token_prints(settings)
    if not isinstance(fresh, StaticTokenVerifier):
        return list
    tokens = fresh.tokens

    def take() -> list[str]:
        new, gone = len(tokens.keys() - auth.tokens.keys()), len(auth.tokens.keys() - tokens.keys())
        others = sum(auth.tokens[token] != tokens[token] for token in tokens.keys() & auth.tokens.keys())
        replace_tokens(auth, tokens)
        site.renew_tokens(known)
        return [f"tokens: {new} new, {gone} gone, {others} of another user"] if new or gone or others else []

    return take
