"""A look at a local store that changes nothing: records that cannot be read, and bytes without a record."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.store.local.blobs import LocalBlobs
from runner.store.local.conversion import is_old
from runner.store.store import BlobStore

__all__ = ["StoreFinding", "examine"]

_APART = "docs/operating.md describes what they are, how to get files back and how to remove them"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFinding:
    """One thing that was looked at.

    Attributes:
        name: Its subject.
        detail: What was found.
        cure: What to do; None: all is well.
    """

    name: str
    detail: str
    cure: str | None = None


def examine(root: Path) -> list[StoreFinding]:
    """Look at a store.

    Args:
        root: Its folder; where there is none yet nothing is found.

    Raises:
        OSError: It cannot be read.
    """
    return list(_findings(root))


def _findings(root: Path) -> Iterator[StoreFinding]:
    if is_old(root):
        cure = "runner doctor --repair, or the next start of a server, converts them"
        yield StoreFinding(name="records", detail="they are those of an earlier version", cure=cure)
        return
    store = BlobStore(LocalBlobs(root))
    unread = store.unread()
    for key in unread:
        cure = "restore it from a backup, or remove it and put the file again"
        yield StoreFinding(name="records", detail=f"{key} cannot be read", cure=cure)
    if root.exists() and not unread:
        yield StoreFinding(name="records", detail="sound")
    apart: dict[str, list[int]] = {}
    for blob in store.orphans():
        apart.setdefault("/".join(blob.key.split("/")[:3]), []).append(blob.size)
    for folder, sizes in apart.items():
        detail = f"{folder}: {len(sizes)} files of {sum(sizes)} bytes that no record knows"
        yield StoreFinding(name="bytes", detail=detail, cure=_APART)
