"""What the files of each owner take up, as the bucket listed it a moment ago.

Listing everything that an owner has, at each put, would take longer than the put. So a listing is good for
half a minute: what this host adds meanwhile is counted in, and what it removes lets the listing go. Nobody
is refused by an old listing. What other hosts add in that time is not seen, so a quota can be exceeded by
what they take for one user in half a minute, as it can by files that are put at the same time.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from runner.errors import CallError, Code
from runner.store.retention import Quota, check_quota
from runner.store.s3.bucket import Bucket
from runner.store.s3.keys import OwnerKeys

__all__ = ["FRESH_S", "S3Usage"]

FRESH_S = 30.0

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class S3Usage:
    """What owners have. All methods may be called from any thread.

    Attributes:
        bucket: Where it is.
        clock: The present time in seconds.
    """

    bucket: Bucket
    clock: Clock = time.monotonic
    _lists: dict[str, "_Listing"] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self, keys: OwnerKeys, size: int, quota: Quota, *, sha256: str | None = None) -> None:
        """Refuse a file that does not fit; equal content counts once, where its digest is known.

        Raises:
            CallError: `E_FILE_TOO_LARGE` or `E_QUOTA`; `E_STORE`: the server failed.
        """
        try:
            check_quota(size, self._listing(keys).used(without=sha256), quota)
        except CallError as error:
            if error.code is not Code.E_QUOTA:
                raise
            # Another host may have removed something meanwhile.
            self.forget(keys)
            check_quota(size, self._listing(keys).used(without=sha256), quota)

    def is_new(self, keys: OwnerKeys, size: int, quota: Quota) -> bool:
        """Say whether a file is new by its length alone, and fits, as far as is known."""
        listing = self._listing(keys)
        return size not in listing.lengths and listing.used(without=None) + size <= quota.max_user_bytes

    def lengths(self, keys: OwnerKeys) -> list[int]:
        """Return the length of each content."""
        return list(self._listing(keys).sizes.copy().values())

    def add(self, keys: OwnerKeys, sha256: str, size: int) -> None:
        """Count a file in that was put."""
        with self._lock:
            if keys.area in self._lists:
                self._lists[keys.area].sizes[sha256] = size

    def forget(self, keys: OwnerKeys) -> None:
        """Look anew the next time: something was removed."""
        with self._lock:
            self._lists.pop(keys.area, None)

    def _listing(self, keys: OwnerKeys) -> "_Listing":
        now = self.clock()
        with self._lock:
            for area in [area for area, held in self._lists.items() if now - held.at > FRESH_S]:
                del self._lists[area]
            if keys.area in self._lists:
                return self._lists[keys.area]
        listing = self._listed(keys, now)
        with self._lock:
            return self._lists.setdefault(keys.area, listing)

    def _listed(self, keys: OwnerKeys, now: float) -> "_Listing":
        found = {keys.token_of(item.key): item.size for item in self.bucket.list(keys.bytes_of_files)}
        listed = (keys.content_of(item.key) for item in self.bucket.list(keys.all_ids)) if found else ()
        marked = (content for content in listed if content is not None)
        digests = dict(marked)
        # What has no marker yet, or no more, takes up room all the same.
        return _Listing(now, {digests.get(token, token): size for token, size in found.items()})


@dataclass(frozen=True, slots=True)
class _Listing:
    """Lengths by digest, or by token where no digest is known, and when they were asked for."""

    at: float
    sizes: dict[str, int]

    @property
    def lengths(self) -> set[int]:
        """Return the lengths that there are."""
        # A copy, made in one step: other threads add to it.
        return set(self.sizes.copy().values())

    def used(self, *, without: str | None) -> int:
        """Return what all content takes up, but for one."""
        return sum(size for digest, size in self.sizes.copy().items() if digest != without)
