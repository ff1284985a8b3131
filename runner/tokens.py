"""Capability tokens: a signed, expiring string whose holder may do one thing with one object.

A token names its user and its end in the open and proves them, its purpose and its key with
HMAC-SHA256. Purpose and key are not in it: a token for one file says nothing about which. One that holds
for a single use carries a number of its own, and the use is written down before it is granted, so it is
refused the second time by whichever process is asked, and after a restart.

Source: RFC 2104, RFC 4648 section 5; requirements S0-39, S0-46, S0-52, S0-53.
"""

import base64
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.errors import RunnerError, StartError

__all__ = ["KEYS_KEPT", "TokenError", "Tokens"]

KEYS_KEPT = 2
SECRET_BYTES = 32
TOKEN_MAX_CHARS = 4096

_USED = "used-tokens"


class TokenError(RunnerError):
    """A token is forged, expired or was made for something else; the message says no more."""


class Tokens:
    """Signs and verifies tokens with the secrets of one file.

    The file is read for every token, so that a rotation by another process holds at once.

    Args:
        path: The secrets file, mode 0600; made at first use. Its folder must exist. Beside it is noted
            which tokens for a single use have been used.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def sign(self, *, user: str, key: str, purpose: str, now: float, ttl_s: float, once: bool = False) -> str:
        """Return a token, made of letters, digits, `-`, `_` and `.` only.

        Args:
            user: Whose object it is.
            key: The object, for example an artifact id.
            purpose: What the holder may do with it, for example `download`.
            now: Seconds since the epoch.
            ttl_s: How long it holds, in seconds.
            once: Whether it holds for a single use.
        """
        name, secret = next(iter(self._secrets().items()))
        number = secrets.token_hex(16) if once else ""
        claims = _encode(json.dumps([name, user, int(now + ttl_s), *([number] if once else [])]).encode())
        return f"{claims}.{_mac(secret, claims, purpose, key)}"

    def verify(self, token: str, *, purpose: str, key: str, now: float) -> str:
        """Return the user for whom `token` was made. One for a single use is used up by it.

        Raises:
            TokenError: It does not permit `purpose` on `key` at `now`.
        """
        refused = TokenError("this link is not valid; ask for a new one")
        if len(token) > TOKEN_MAX_CHARS or not token.isascii():
            raise refused
        claims, _, mac = token.partition(".")
        name, user, expires, number = _claims(claims, refused)
        secret = self._secrets().get(name)
        # Compared even without a secret, so that time does not tell which names exist.
        right = hmac.compare_digest(_mac(secret or b"", claims, purpose, key), mac)
        if secret is None or not right:
            raise refused
        if now >= expires:
            raise TokenError("this link has expired; ask for a new one")
        if number and not self._use(number, expires, now):
            raise TokenError("this link was for a single use and has been used; ask for a new one")
        return user

    def rotate_after(self, age_s: float, *, now: float) -> None:
        """Rotate if the newest secret is older than so many seconds.

        Args:
            age_s: The age.
            now: Seconds since the epoch.
        """
        self._secrets()
        # The file is written when a secret is made, and at no other time.
        if now - self._path.stat().st_mtime > age_s:
            self.rotate()

    def rotate(self) -> None:
        """Sign with a new secret from now on; the one before still verifies."""
        self._secrets()  # makes the file, which must not happen under the lock
        with self._locked_folder() as folder:
            kept = list(self._read().items())[: KEYS_KEPT - 1]
            temporary = _write(folder, [_new_secret(), *kept])
            os.rename(temporary, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def _use(self, number: str, expires: int, now: float) -> bool:
        """Write down that a token is used; say whether it was the first time."""
        folder = self._path.parent / _USED
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in folder.iterdir():
            # What has expired is refused without a note.
            if old.name.partition("-")[0].isdecimal() and int(old.name.partition("-")[0]) <= now:
                old.unlink(missing_ok=True)
        mark = folder / f"{expires}-{number}"
        try:
            fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        except OSError as error:
            # Not noted, it could be used again.
            raise TokenError("the use of this link cannot be noted at present; try again later") from error
        os.close(fd)
        return True

    def _secrets(self) -> dict[str, bytes]:
        """Return the secrets by name, the newest first."""
        try:
            return self._read()
        except FileNotFoundError:
            self._create()
            return self._read()

    def _create(self) -> None:
        # A proxy before servers over HTTP has written nothing yet.
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked_folder() as folder:
            if self._path.exists():
                return
            temporary = _write(folder, [_new_secret()])
            os.rename(temporary, self._path.name, src_dir_fd=folder, dst_dir_fd=folder)
            os.fsync(folder)

    def _read(self) -> dict[str, bytes]:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StartError(f"{self._path} cannot be read: {error.strerror}; remove it") from error
        with os.fdopen(fd, encoding="ascii") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise StartError(f"{self._path} must be a file of this user with mode 0600; chmod 600 it")
            try:
                rows: list[tuple[str, str]] = json.load(file)["keys"]
                return {name: _secret(secret) for name, secret in [rows[0], *rows[1:]]}
            except (ValueError, LookupError, TypeError) as error:
                raise StartError(
                    f"{self._path} is damaged; remove it, then links given out before end"
                ) from error

    @contextmanager
    def _locked_folder(self) -> Iterator[int]:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)


def _new_secret() -> tuple[str, bytes]:
    return secrets.token_hex(4), secrets.token_bytes(SECRET_BYTES)


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) < SECRET_BYTES:
        raise ValueError("a secret is too short")
    return secret


def _write(folder: int, keys: list[tuple[str, bytes]]) -> str:
    """Write a secrets file under a new name, whole and on disk, and return the name."""
    temporary = f".tokens-{secrets.token_hex(8)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump({"keys": [(name, secret.hex()) for name, secret in keys]}, file)
        file.flush()
        os.fsync(fd)
    return temporary


def _claims(claims: str, refused: TokenError) -> tuple[str, str, int, str]:
    try:
        said = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        name, user, expires, number = said if len(said) == 4 else (*said, "")
    except (ValueError, TypeError, RecursionError) as error:
        raise refused from error
    if not (isinstance(expires, int) and all(isinstance(text, str) for text in (name, user, number))):
        raise refused
    return name, user, expires, number


def _mac(secret: bytes, claims: str, purpose: str, key: str) -> str:
    # JSON keeps the three apart: no two different triples give the same bytes.
    message = json.dumps([claims, purpose, key]).encode()
    return _encode(hmac.new(secret, message, hashlib.sha256).digest())


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
