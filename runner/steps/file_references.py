"""Put references where a tool's own value names the files it returned, by path or by content.

Source: requirement S2-15.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FileReferences"]

# The only places where the contract, in any version, holds base64.
_CONTENT_KEYS = ("b64", "returned_file_contents")
# Base64 of this length stands nowhere by chance: whatever holds it echoes the file.
_ECHO_MIN_CHARS = 16
# Of content that begins with a slash only what JPEG, MP3 and UTF-16 begin with: the rest are paths.
_CONTENT = re.compile(r"(?:[A-Za-z0-9+_-]|/9j/|//)[A-Za-z0-9+/_\s=-]*")
_HEAD_CHARS = 256
# As many are each looked for in each text; of more, by their beginnings, in one pass.
_FEW = 8


@dataclass(frozen=True, slots=True)
class FileReferences:
    """What stands for what.

    Attributes:
        uris: The string by which a tool gave a file → the file's URI.
    """

    uris: Mapping[str, str]
    _by_beginning: Mapping[str, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        lengths: dict[str, set[int]] = {}
        for origin in self.uris:
            if len(origin) >= _ECHO_MIN_CHARS and _CONTENT.fullmatch(origin[:_HEAD_CHARS]):
                lengths.setdefault(origin[:_ECHO_MIN_CHARS], set()).add(len(origin))
        # The longest first.
        by_beginning = {beginning: sorted(found, reverse=True) for beginning, found in lengths.items()}
        object.__setattr__(self, "_by_beginning", by_beginning)

    @classmethod
    def of(cls, pairs: Iterable[tuple[str | None, str]]) -> "FileReferences":
        """Make them from pairs of origin and URI; files without an origin are left out."""
        return cls({origin: uri for origin, uri in pairs if origin})

    def value(self, value: Any, *, contents: bool, key: str = "") -> Any:
        """Return a JSON value with references in place of paths; a copy where there is any file.

        Args:
            value: Any JSON value.
            contents: Whether base64 is replaced as well.
            key: The object key under which it stands.
        """
        if not self.uris:
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
        if not self.uris:
            return text
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if isinstance(said, dict | list):
            replaced = self.value(said, contents=True)
            same = replaced == said
            return text if same else json.dumps(replaced, ensure_ascii=False, separators=(",", ":"))
        for origin in sorted(self._paths(), key=len, reverse=True):
            text = text.replace(origin, self.uris[origin])
        return self._unechoed(text)

    def _string(self, text: str, *, contents: bool, key: str) -> str:
        if key in _CONTENT_KEYS:
            return self.uris.get(text, text) if contents else text
        # Elsewhere a short text could equal a relative path or somebody's base64 by chance.
        if key == "path" or text.startswith("/"):
            text = self.uris.get(text, text)
        return self._unechoed(text) if contents else text

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
        """Return the beginnings of contents that a text may hold."""
        known = self._by_beginning
        if len(text) < _ECHO_MIN_CHARS or len(known) <= _FEW:
            return known
        pieces = (text[at : at + _ECHO_MIN_CHARS] for at in range(len(text) - _ECHO_MIN_CHARS + 1))
        found = {piece for piece in pieces if piece in known}
        return [beginning for beginning in known if beginning in found] if found else ()

    def _paths(self) -> list[str]:
        return [origin for origin in self.uris if origin.startswith("/")]
