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
        events: Events of calls and files, for the users' interfaces.
        tokens: Signer and verifier of links and cookies.
        clock: Returns the time in seconds since the epoch.
        tier: Isolation tier of the served tools; None: derived from the settings and the machine.
        stopping: Returns why no more calls are accepted, once the server is stopping; None before.
        observers: Observers of refused tokens and keys.
        named_files: The served tool files, or the files that name the servers.
        faults: Returns the faults that keep the served tools from taking calls now, by part.
        logins: The valid browser sessions.
        known_tokens: `runner.users.tokens_file.token_print` of all valid tokens; None where there is no
            list of them.
        own_paths: Paths of the server, redacted from answers.
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
            # The reload lists the changes of all settings together.
            return ()

        return take

    def renew_tokens(self, known: frozenset[str] | None) -> None:
        """Replace the set of valid tokens; browser sessions begun with any other token have ended."""
        object.__setattr__(self, "known_tokens", known)
