"""Capability tokens: a signed, expiring string whose holder may do one thing with one object.

A token names its user and its end in the open and proves them, its purpose and its key with
HMAC-SHA256. Purpose and key are not in it: a token for one file says nothing about which. One that holds
for a single use carries a number of its own, and the use is written down before it is granted, so it is
refused the second time by whichever process is asked, and after a restart.

The secrets have a copy beside them, which is used where they are damaged: links and browser sessions hold on.
Where they are gone somebody has removed them, which is how all links and sessions are ended at once; then
the copy counts no more.

Those of one user can be revoked, all that were made until now or those that begin in one way: that is noted
beside the secrets, and read for each token. A token says when it was made; one that does not is an old one.

Source: RFC 2104, RFC 4648 section 5; requirements S0-39, S0-46, S0-52, S0-53.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from runner.errors import RunnerError, StartError
from runner.system.state_files import (
    Damaged,
    holding,
    make_folder,
    open_regular,
    read_whole,
    set_apart,
    write_whole,
)

__all__ = ["KEYS_KEPT", "TokenError", "Tokens", "named_in"]

KEYS_KEPT = 2
SECRET_BYTES = 32
TOKEN_MAX_CHARS = 4096

_USED = "used-tokens"
_REVOKED = "revoked-tokens"
_NEVER = -1

_log = logging.getLogger(__name__)


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
        made_ms = int(now * 1000)
        claims = _encode(json.dumps([name, user, int(now + ttl_s), number, made_ms]).encode())
        return f"{claims}.{_mac(secret, claims, purpose, key)}"

    def verify(self, token: str, *, purpose: str, key: str, now: float) -> str:
        """Return the user for whom `token` was made. One for a single use is used up by it.

        Raises:
            TokenError: It does not permit `purpose` on `key` at `now`.
        """
        refused = TokenError("this link is not valid; ask for a new one")
        if len(token) > TOKEN_MAX_CHARS or not token.isascii():
            raise refused
        # A third part, such as a file name, is not signed.
        claims, mac = [*token.split("."), ""][:2]
        name, user, expires, number, made_ms = _claims(claims, refused)
        secret = self._secrets().get(name)
        # Compared even without a secret, so that time does not tell which names exist.
        right = hmac.compare_digest(_mac(secret or b"", claims, purpose, key), mac)
        if secret is None or not right:
            raise refused
        if now >= expires:
            raise TokenError("this link has expired; ask for a new one")
        if self._is_revoked(token, user, made_ms):
            raise TokenError("this link was revoked; ask for a new one")
        if number and not self._use(number, expires, now):
            raise TokenError("this link was for a single use and has been used; ask for a new one")
        return user

    def rotate_after(self, age_s: float, *, now: float) -> None:
        """Rotate if the newest secret is older than so many seconds, and make the copy if there is none.

        Where that cannot be written down, what there is holds on.

        Args:
            age_s: The age.
            now: Seconds since the epoch.

        Raises:
            StartError: There are no secrets that can be used, and none can be made.
        """
        held = self._secrets()
        # The file is written when a secret is made, and at no other time.
        aged = now - self._path.stat().st_mtime > age_s
        try:
            if aged:
                self.rotate()
            elif self._copied() != held:
                with holding(self._path.parent):
                    self._write_copy(self._read())
        except OSError as error:
            _log.warning("link keys not written", extra={"reason": error.strerror})

    def rotate(self) -> None:
        """Sign with a new secret from now on; the one before still verifies.

        Raises:
            OSError: It cannot be written down; nothing has changed.
        """
        self._secrets()  # makes the file, which must not happen under the lock
        with holding(self._path.parent):
            newest = list(self._read().items())[: KEYS_KEPT - 1]
            self._write(dict([_new_secret(), *newest]))

    def revoke(self, users: Iterable[str], *, prefix: str = "", now: float) -> None:
        """Revoke tokens of users.

        Args:
            users: The users, as they were named when the tokens were signed.
            prefix: How the tokens begin that are meant; by default all that were made until now are.
            now: Seconds since the epoch.

        Raises:
            OSError: It cannot be written down; nothing has changed.
        """
        folder = self._path.parent / _REVOKED
        make_folder(folder.parent, folder.name)
        # Without the part that is not signed, which a holder may change.
        prefix = ".".join(prefix.split(".")[:2])
        with holding(folder):
            for user in users:
                before_ms, prefixes = self._revoked(user)
                if prefix:
                    # All tokens of a user begin alike: one made later is another token.
                    prefixes = {**prefixes, prefix: int(now * 1000)}
                else:
                    before_ms = int(now * 1000)
                note = {"user": user, "before_ms": before_ms, "prefixes": prefixes}
                write_whole(folder / _note_of(user), json.dumps(note).encode())

    def _is_revoked(self, token: str, user: str, made_ms: int) -> bool:
        before_ms, prefixes = self._revoked(user)
        if made_ms <= before_ms:
            return True
        return any(token.startswith(prefix) and made_ms <= until for prefix, until in prefixes.items())

    def _revoked(self, user: str) -> tuple[int, dict[str, int]]:
        """Return until when tokens of a user were revoked, in ms since the epoch, and by which beginnings."""
        try:
            note = json.loads(read_whole(self._path.parent / _REVOKED / _note_of(user)))
            return int(note["before_ms"]), {
                str(prefix): int(until) for prefix, until in note["prefixes"].items()
            }
        except FileNotFoundError:
            return _NEVER, {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Nobody knows what was revoked, so nothing of this user's holds.
            raise TokenError("this link cannot be checked at present; try again later") from error

    def fault(self) -> str | None:
        """Return a sentence on why no link or session can be signed or checked now, or None."""
        try:
            self._secrets()
        except StartError as error:
            return str(error)
        return None

    def _use(self, number: str, expires: int, now: float) -> bool:
        """Write down that a token is used; say whether it was the first time."""
        folder = self._path.parent / _USED
        mark = folder / f"{expires}-{number}"
        try:
            make_folder(folder.parent, folder.name)
            _forget_expired(folder, now)
            fd = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        except OSError as error:
            # Not noted, it could be used again.
            raise TokenError("the use of this link cannot be noted at present; try again later") from error
        os.close(fd)
        return True

    @property
    def _copy(self) -> Path:
        return self._path.with_name(f"{self._path.stem}-copy{self._path.suffix}")

    def _secrets(self) -> Mapping[str, bytes]:
        """Return the secrets by name, the newest first.

        Raises:
            StartError: There are none that can be used, and none can be made.
        """
        try:
            with contextlib.suppress(FileNotFoundError, Damaged):
                return self._read()
            return self._mended()
        except OSError as error:
            raise StartError(
                f"the keys of links and browser sessions ({self._path.name} in the folder of the setting "
                f"state_dir) cannot be used: {error.strerror}; see to the folder's disk and owner"
            ) from error

    def _mended(self) -> Mapping[str, bytes]:
        """Make the secrets that are not there, or damaged; return them."""
        # A proxy before servers over HTTP has written nothing yet.
        make_folder(self._path.parent)
        with holding(self._path.parent):
            found: Mapping[str, bytes] = {}
            try:
                # Another process was faster and has made them.
                return self._read()
            except FileNotFoundError:
                if self._copied():
                    _log.warning("link keys missing", extra={"consequence": "links and sessions have ended"})
            except Damaged as damage:
                # First, since without the file itself a copy counts no more.
                found = self._copied()
                set_apart(self._path, str(damage))
                consequence = "links and sessions stay valid" if found else "links and sessions have ended"
                _log.error("link keys damaged", extra={"consequence": consequence})
            self._write(found or dict([_new_secret()]))
            return self._read()

    def _copied(self) -> Mapping[str, bytes]:
        """Return the secrets of the copy; none if it is missing or damaged.

        Raises:
            OSError: It is there and cannot be read.
        """
        # One that may not be read is there: what it holds may still count.
        with contextlib.suppress(FileNotFoundError, Damaged, StartError):
            return _read(self._copy)
        return {}

    def _write(self, keys: Mapping[str, bytes]) -> None:
        """Write the secrets down. The copy first: it is never older than what it stands in for."""
        self._write_copy(keys)
        write_whole(self._path, _written(keys))

    def _write_copy(self, keys: Mapping[str, bytes]) -> None:
        try:
            _read(self._copy)
        except (FileNotFoundError, StartError):
            pass
        except Damaged as damage:
            set_apart(self._copy, str(damage))
        write_whole(self._copy, _written(keys))

    def _read(self) -> Mapping[str, bytes]:
        return _read(self._path)


def _read(path: Path) -> Mapping[str, bytes]:
    """Return the secrets of a file.

    Raises:
        Damaged: They are not there as they were written.
        FileNotFoundError: There is no file.
        OSError: It cannot be read.
        StartError: Others may have read or written it.
    """
    fd = open_regular(path)
    try:
        found = os.fstat(fd)
    finally:
        os.close(fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StartError(
            f"the keys of links and browser sessions ({path.name} in the folder of the setting state_dir) "
            "must be a file of this user with mode 0600; chmod 600 it, or remove it if others have read it"
        )
    try:
        rows: list[tuple[str, str]] = json.loads(read_whole(path))["keys"]
        return {name: _secret(secret) for name, secret in [rows[0], *rows[1:]]}
    except Damaged:
        raise
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Damaged("it holds no keys") from error


def _forget_expired(folder: Path, now: float) -> None:
    for old in folder.iterdir():
        # What has expired is refused without a note.
        if old.name.partition("-")[0].isdecimal() and int(old.name.partition("-")[0]) <= now:
            with contextlib.suppress(OSError):
                old.unlink()


def _new_secret() -> tuple[str, bytes]:
    return secrets.token_hex(4), secrets.token_bytes(SECRET_BYTES)


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) < SECRET_BYTES:
        raise ValueError("a secret is too short")
    return secret


def named_in(token: str) -> tuple[str, ...]:
    """Return the user for whom a token says it was made, if it says so. Nothing of it is proved."""
    try:
        return (_claims(token[:TOKEN_MAX_CHARS].partition(".")[0], TokenError())[1],)
    except TokenError:
        return ()


def _written(keys: Mapping[str, bytes]) -> bytes:
    return json.dumps({"keys": [(name, secret.hex()) for name, secret in keys.items()]}).encode("ascii")


def _note_of(user: str) -> str:
    return hashlib.sha256(user.encode(errors="surrogatepass")).hexdigest()


def _claims(claims: str, refused: TokenError) -> tuple[str, str, int, str, int]:
    try:
        payload = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        # Those of earlier versions are shorter.
        name, user, expires, number, made_ms = [*payload, "", 0] if len(payload) == 3 else [*payload, 0][:5]
    except (ValueError, TypeError, RecursionError) as error:
        raise refused from error
    numbers, texts = (expires, made_ms), (name, user, number)
    if not (all(isinstance(n, int) for n in numbers) and all(isinstance(text, str) for text in texts)):
        raise refused
    return name, user, expires, number, made_ms


def _mac(secret: bytes, claims: str, purpose: str, key: str) -> str:
    # JSON keeps the three apart: no two different triples give the same bytes.
    message = json.dumps([claims, purpose, key]).encode()
    return _encode(hmac.new(secret, message, hashlib.sha256).digest())


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
