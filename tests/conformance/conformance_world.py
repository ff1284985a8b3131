"""Environment of an operation: a home, a store, a stopped clock, and a log recorder.

Tools see `/tmp/<user>/`; the folder behind it is a fresh one for each case.
"""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from runner.files.download_links import DownloadLinks
from runner.files.my_files import Deferral, Library, MyFiles
from runner.files.sessions import Sessions
from runner.homes.homes import HomeLease
from runner.store.local.blobs import LocalBlobs
from runner.store.protocol import Origin, Record
from runner.store.store import BlobStore
from runner.users.capability_tokens import Tokens
from runner.users.usernames import home_segment

__all__ = ["World", "described", "hear", "instant"]

_SESSION = "session"
_STANDARD = frozenset(vars(logging.makeLogRecord({})))


class _Ear(logging.Handler):
    """Writes down every record: the event, and the facts that the project puts beside it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[dict[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        facts = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        text = json.dumps(facts, default=str, ensure_ascii=False)
        message = f"{record.getMessage()} {text}" if facts else record.getMessage()
        self.records.append({"level": record.levelname.lower(), "message": message})


@contextmanager
def hear() -> Iterator[list[dict[str, str]]]:
    """Yield the list that all log records of the project go to until the block ends."""
    ear = _Ear()
    loggers = [logging.getLogger(name) for name in ("runner", "sandbox")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(ear)
        logger.setLevel(logging.DEBUG)
    try:
        yield ear.records
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(ear)
            logger.setLevel(level)


def instant(text: str | None) -> datetime:
    """Return the moment that a case names, or now."""
    return datetime.fromisoformat(text) if text else datetime.now(UTC)


@dataclass(kw_only=True)
class World:
    """One user's home and files, in one session.

    Attributes:
        user: The user's name.
        home: The home, under the name that tools know.
        folder: The folder that it really is.
        state: The runner's state folder.
        persist: Whether files outlive the session.
        links: Makes download links.
        now: The time it is.
    """

    user: str
    home: HomeLease
    folder: Path
    state: Path
    persist: bool
    links: DownloadLinks
    now: datetime

    @classmethod
    @contextmanager
    def of(
        cls, user: str, now: str | None = None, *, public_url: str | None = None, persist: bool = True
    ) -> Iterator["World"]:
        """Make the world of a user; it is gone when the block ends."""
        with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
            folder, state = Path(root, "home"), Path(root, "state")
            folder.mkdir(mode=0o700)
            state.mkdir(mode=0o700)
            fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            segment = home_segment(user)
            lease = HomeLease(user=user, segment=segment, path=Path("/tmp", segment), fd=fd)
            yield cls(
                user=user,
                home=lease,
                folder=folder,
                state=state,
                persist=persist,
                links=DownloadLinks(tokens=Tokens(state / "tokens.json"), base=public_url or ""),
                now=instant(now),
            )

    @property
    def files(self) -> MyFiles:
        """Return the user's files."""
        store = BlobStore(LocalBlobs(self.state / "store"), clock=lambda: self.now)
        sessions = Sessions(self.state / "sessions")
        library = Library(store=store, sessions=sessions, persist=self.persist, clock=lambda: self.now)
        return library.of(self.user, _SESSION)

    @property
    def claims(self) -> Path:
        """Return the folder of staging locks."""
        return self.state / "claims"

    def real(self, path: str) -> Path | None:
        """Return what a path that tools know really is; None if it is not in the home."""
        inside = os.path.relpath(os.path.normpath(path), self.home.path)
        return None if inside.startswith("..") else self.folder / inside

    def lay(self, path: str, content: bytes) -> None:
        """Let a file lie at a path of the home."""
        place = self._place(path)
        if place is not None:
            place.write_bytes(content)

    def stretch(self, path: str, size: int) -> None:
        """Let a file of that size lie there, without its blocks."""
        place = self._place(path)
        if place is not None:
            with place.open("ab") as file:
                file.truncate(size)

    def tie(self, links: Mapping[str, str]) -> None:
        """Let symbolic links lie there."""
        for path, target in links.items():
            place = self._place(path)
            if place is not None:
                place.symlink_to(self.real(target) or target)

    async def keep(
        self, fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool
    ) -> Record:
        """Put a file of a result into the user's files. A `runner.artifacts.accept.Keep`."""
        origin = Origin.GENERATED if deferral is None else Origin.DEFERRED
        return await self.files.put(
            fd, name=name, mime=mime, origin=origin, deferral=deferral, temporary=temporary
        )

    def _place(self, path: str) -> Path | None:
        place = self.real(path)
        if place is not None:
            place.parent.mkdir(parents=True, exist_ok=True)
        return place


def described(file: Any) -> dict[str, Any]:
    """Return an accepted file as an observation has it."""
    return {"name": file.name, "mime": file.mime, "size": file.size, "sha256": file.sha256}
