"""`Runner`: tool files embedded in another program, called from it or served by its web server.

`runner call` and `runner serve --transport http` share its code, so every call is confined as theirs are. The
program's own artifact store may replace the one in the settings.

Source: `docs/serving.md`; requirements S4-64, S4-68 and S4-69.
"""

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from starlette.applications import Starlette

from runner.artifacts.accept import ArtifactFile
from runner.call import execute, own_request
from runner.errors import UsageError
from runner.files.my_files import MyFiles, store_rules
from runner.server.host import make_host
from runner.server.serve import KEY_S, site_of, with_code
from runner.server.web import build_app
from runner.settings.isolation import lacking
from runner.settings.settings import Settings
from runner.settings.sources import load
from runner.store.discovery import discover
from runner.store.protocol import ArtifactStore
from runner.toolset.toolset import Toolset
from runner.users.identity import User, resolve
from runner.worker.targets import check_targets
from runner.worker.wire import WireError
from sandbox.errors import IsolationUnavailable

__all__ = ["Runner"]


class Runner:
    """Tool files that are ready to be called as long as the block lasts.

    Args:
        files: Tool files, each optionally with `:NAME` of the object in it.
        store: Store of My Files: a value of the setting `store`, or an object that is or has a store, see
            `runner.store.discovery`. By default the store of the settings.
        identity: The one user of all calls. By default the setting `user`; without that, for `call`, the
            user of the operating system.
        settings: Settings by name, which override the environment and `runner.toml`.

    Raises:
        UsageError: A setting is wrong, a file does not exist, or the object has no store.
        IsolationUnavailable: The requested isolation is not available.
    """

    def __init__(
        self,
        *files: str | Path,
        store: object = None,
        identity: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        named = store if isinstance(store, str) else None
        # With the program's own store, none of ours is opened, and records of files stay in its process.
        brought = None if store is None or named is not None else "memory:"
        options = {"user": identity, "store": named if brought is None else brought}
        arguments = {name: value for name, value in options.items() if value is not None}
        self.settings: Settings = load({**(settings or {}), **arguments}, label=partial(_place, arguments))
        if self.settings.ignored:
            raise UsageError("\n".join(self.settings.ignored))
        missing = lacking(self.settings)
        if missing:
            raise IsolationUnavailable(missing)
        self._store = None if brought is None else _store_of(store, self.settings)
        self._targets = check_targets([str(file) for file in files])
        self._stack = AsyncExitStack()
        self._toolset: Toolset | None = None

    async def __aenter__(self) -> Self:
        """Load the files.

        Raises:
            LoadError: A file is faulty.
            ConfinementError: A layer could not be put in place.
            CallError: Homes or the store cannot be used.
            UsageError: They are loaded already: one block at a time.
        """
        if self._toolset is not None:
            raise UsageError("this Runner is in use; make another for another `async with`")
        toolset = Toolset.open(self.settings, self._targets, user=self._user(), store=self._store)
        opening = with_code(self.settings, toolset)
        self._toolset = await self._stack.enter_async_context(opening)
        self._stack.callback(self._toolset.events.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all workers, and empty the homes of their users."""
        self._toolset = None
        await self._stack.aclose()

    async def call(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, session: str = "api"
    ) -> dict[str, Any]:
        """Call a tool and return the contract value, as `runner call --json` prints it.

        Faults of a tool or its arguments are not exceptions: `meta_data.is_error` is true then.

        Args:
            tool: Its name.
            arguments: Its arguments.
            session: Name of the session that the call belongs to.

        Raises:
            UsageError: The tool asks for input while it runs, or its server refused the call.
        """
        toolset = self._open()
        user, params = (
            replace(self._user(), session=session),
            {"name": tool, "arguments": dict(arguments or {})},
        )
        try:
            request = own_request(toolset, user, "tools/call", params, client="runner.api")
            completed = await execute(toolset, request)
        except WireError as error:
            raise UsageError(f"the tool's server refused the call: {error}") from error
        if completed.interim is not None:
            raise UsageError(f"the tool {tool} asks for input while it runs; call it from an MCP client")
        return completed.processed.value

    def files(self, *, session: str = "api") -> MyFiles:
        """Return My Files of the user for the calls of a session."""
        return self._open().files(replace(self._user(), session=session))

    @property
    def app(self) -> Starlette:
        """Return the ASGI application of `runner serve`: MCP is at `/mcp`.

        Raises:
            UsageError: Callers cannot be identified. The listening address of the program is unknown here, so
                neither the user of the operating system nor a client certificate is accepted.
        """
        toolset, settings = self._open(), self.settings
        if settings.user is None and settings.auth.kind == "none":
            raise UsageError(
                "nothing says who may call; give `identity`, or set auth.kind (docs/settings.md)"
            )
        if settings.auth.gateway_tls is not None:
            raise UsageError(
                "auth.gateway_tls is for a server of `runner serve`: here the program listens, and "
                "what a client's certificate says is not known; use auth.gateway_addresses alone"
            )

        def download_url(user: User, file: ArtifactFile) -> str:
            return toolset.links.to(toolset.files(user).holder, file.id)

        toolset.links = replace(
            toolset.links, base=settings.public_url or f"http://{settings.host}:{settings.port}"
        )
        host = make_host(toolset, transport="http", download_url=download_url)
        site = site_of(toolset, settings)
        site.tokens.rotate_after(KEY_S, now=time.time())
        return build_app(host, site, session_ended=toolset.end_session)

    def _user(self) -> User:
        return resolve(self.settings, transport="stdio", claims=None, host=self.settings.host)

    def _open(self) -> Toolset:
        if self._toolset is None:
            raise UsageError("the tool files are not loaded; use `async with Runner(...) as runner:`")
        return self._toolset


def _place(arguments: Mapping[str, object], name: str) -> str:
    """Return the source of a setting in the program: an argument of `Runner`, or a key of `settings`."""
    argument = {"user": "identity"}.get(name, name)
    return f"argument {argument} of Runner" if name in arguments else f"settings[{name!r}] of Runner"


def _store_of(bringing: object, settings: Settings) -> ArtifactStore:
    store = discover(bringing, rules=store_rules(settings))
    if store is None and isinstance(bringing, type):
        raise UsageError(f"{bringing.__name__} is a class; give an instance of it as `store`")
    if store is None:
        raise UsageError(
            f"{type(bringing).__name__} has no store: neither an attribute `artifact_store` that is one, "
            "nor the coroutine methods put_artifact, get_artifact and delete_artifact"
        )
    return store
