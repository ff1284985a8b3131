"""A whole web application in this process, and the people who come to it."""

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fastmcp import FastMCP
from starlette.applications import Starlette
from starlette.testclient import TestClient

from runner.files.file_events import tell
from runner.files.my_files import Library, MyFiles, open_library
from runner.http.context import Site
from runner.server.web import build_app
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.store.protocol import Origin, Record
from runner.users.capability_tokens import Tokens
from runner.users.events import Events
from runner.users.identity import auth_provider

NOW = 1_800_000_000.0
ADDRESS = "http://127.0.0.1:8000"
TOKENS = {"ann": "token-of-ann-token-of-ann", "bob": "token-of-bob-token-of-bob"}

T = TypeVar("T")


def run(waiting: Awaitable[T]) -> T:
    async def awaited() -> T:
        return await waiting

    return asyncio.run(awaited())


@dataclass(kw_only=True)
class Served:
    """A server with files.

    Attributes:
        site: What its routes work with.
        web: The application.
        now: The time it is.
    """

    site: Site
    web: Starlette
    now: list[float]

    @classmethod
    def at(cls, folder: Path, *, tokens: bool = True, **more: Any) -> "Served":
        """Make one. With `tokens`, ann and bob have one each; else it serves one user without."""
        (folder / "state").mkdir(parents=True, exist_ok=True)
        if tokens:
            file = folder / "users.json"
            file.write_text(json.dumps({token: user for user, token in TOKENS.items()}))
            file.chmod(0o600)
            more["auth"] = Auth(kind="static", tokens_file=file)
        more.setdefault("store", (folder / "store").as_uri())
        settings = Settings(state_dir=folder / "state", **more)
        events, now = Events(), [NOW]
        library = open_library(settings)
        library = Library(
            store=library.store,
            sessions=library.sessions,
            persist=library.persist,
            changed=lambda change: tell(events, change),
        )
        site = Site(
            settings=settings,
            library=library,
            events=events,
            tokens=Tokens(settings.state_dir / "tokens.json"),
            clock=lambda: now[0],
        )
        mcp: FastMCP[None] = FastMCP("test", auth=auth_provider(settings))
        return cls(site=site, web=build_app(mcp, site), now=now)

    def visitor(self, user: str | None = None, *, session: str | None = None, **headers: str) -> TestClient:
        """Return somebody with the token of a user, or without one, perhaps in a session."""
        token = {"authorization": f"Bearer {TOKENS[user]}"} if user else {}
        named = {"mcp-session-id": session} if session else {}
        return TestClient(self.web, base_url=ADDRESS, headers={**token, **named, **headers})

    def files(self, user: str = "ann", session: str | None = None) -> MyFiles:
        return self.site.library.of(user, session)

    def keep(
        self, content: bytes, name: str, user: str = "ann", session: str | None = None, **more: Any
    ) -> Record:
        return run(self.files(user, session).put(content, name=name, origin=Origin.GENERATED, **more))

    def contents(self, user: str = "ann", session: str | None = None) -> dict[str, bytes]:
        """Return the files of a user, by name."""
        return run(_contents(self.files(user, session)))


async def _contents(files: MyFiles) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    for record in await files.all():
        async with files.open(record) as content:
            contents[record.shown] = b"".join([chunk async for chunk in content])
    return contents
