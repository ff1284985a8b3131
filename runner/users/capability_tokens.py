"""Capability tokens: a signed, expiring string whose holder may do one thing with one object.

A token carries its user and expiry in plain text. HMAC-SHA256 authenticates them, the purpose and the key.
Purpose and key are not in it: a token for a file does not reveal which. A token for a single use carries
a number of its own. The use is recorded before it is granted, so every process refuses the token the second
time, also after a restart. Records of a user are limited in number, and only these are read at a use.

The secrets file has a copy beside it, which replaces a damaged one: links and browser sessions stay valid.
Deleting the secrets file ends all links and sessions at once; the copy is then ignored.

Tokens of one user can be revoked: all that were made until now, or those with a given prefix. Revocations
are recorded beside the secrets and read for each token. A token without its creation time is an old one.

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

__all__ = ["KEYS_KEPT", "USES_PER_USER", "TokenError", "Tokens", "named_in"]

KEYS_KEPT = 2
SECRET_BYTES = 32
TOKEN_MAX_CHARS = 4096

USES_PER_USER = 1000
"""Most used tokens of one user that have not expired; further ones for a single use are refused."""

_USED = "used-tokens"
_REVOKED = "revoked-tokens"
_IS_USED = "this link was for a single use and has been used; ask for a new one"
_NEVER = -1

_log = logging.getLogger(__name__)


class TokenError(RunnerError):
    """A token is forged, expired or was made for something else; the message reveals no more."""


class Tokens:
    """Signer and verifier of tokens with the secrets of one file.

    The file is read for every token, so that a rotation by another process applies at once.

    Args:
        path: The secrets file, mode 0600; created at first use. Its folder must exist. Used and revoked
            tokens are recorded beside it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def sign(self, *, user: str, key: str, purpose: str, now: float, ttl_s: float, once: bool = False) -> str:
        """Return a token, made of letters, digits, `-`, `_` and `.` only.

        Args:
            user: The owner of the object.
            key: The object, for example an artifact id.
            purpose: What the holder may do with it, for example `download`.
            now: Seconds since the epoch.
            ttl_s: Lifetime, in seconds.
            once: Whether it is valid for a single use only.
        """
        name, secret = next(iter(self._secrets().items()))
        number = secrets.token_hex(16) if once else ""
        made_ms = int(now * 1000)
        claims = _encode(json.dumps([name, user, int(now + ttl_s), number, made_ms]).encode())
        return f"{claims}.{_mac(secret, claims, purpose, key)}"

    def check(self, token: str, *, purpose: str, key: str, now: float) -> str:
        """Return the user for whom `token` was made, without using it up.

        Raises:
            TokenError: It does not permit `purpose` on `key` at `now`.
        """
        return self._checked(token, purpose, key, now)[0]

    def verify(self, token: str, *, purpose: str, key: str, now: float) -> str:
        """Return the user for whom `token` was made. Uses up a token for a single use.

        Raises:
            TokenError: It does not permit `purpose` on `key` at `now`.
        """
        user, mark = self._checked(token, purpose, key, now)
        if mark:
            self._use(user, mark, now)
        return user

    def _checked(self, token: str, purpose: str, key: str, now: float) -> tuple[str, str]:
        """Return the user of a token and, for a single use, the name of its record."""
        refused = TokenError("this link is not valid; ask for a new one")
        if len(token) > TOKEN_MAX_CHARS or not token.isascii():
            raise refused
        # A third part, such as a file name, is not signed.
        claims, mac = [*token.split("."), ""][:2]
        name, user, expires, number, made_ms = _claims(claims, refused)
        secret = self._secrets().get(name)
        # Compared even without a secret, so that timing does not reveal which secrets exist.
        right = hmac.compare_digest(_mac(secret or b"", claims, purpose, key), mac)
        if secret is None or not right:
            raise refused
        if now >= expires:
            raise TokenError("this link has expired; ask for a new one")
        if self._is_revoked(token, user, made_ms):
            raise TokenError("this link was revoked; ask for a new one")
        mark, used = f"{expires}-{number}" if number else "", self._path.parent / _USED
        # The second is the record of an earlier version.
        if mark and any(map(os.path.lexists, (used / _note_of(user) / mark, used / mark))):
            raise TokenError(_IS_USED)
        return user, mark

    def rotate_after(self, age_s: float, *, now: float) -> None:
        """Rotate if the newest secret is older than `age_s`, and make the copy if there is none.

        If nothing can be written, the existing secrets stay in use. Also remove records of expired tokens.

        Args:
            age_s: Age, in seconds.
            now: Seconds since the epoch.

        Raises:
            StartError: There are no usable secrets, and none can be made.
        """
        used = self._path.parent / _USED
        for folder in (used, *used.glob("*/")):
            with contextlib.suppress(OSError):
                _forget_expired(folder, now)
        held = self._secrets()
        # The file is written only when a secret is made.
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
        """Sign with a new secret from now on; the previous one still verifies.

        Raises:
            OSError: It cannot be written; nothing has changed.
        """
        self._secrets()  # makes the file, which must not happen under the lock
        with holding(self._path.parent):
            newest = list(self._read().items())[: KEYS_KEPT - 1]
            self._write(dict([_new_secret(), *newest]))

    def revoke(self, users: Iterable[str], *, prefix: str = "", now: float) -> None:
        """Revoke tokens of users.

        Args:
            users: The users, as they were named when the tokens were signed.
            prefix: Prefix of the tokens to revoke; by default, all that were made until now.
            now: Seconds since the epoch.

        Raises:
            OSError: It cannot be written; nothing has changed.
        """
        folder = self._path.parent / _REVOKED
        make_folder(folder.parent, folder.name)
        # Without the unsigned part, which a holder may change.
        prefix = ".".join(prefix.split(".")[:2])
        with holding(folder):
            for user in users:
                before_ms, prefixes = self._revoked(user)
                if prefix:
                    # Tokens of a user can share a prefix: the time spares those made later.
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
        """Return the revocation time of a user's tokens, in ms since the epoch, and that of each prefix."""
        try:
            note = json.loads(read_whole(self._path.parent / _REVOKED / _note_of(user)))
            return int(note["before_ms"]), {
                str(prefix): int(until) for prefix, until in note["prefixes"].items()
            }
        except FileNotFoundError:
            return _NEVER, {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            # Revocations are unknown, so no token of this user is accepted.
            raise TokenError("this link cannot be checked at present; try again later") from error

    def fault(self) -> str | None:
        """Return a sentence on why no link or session can be signed or checked now, or None."""
        try:
            self._secrets()
        except StartError as error:
            return str(error)
        return None

    def _use(self, user: str, mark: str, now: float) -> None:
        """Record the use of a token, unless it has been used."""
        used = self._path.parent / _USED
        folder = used / _note_of(user)
        try:
            make_folder(used.parent, used.name, folder.name)
            if _forget_expired(folder, now) >= USES_PER_USER:
                raise TokenError(
                    f"{USES_PER_USER} links for a single use have been used, and none has expired; "
                    "ask for one without that limit"
                )
            fd = os.open(folder / mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise TokenError(_IS_USED) from None
        except OSError as error:
            # Without a record it could be used again.
            raise TokenError("the use of this link cannot be noted at present; try again later") from error
        os.close(fd)

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
        """Make the secrets if they are missing or damaged; return them."""
        # A proxy before servers over HTTP has written nothing yet.
        make_folder(self._path.parent)
        with holding(self._path.parent):
            found: Mapping[str, bytes] = {}
            try:
                # Another process has made them first.
                return self._read()
            except FileNotFoundError:
                if self._copied():
                    _log.warning("link keys missing", extra={"consequence": "links and sessions have ended"})
            except Damaged as damage:
                # Before `set_apart`: without the secrets file the copy is ignored.
                found = self._copied()
                set_apart(self._path, str(damage))
                consequence = "links and sessions stay valid" if found else "links and sessions have ended"
                _log.error("link keys damaged", extra={"consequence": consequence})
            self._write(found or dict([_new_secret()]))
            return self._read()

    def _copied(self) -> Mapping[str, bytes]:
        """Return the secrets of the copy; none if it is missing or damaged.

        Raises:
            OSError: It exists and cannot be read.
        """
        # Other errors propagate: an unreadable copy may still hold valid secrets.
        with contextlib.suppress(FileNotFoundError, Damaged, StartError):
            return _read(self._copy)
        return {}

    def _write(self, keys: Mapping[str, bytes]) -> None:
        """Write the secrets. The copy first: it must never be older than the file that it replaces."""
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
        Damaged: The file is not as it was written.
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


def _forget_expired(folder: Path, now: float) -> int:
    """Remove the records of expired tokens, which are refused without; return how many others there are."""
    names = [name for name in os.listdir(folder) if name.partition("-")[0].isdecimal()]
    expired = [name for name in names if int(name.partition("-")[0]) <= now]
    for name in expired:
        with contextlib.suppress(OSError):
            (folder / name).unlink()
    return len(names) - len(expired)


def _new_secret() -> tuple[str, bytes]:
    return secrets.token_hex(4), secrets.token_bytes(SECRET_BYTES)


def _secret(text: str) -> bytes:
    secret = bytes.fromhex(text)
    if len(secret) < SECRET_BYTES:
        raise ValueError("a secret is too short")
    return secret


def named_in(token: str) -> tuple[str, ...]:
    """Return the user that a token names, if it names one. Nothing is verified."""
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
        # Tokens of earlier versions have fewer fields.
        name, user, expires, number, made_ms = [*payload, "", 0] if len(payload) == 3 else [*payload, 0][:5]
    except (ValueError, TypeError, RecursionError) as error:
        raise refused from error
    numbers, texts = (expires, made_ms), (name, user, number)
    if not (all(isinstance(n, int) for n in numbers) and all(isinstance(text, str) for text in texts)):
        raise refused
    return name, user, expires, number, made_ms


def _mac(secret: bytes, claims: str, purpose: str, key: str) -> str:
    # JSON is unambiguous: no two different triples give the same bytes.
    message = json.dumps([claims, purpose, key]).encode()
    return _encode(hmac.new(secret, message, hashlib.sha256).digest())


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
