"""Creation of the store that the settings name."""

from runner.settings.execution import LibrarySettings
from runner.store.local.blobs import LocalBlobs
from runner.store.noop import NoStore
from runner.store.protocol import ArtifactStore
from runner.store.retention import RetentionRules
from runner.store.spool import Spool, SpoolingStore
from runner.store.store import BlobStore

__all__ = ["open_store"]


def open_store(settings: LibrarySettings, rules: RetentionRules) -> ArtifactStore:
    """Return the store of `settings.store`; no request is sent to a server yet.

    A store in S3 is wrapped in a `SpoolingStore`; a server runs its `run()` in the background.

    Args:
        settings: The effective settings.
        rules: Retention rules.
    """
    match settings.store_scheme:
        case "s3":
            # Only here: boto3 takes a while to import.
            from runner.store.s3.bucket import s3_address  # noqa: PLC0415
            from runner.store.s3.store import S3Store  # noqa: PLC0415

            store, spool = S3Store(s3_address(settings), rules=rules), Spool(settings.spool_path)
            # Other hosts of a fleet cannot find a spooled file: its put fails, and it is sent later.
            return SpoolingStore(store, spool, "fail" if settings.is_fleet else "spool", quota=rules.files)
        case "memory":
            return BlobStore(rules=rules)
        case "none":
            return NoStore()
        case _:
            return BlobStore(LocalBlobs(settings.store_path), rules)
