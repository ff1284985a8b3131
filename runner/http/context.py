"""Services of the routes beside MCP: one value, made by `runner serve` and by tests alike."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.contract.own_paths import OwnPaths
from runner.files.my_files import Library
from runner.http.logins import Logins
from runner.observation.observers import Observers
from runner.settings.live import with_live
from runner.settings.settings import Settings
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.tokens_file import token_prints
from sandbox.probe.machine import Tier

__all__ = ["Site"]


async def _none() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One server's files, events and keys.

    Attributes:
        settings: The effective settings.
        library: The files of all users.
        events: What happens, for the users' interfaces.
        tokens: What signs and checks links and cookies.
        clock: Says the present time in seconds since the epoch.
        tier: Isolation tier of what is served; None for the one that the settings and the machine make.
        stopping: Says that no calls are taken any more, as the server is to end; None while they are.
        observers: Who hears of tokens and keys that are refused.
        named_files: The files that are served, or that name the servers.
        faults: Says why what is served cannot take calls now, by part.
        logins: Which browser sessions hold.
        known_tokens: What `runner.users.tokens_file.token_print` says of the tokens that hold; None where
            nobody has a list of them.
        own_paths: What no client is told.
    """

    settings: Settings
    library: Library
    events: Events
    tokens: Tokens
    clock: Callable[[], float] = time.time
    tier: Tier | None = None
    observers: Observers = field(default_factory=Observers)
    named_files: Sequence[Path] = ()
    faults: Callable[[], Awaitable[Mapping[str, str]]] = _none
    stopping: Callable[[], str | None] = lambda: None
    logins: Logins = field(init=False)
    known_tokens: frozenset[str] | None = field(init=False)
    own_paths: OwnPaths = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logins", Logins(self.settings.state_dir))
        object.__setattr__(self, "known_tokens", token_prints(self.settings))
        object.__setattr__(self, "own_paths", OwnPaths.of(self.settings, self.named_files))

    def prepare(self, settings: Settings) -> Callable[[], Sequence[str]]:
        """Return a function that applies changed settings."""

        def take() -> Sequence[str]:
            object.__setattr__(self, "settings", with_live(self.settings, settings))
            # What has changed in settings is said of all of them together.
            return ()

        return take

    def renew_tokens(self, known: frozenset[str] | None) -> None:
        """Take over which tokens hold: a browser session that was begun with another has ended."""
        object.__setattr__(self, "known_tokens", known)
