"""Key of a fleet. Only its holders can write records that hosts and nodes accept.

Redis carries the messages between hosts and nodes. A record that is not sealed with this key, or is sealed
for another receiver, is dropped. So another program that uses the same Redis, or has obtained its password,
can delete calls, but cannot forge any.

Source: RFC 2104; `docs/decisions/0044-fleet-over-redis.md`.
"""

import hashlib
import hmac
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from runner.errors import UsageError
from runner.system.private_files import read_private
from sandbox import strict_json

__all__ = ["LONG_BYTES", "FleetKey", "Forged"]

LONG_BYTES = 1 << 14
"""Size above which records are compressed: a result repeats its value as structured content and as text."""

_LEAST_BYTES = 32
_MOST_BYTES = 4096
_MAC_CHARS = 64
# A JSON string may contain a lone surrogate.
_ERRORS = "surrogatepass"


class Forged(ValueError):
    """A record has an invalid seal, is for another receiver, or is malformed."""


@dataclass(frozen=True, slots=True)
class FleetKey:
    """Seals and opens records.

    Attributes:
        record_max_bytes: Size limit of a record after decompression.
    """

    _secret: bytes = field(repr=False)
    record_max_bytes: int

    @classmethod
    def read(cls, path: Path, *, record_max_bytes: int) -> Self:
        """Return the key that a file holds.

        Raises:
            UsageError: There is no such file, others may read it, or it holds no key.
        """
        secret = read_private("fleet_key_file", path, most_bytes=_MOST_BYTES).strip()
        if len(secret) < _LEAST_BYTES:
            raise UsageError(
                f"fleet_key_file {path} holds {len(secret)} bytes, and a key has {_LEAST_BYTES} at least; "
                f"make one, the same for all machines: openssl rand -base64 33 > {path}"
            )
        return cls(secret, record_max_bytes)

    def seal(self, record: Mapping[str, Any], *, to: str) -> bytes:
        """Return a record as JSON, sealed for one receiver.

        Args:
            record: A JSON object.
            to: The receiver.
        """
        # UTF-8, since ASCII escapes would be up to three times as long.
        body = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode(errors=_ERRORS)
        if len(body) > LONG_BYTES:
            body = zlib.compress(body, zlib.Z_BEST_SPEED)
        return self._mac(body, to) + body

    def opened(self, sealed: bytes, *, to: str) -> dict[str, Any]:
        """Return the record that was sealed.

        Raises:
            Forged: The seal is invalid or for another receiver, or the record is not a JSON object.
        """
        mac, body = sealed[:_MAC_CHARS], sealed[_MAC_CHARS:]
        if not hmac.compare_digest(mac, self._mac(body, to)):
            raise Forged("a record without the seal of the fleet, or for another receiver")
        try:
            if self.is_compressed(sealed):
                # A longer record is truncated, which makes it invalid JSON.
                body = zlib.decompressobj().decompress(body, self.record_max_bytes)
            record = strict_json.loads(body.decode(errors=_ERRORS))
        except (ValueError, RecursionError, zlib.error) as error:
            raise Forged(f"a record that is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise Forged("a record that is not a JSON object")
        return record

    @staticmethod
    def is_compressed(sealed: bytes) -> bool:
        """Return whether the record is compressed, as long ones are."""
        return sealed[_MAC_CHARS : _MAC_CHARS + 1] != b"{"

    def _mac(self, body: bytes, to: str) -> bytes:
        mac = hmac.new(self._secret, f"{to}\0".encode(), hashlib.sha256)
        mac.update(body)
        return mac.hexdigest().encode()
