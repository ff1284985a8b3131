"""Facts of an arriving file: rows of a text table, pixels of an image.

The content is untrusted and is read in the host, so nothing is decoded or rendered: only headers are read
and line breaks counted; formats that need more are not supported. Every reader has a bound in bytes, never
in time, so that a file always gives the same facts. Facts beyond the bound, or malformed ones, are omitted.
Facts are unverified claims of the file, for people and models to read; no decision depends on them.

Source: requirement S1-43; `docs/decisions/0036-no-parsers-in-the-host.md`.
"""

import logging
from collections.abc import Mapping

from runner.formats.images import Read, image_size
from runner.formats.row_counts import count_rows

__all__ = ["facts"]

log = logging.getLogger(__name__)

_TABLES = {
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".tab": "text/tab-separated-values",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
}
_LINES = frozenset({"application/x-ndjson", "application/jsonl", "application/jsonlines"})
_TEXT_TABLES = frozenset(_TABLES.values()) | _LINES


def facts(read: Read, *, mime: str, name: str, size: int) -> Mapping[str, int | bool]:
    """Return the facts in a file's header; nothing if its format is unknown.

    Args:
        read: Returns a number of bytes of the file from an offset on, like `os.pread`.
        mime: Its MIME type.
        name: Its name, whose ending is used if the type is unspecific.
        size: Its length in bytes.

    Returns:
        `rows` (with `rows_estimated` if not all were counted), or `width` and `height`.
    """
    try:
        return _facts(read, _kind(mime, name), size)
    except OSError as error:
        # Facts are optional: the file is stored without them.
        log.warning("file facts not read", extra={"errno": error.errno})
        return {}


def _facts(read: Read, kind: str, size: int) -> Mapping[str, int | bool]:
    # Text has no signature, and a table may begin with the letters of one.
    if kind in _TEXT_TABLES:
        count = count_rows(read, size, quotes=kind not in _LINES, header=kind not in _LINES)
        return {} if count is None else count.facts()
    pixels = image_size(read)
    return {} if pixels is None else {"width": pixels[0], "height": pixels[1]}


def _kind(mime: str, name: str) -> str:
    dot, ending = name.rpartition(".")[1:]
    plain = mime.partition(";")[0].strip().lower()
    return plain if plain in _TEXT_TABLES else _TABLES.get((dot + ending).lower(), plain)
