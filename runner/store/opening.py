"""From settings to the store that they name."""

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from runner.settings.execution import LibrarySettings
from runner.store.local.store import LocalStore
from runner.store.memory import MemoryStore
from runner.store.noop import NoStore
from runner.store.protocol import ArtifactStore
from runner.store.retention import RetentionRules
from runner.store.spool import Spool, SpoolingStore

if TYPE_CHECKING:
    from runner.store.s3.bucket import BucketAddress

__all__ = ["open_store", "s3_address"]


def open_store(settings: LibrarySettings, rules: RetentionRules) -> ArtifactStore:
    """Return the store of `settings.store`; nothing is asked of a server yet.

    A store in S3 comes as a `SpoolingStore`; a server runs its `run()` beside everything else.

    Args:
        settings: The effective settings.
        rules: What may be kept.
    """
    match settings.store_scheme:
        case "s3":
            # Only here: boto3 takes a while to import.
            from runner.store.s3.store import S3Store  # noqa: PLC0415

            store, spool = S3Store(s3_address(settings), rules=rules), Spool(settings.spool_path)
            # What waits on this machine, the others of a fleet do not find: the call says so, and goes on.
            return SpoolingStore(store, spool, "fail" if settings.is_fleet else "spool", quota=rules.files)
        case "memory":
            return MemoryStore(rules)
        case "none":
            return NoStore()
        case _:
            return LocalStore(settings.store_path, rules)


def s3_address(settings: LibrarySettings) -> "BucketAddress":
    """Return the address of a store in S3."""
    # Only here: see above.
    from runner.store.s3.bucket import BucketAddress, configured_endpoint  # noqa: PLC0415

    parts = urlsplit(settings.store)
    prefix = parts.path.strip("/")
    return BucketAddress(
        bucket=parts.netloc,
        prefix=f"{prefix}/" if prefix else "",
        endpoint=configured_endpoint(),
    )
