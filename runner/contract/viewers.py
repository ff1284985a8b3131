"""Mapping of a file's type and name to its viewer, if any.

Source: document 000, section 2 (showable defaults); rule D2 of the conformance cases; requirements S0-24,
S0-29 to S0-32 and S1-65.
"""

from collections.abc import Mapping
from typing import Any

from runner.contract.models import Viewer
from runner.formats.mime import DEFAULT_MIME, guess, is_text

__all__ = ["category_of", "suits", "viewer_of"]

_GENERIC = frozenset({"", DEFAULT_MIME, "binary/octet-stream", "application/x-binary", "application/unknown"})
_HTML = frozenset({"text/html", "application/xhtml+xml"})
# Names of text files that are missing in the tables of MIME types.
_TEXT_NAMES = frozenset(
    (
        *("cfg", "conf", "diff", "env", "ini", "lock", "log", "patch", "properties", "rst", "toml"),
        *("gql", "graphql", "ipynb", "less", "proto", "sass", "scss", "sql", "svelte", "vue"),
        *("bash", "clj", "cc", "cpp", "cs", "cxx", "dart", "go", "gradle", "hpp", "hs", "java"),
        *("jl", "jsx", "kt", "lua", "php", "ps1", "pyi", "r", "rb", "rs", "scala", "swift"),
        *("ts", "tsx", "vb", "zig", "zsh"),
    )
)
_TABLES = frozenset({"csv", "tsv", "parquet", "xlsx", "xls", "jsonl", "ndjson", "json", "feather", "arrow"})


def viewer_of(artifact: Mapping[str, Any]) -> Viewer | None:
    """Return the viewer for a file, or None: by its type or, if that is generic, by its name."""
    name = artifact.get("name")
    ending = _ending(name)
    mime = _plain(artifact.get("mime"))
    if mime not in _GENERIC:
        return _by_mime(mime)
    if ending in _TEXT_NAMES:
        return "code"
    guessed = guess(name) if isinstance(name, str) else ""
    return None if guessed in _GENERIC else _by_mime(guessed)


def suits(wish: Viewer, own: Viewer) -> bool:
    """Return whether a viewer can show what `own` shows; any text can be read as code or as data."""
    return wish == own or (wish in ("code", "data") and own in ("html", "code"))


def category_of(artifact: Mapping[str, Any]) -> str:
    """Return the default category of a file."""
    viewer = viewer_of(artifact)
    if viewer == "image":
        return "visualization"
    if _ending(artifact.get("name")) in _TABLES:
        return "dataset"
    return "report" if viewer in ("pdf", "html") else "other"


def _by_mime(mime: str) -> Viewer | None:
    if mime in _HTML:
        return "html"
    if mime == "application/pdf":
        return "pdf"
    if mime.startswith("image/"):
        return "image"
    return "code" if is_text(mime) else None


def _plain(mime: object) -> str:
    return mime.partition(";")[0].strip().lower() if isinstance(mime, str) else ""


def _ending(name: object) -> str:
    return name.rpartition(".")[2].lower() if isinstance(name, str) and "." in name else ""
