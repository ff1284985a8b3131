"""The keys of a bucket: where the bytes of an artifact are, and what is written down about it.

    {prefix}{user}/artifacts/{YYYYMMDD}/{token}/{name}       bytes of a file
    {prefix}{user}/observations/{YYYYMMDD}/{token}           bytes of an observation
    {prefix}{user}/index/{session}/names/{name}/{ticket}     record of a file
    {prefix}{user}/index/{session}/notes/{token}             record of an observation
    {prefix}{user}/index/{session}/lives/{token}             a record's later state
    {prefix}{user}/ids/{session}/{id}/{token}/{name}         from content to records

The token is new with each upload, so bytes are never overwritten and a key is never used again. No key
is the beginning of another one's path: some servers keep objects as files in folders. Pure.

Source: rule R1 of the conformance cases; requirement S1-73; Amazon S3 User Guide, "Naming objects".
"""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from runner.store.areas import OwnerPlace, place_of
from runner.store.protocol import Retention, Scope

__all__ = ["Marker", "OwnerKeys", "keys_of", "new_token"]

_EVERYBODY = "all"
_DIGEST_DIGITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """What the key of a marker says.

    Attributes:
        id: Namespace and full digest of the content.
        token: Token of the upload.
        name: Name of the file; None for an observation.
    """

    id: str
    token: str
    name: str | None


@dataclass(frozen=True, slots=True)
class OwnerKeys:
    """The keys of one owner.

    Attributes:
        prefix: What all keys of the store begin with.
        place: Where the owner's artifacts are.
    """

    prefix: str
    place: OwnerPlace

    @property
    def area(self) -> str:
        """Return what all keys of the owner's area begin with."""
        kind, segment = self.place.area.split("/", 1)
        # Segments of users begin with a letter, a digit or another letter behind the `=`.
        return f"{self.prefix}{segment if kind == 'users' else f'=s{segment}'}/"

    @property
    def bytes_of_files(self) -> str:
        """Return what the keys of all files' bytes begin with."""
        return f"{self.area}artifacts/"

    @property
    def all_ids(self) -> str:
        """Return what the keys of all markers begin with, of all sessions."""
        return f"{self.area}ids/"

    @property
    def index(self) -> str:
        """Return what the keys of all records begin with."""
        return f"{self.area}index/{self._session}/"

    @property
    def names(self) -> str:
        """Return what the keys of all files' records begin with."""
        return f"{self.index}names/"

    def content(self, token: str, *, day: datetime, name: str | None, retention: Retention) -> str:
        """Return the key of an artifact's bytes."""
        if retention is Retention.FILES:
            return f"{self.bytes_of_files}{day:%Y%m%d}/{token}/{name}"
        return f"{self.area}observations/{day:%Y%m%d}/{token}"

    def token_of(self, key: str) -> str:
        """Return the token in the key of a file's bytes."""
        return key.removeprefix(self.bytes_of_files).split("/")[1]

    def content_of(self, key: str) -> tuple[str, str] | None:
        """Return token and digest in the key of a marker of any session; None if it is no marker's.

        A server that keeps keys as files may list a folder that it is about to fill or to remove.
        """
        match key.removeprefix(self.all_ids).split("/", 3):
            case [_, id_, token, _]:
                return token, id_[-_DIGEST_DIGITS:]
        return None

    def name(self, name: str) -> str:
        """Return what the keys of a name's records begin with."""
        return f"{self.names}{name}/"

    def note(self, token: str) -> str:
        """Return the key of an observation's record."""
        return f"{self.index}notes/{token}"

    def life(self, token: str) -> str:
        """Return the key of a record's later state."""
        return f"{self.index}lives/{token}"

    def ids(self, beginning: str) -> str:
        """Return what the keys of all markers begin with whose ids begin with `beginning`."""
        return f"{self.all_ids}{self._session}/{quote(beginning, safe='')}"

    def marker(self, marker: Marker) -> str:
        """Return the key of a marker."""
        return f"{self.ids(marker.id)}/{marker.token}/{'o' if marker.name is None else f'f/{marker.name}'}"

    def read_marker(self, key: str, beginning: str) -> Marker:
        """Return what a key listed for `ids(beginning)` says."""
        rest, token, *kind = key.removeprefix(self.ids(beginning)).split("/", 3)
        return Marker(id=beginning + rest, token=token, name=kind[1] if kind[0] == "f" else None)

    @property
    def _session(self) -> str:
        if not self.place.session:
            return _EVERYBODY
        return f"s{hashlib.sha256(self.place.session.encode(errors='surrogatepass')).hexdigest()[:32]}"


def keys_of(prefix: str, scope: Scope) -> OwnerKeys:
    """Return the keys of exactly this owner."""
    return OwnerKeys(prefix, place_of(scope))


def new_token() -> str:
    """Return a token for an upload."""
    return secrets.token_hex(12)
