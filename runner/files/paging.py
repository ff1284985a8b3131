"""Pages of a list of files, which stay consistent while files are added and removed.

A page continues after a name, not after a number of files. So changes before it shift nothing, no file is
listed twice, and no file is skipped that exists from the first page to the last.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

from runner.store.protocol import Record

__all__ = ["MOST", "CursorError", "Page", "page"]

MOST = 1000
"""Most files of a page."""


class CursorError(ValueError):
    """The cursor is not from an earlier page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some files of a list.

    Attributes:
        files: The files, by name.
        next: The cursor of the next page; None on the last one.
    """

    files: Sequence[Record]
    next: str | None = None


def page(files: Sequence[Record], *, limit: int | None = None, cursor: str | None = None) -> Page:
    """Return a page of `files`; without a limit, all that follow the cursor.

    Args:
        files: All files.
        limit: Most files of it, from 1 to `MOST`.
        cursor: `next` of the previous page; None for the first one.

    Raises:
        CursorError: The cursor is malformed.
    """
    ordered = sorted(files, key=_place)
    if cursor is not None:
        behind = _read(cursor)
        ordered = [file for file in ordered if _place(file) > behind]
    if limit is None or len(ordered) <= limit:
        return Page(files=ordered)
    return Page(files=ordered[:limit], next=_written(_place(ordered[limit - 1])))


def _place(file: Record) -> tuple[str, str]:
    # Two sessions of one user may have files of one name.
    return file.shown, file.id


def _written(place: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).rstrip(b"=").decode("ascii")


def _read(cursor: str) -> tuple[str, str]:
    try:
        name, id_ = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, TypeError, RecursionError) as error:
        raise CursorError("the cursor is not one that a page has named as `next`") from error
    if not (isinstance(name, str) and isinstance(id_, str)):
        raise CursorError("the cursor is not one that a page has named as `next`")
    return name, id_
