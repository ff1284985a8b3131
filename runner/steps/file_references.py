"""Replacement of paths and contents of returned files in a tool's own value by references.

Source: requirement S2-15.
"""

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

__all__ = ["FileReferences"]

# The only places where the contract, in any version, holds base64.
_CONTENT_KEYS = ("b64", "returned_file_contents")
# Equal base64 of this length is not a coincidence: the text echoes the file.
_ECHO_MIN_CHARS = 16
# Of strings with a leading slash, only the beginnings of JPEG, MP3 and UTF-16 are content; others are paths.
_CONTENT = re.compile(r"(?:[A-Za-z0-9+_-]|/9j/|//)[A-Za-z0-9+/_\s=-]*")
_HEAD_CHARS = 256
# A path next to one of these characters is part of another path.
_BEFORE = re.compile(r"[\w.~%/-]\Z", re.ASCII)
_BEHIND = re.compile(r"[\w/~%-]|\.\w", re.ASCII)
_URI = re.compile(r"(?:file|sandbox):(?://(?:localhost)?)?(/[^\s\"'`<>]+)", re.IGNORECASE)
_SCHEME = "file://"
_CLOSING = ".,;:!?)]}*_"
# Up to so many are searched for one by one; more are found by their beginnings, in one pass.
_FEW = 8


@dataclass(frozen=True, slots=True)
class FileReferences:
    """Mapping from paths to references.

    Attributes:
        uris: The string with which a tool returned a file → the file's URI.
        places: The absolute path of a file → its URI.
    """

    uris: Mapping[str, str]
    places: Mapping[str, str] = field(default_factory=dict)
    _root: str = field(init=False, repr=False, compare=False)
    _lengths: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _by_beginning: Mapping[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths: dict[str, set[int]] = {}
        for origin in self.uris:
            if len(origin) >= _ECHO_MIN_CHARS and _CONTENT.fullmatch(origin[:_HEAD_CHARS]):
                lengths.setdefault(origin[:_ECHO_MIN_CHARS], set()).add(len(origin))
        # The longest first.
        by_beginning = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
        object.__setattr__(self, "_by_beginning", by_beginning)
        common = posixpath.commonprefix(list(self.places))
        object.__setattr__(self, "_root", common[: common.rfind("/") + 1])
        object.__setattr__(self, "_lengths", tuple(sorted({len(path) for path in self.places}, reverse=True)))

    @classmethod
    def of(
        cls, pairs: Iterable[tuple[str | None, str]], places: Mapping[str, str] | None = None
    ) -> "FileReferences":
        """Return the mapping for pairs of origin and URI; pairs without an origin are left out."""
        return cls({origin: uri for origin, uri in pairs if origin}, places or {})

    def value(self, value: Any, *, contents: bool, key: str = "") -> Any:
        """Return a JSON value with references in place of paths; a copy if there are any files.

        Args:
            value: Any JSON value.
            contents: Whether base64 is replaced as well.
            key: The object key of the value.
        """
        if not self.uris and not self.places:
            return value
        if isinstance(value, str):
            return self._string(value, contents=contents, key=key)
        if isinstance(value, dict):
            return {name: self.value(item, contents=contents, key=name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, contents=contents, key=key) for item in value]
        return value

    def text(self, text: str) -> str:
        """Return a text for people or models with references in place of paths and base64."""
        if not self.uris and not self.places:
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict | list):
            replaced = self.value(value, contents=True)
            same = replaced == value
            return text if same else json.dumps(replaced, ensure_ascii=False, separators=(",", ":"))
        return self._unechoed(self._placed(text))

    def _string(self, text: str, *, contents: bool, key: str) -> str:
        if key in _CONTENT_KEYS:
            return self.uris.get(text, text) if contents else text
        # Elsewhere a short text could equal a relative path or somebody's base64 by chance.
        if key == "path" or text.startswith("/"):
            text = self.uris.get(text, text)
        text = self._placed(text)
        return self._unechoed(text) if contents else text

    def _placed(self, text: str) -> str:
        """Return a text with references in place of the paths and `file:` URIs of stored files."""
        if not self.places:
            return text
        whole = self._at(text) if text.startswith("/") else None
        if whole is not None:
            return whole
        if "file:" in text or "sandbox:" in text or "FILE:" in text:
            text = _URI.sub(self._of_uri, text)
        parts, done, at = list[str](), 0, text.find(self._root)
        while at >= 0:
            # Some tools put a path with blanks into a URI without quoting it.
            scheme = len(_SCHEME) if text[max(0, at - len(_SCHEME)) : at].lower() == _SCHEME else 0
            is_inside = not scheme and _BEFORE.search(text, max(0, at - 1), at)
            end = 0 if is_inside else self._end(text, at)
            if end:
                parts += [text[done : at - scheme], self.places[text[at:end]]]
                done = end
            at = text.find(self._root, max(end, at + 1))
        return "".join([*parts, text[done:]]) if parts else text

    def _end(self, text: str, at: int) -> int:
        """Return the end of the longest file path that begins at an index of a text; 0 if none does."""
        ends = (at + length for length in self._lengths)
        return next((end for end in ends if text[at:end] in self.places and not _BEHIND.match(text, end)), 0)

    def _at(self, path: str) -> str | None:
        known = self.places.get(path)
        return self.places.get(posixpath.normpath(path)) if known is None else known

    def _of_uri(self, match: re.Match[str]) -> str:
        path = match[1]
        while (uri := self._at(unquote(path))) is None and path[-1:] in _CLOSING and path:
            path = path[:-1]
        return match[0] if uri is None else uri + match[1][len(path) :]

    def _unechoed(self, text: str) -> str:
        """Return a text with references where it repeats the base64 of a file."""
        for beginning in self._beginnings(text):
            parts, done, at = list[str](), 0, text.find(beginning)
            while at >= 0:
                known = (text[at : at + length] for length in self._by_beginning[beginning])
                origin = next((piece for piece in known if piece in self.uris), "")
                if origin:
                    parts += [text[done:at], self.uris[origin]]
                    done = at + len(origin)
                at = text.find(beginning, max(done, at + 1))
            text = "".join([*parts, text[done:]]) if parts else text
        return text

    def _beginnings(self, text: str) -> Iterable[str]:
        """Return the beginnings of contents that may occur in a text."""
        known = self._by_beginning
        if len(text) < _ECHO_MIN_CHARS or len(known) <= _FEW:
            return known
        pieces = (text[at : at + _ECHO_MIN_CHARS] for at in range(len(text) - _ECHO_MIN_CHARS + 1))
        found = {piece for piece in pieces if piece in known}
        return [beginning for beginning in known if beginning in found] if found else ()
