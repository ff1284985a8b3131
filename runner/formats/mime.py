"""MIME types from names and back, independent of the machine.

The system's own tables are not used: a result must not depend on installed software.
"""

import mimetypes
import re

__all__ = ["DEFAULT_MIME", "extension", "guess", "is_mime", "is_text"]

DEFAULT_MIME = "application/octet-stream"

_WELL_FORMED = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+(?:\s*;[\x20-\x7e]*)?")

_TEXT_FORMATS = (
    "json|json5|json-seq|jsonl|jsonlines|ndjson|xml|yaml|toml|csv|markdown|rtf|subrip|sql|graphql|tex|latex|"
    "javascript|ecmascript|typescript|python|sh|shellscript|csh|perl|php|httpd-php|ruby"
)
_TEXT = re.compile(
    rf"text/.+|(?!image/)[^/]+/.+\+(?:json|xml|yaml)|application/(?:x-)?(?:{_TEXT_FORMATS})", re.IGNORECASE
)

_OFFICE = "application/vnd.openxmlformats-officedocument."
_ADDED = {
    ".docx": _OFFICE + "wordprocessingml.document",
    ".xlsx": _OFFICE + "spreadsheetml.sheet",
    ".pptx": _OFFICE + "presentationml.presentation",
    ".parquet": "application/vnd.apache.parquet",
    ".jsonl": "application/x-ndjson",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".md": "text/markdown",
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".ogg": "audio/ogg",
}


def _table() -> mimetypes.MimeTypes:
    table = mimetypes.MimeTypes()
    for suffix, mime in _ADDED.items():
        table.add_type(mime, suffix)
    return table


_TABLE = _table()


def is_mime(value: object) -> bool:
    """Return whether `value` is a well-formed MIME type; a line break never is."""
    return isinstance(value, str) and len(value) <= 255 and _WELL_FORMED.fullmatch(value) is not None


def is_text(mime: str) -> bool:
    """Return whether content of this type is text that a model can read, such as JSON."""
    return _TEXT.fullmatch(mime.partition(";")[0].strip()) is not None


def guess(name: str) -> str:
    """Return the MIME type that the name of a file suggests."""
    suffix = name.rpartition(".")[2].lower()
    return _TABLE.types_map[True].get(f".{suffix}", DEFAULT_MIME)


def extension(mime: str) -> str:
    """Return the usual file extension for `mime`, with its dot, or an empty text."""
    return _TABLE.guess_extension(mime.partition(";")[0].strip()) or ""
