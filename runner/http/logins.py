"""Valid browser sessions: a note for each; a cookie without its note is refused.

By its signature alone, every copy of a cookie would stay valid until it expires. So a session is valid only
while its note exists, and a logout removes the note. Notes survive a restart, and all processes with the
same state folder share them. Removing them logs everybody out: a loss never grants access.

A note is a dangling symbolic link: it is created atomically, and needs no block of a full disk. It holds the
expiry of the session, the expiry of its token, and the id of that token.

Source: symlink(7); `docs/serving.md`.
"""

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from runner.system.state_files import holding, make_folder, set_apart, sync_folder
from runner.users.identity import User

__all__ = ["LOGINS_PER_USER", "Login", "Logins"]

LOGINS_PER_USER = 200
"""Most concurrent browser sessions of one user; one more ends the one that expires first."""

_FOLDER = "browser-sessions"
_UNFINISHED = "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Note of a browser session.

    Attributes:
        end: When it ends, in whole seconds since the epoch.
        token_end: Expiry of the token that began the session; 0 if it never expires or there was none.
        token: The id of that token, its `runner.users.tokens_file.token_print`; empty if there was none.
    """

    end: int
    token_end: int = 0
    token: str = ""


class Logins:
    """The notes of one state folder.

    Args:
        state_dir: The state folder, which belongs to the runner alone.
    """

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir / _FOLDER

    def note(self, user: User, login: Login, *, now: float) -> None:
        """Record a session, replacing its earlier note.

        Raises:
            OSError: It cannot be recorded, and so is not valid.
        """
        path = self._path(user)
        make_folder(self._folder.parent, self._folder.name, path.parent.name)
        self._make_room(path, now)
        _clear_way(path)
        unfinished = path.with_name(_UNFINISHED + secrets.token_hex(8))
        os.symlink(f"{login.end}.{login.token_end}.{login.token}", unfinished)
        os.rename(unfinished, path)

    def of(self, user: User) -> Login | None:
        """Return the note of the session of `user`; None if it is not valid."""
        return _read(self._path(user))

    def end(self, user: User) -> None:
        """End a session durably, if it is valid.

        Raises:
            OSError: The note cannot be removed.
        """
        path = self._path(user)
        _clear_way(path)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        sync_folder(path.parent)

    def count(self, name: str, *, now: float) -> int:
        """Return the number of valid sessions of a user."""
        found = (_read(each) for each in self._notes(name) if not each.name.startswith(_UNFINISHED))
        return sum(login is not None and login.end > now for login in found)

    def end_all(self, name: str) -> int:
        """End every session of a user durably; return the number of notes removed.

        Raises:
            OSError: A note cannot be removed.
        """
        notes = self._notes(name)
        for note in notes:
            note.unlink(missing_ok=True)
        if notes:
            sync_folder(self._folder / _name(name))
        return len(notes)

    def _notes(self, name: str) -> list[Path]:
        folder = self._folder / _name(name)
        return [each for each in folder.iterdir() if each.is_symlink()] if folder.is_dir() else []

    def _path(self, user: User) -> Path:
        return self._folder / _name(user.name) / _name(user.session or "")

    def _make_room(self, path: Path, now: float) -> None:
        """Remove expired notes of a user, and the one that expires first if there are too many."""
        held: list[tuple[int, Path]] = []
        for each in path.parent.iterdir():
            login = _read(each)
            if login is not None and login.end > now:
                # Another request may be about to rename an unfinished note into place.
                if not each.name.startswith(_UNFINISHED):
                    held.append((login.end, each))
            elif each.is_symlink():
                each.unlink(missing_ok=True)
        others = sorted(entry for entry in held if entry[1] != path)
        for _end, each in others[: max(0, len(others) - LOGINS_PER_USER + 1)]:
            each.unlink(missing_ok=True)


def _name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _clear_way(path: Path) -> None:
    """Set aside anything at a note's path that is not a note; readers treat it as no session."""
    if os.path.lexists(path) and not path.is_symlink():
        with holding(path.parent):
            if os.path.lexists(path) and not path.is_symlink():
                set_apart(path, "it is not a note of a browser session")


def _read(path: Path) -> Login | None:
    with contextlib.suppress(OSError, ValueError):
        end, token_end, token = os.readlink(path).split(".")
        return Login(end=int(end), token_end=int(token_end), token=token)
    return None
