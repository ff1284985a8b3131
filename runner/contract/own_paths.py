"""Redaction of the host's own paths in texts for clients: a word in braces replaces each.

A path in an error of ours, of a library or of a tool reveals where the state, the store or the tool files
are. The operator finds it in the log; a client gets the name of the setting or folder instead, such as
`{state_dir}`. Homes stay, since callers and tools name them, and so do paths outside the installation. Our
own frames are removed from tracebacks, since an author cannot fix anything there.

Source: `docs/cli.md`, "Paths in errors".
"""

import json
import logging
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from runner.settings.execution import ExecutionSettings
from runner.system.own_folders import HIDDEN

__all__ = ["OwnPaths"]

log = logging.getLogger(__name__)

_OUR_CODE = Path(__file__).parents[2]
_OUR_PACKAGES = tuple(str(_OUR_CODE / name) for name in ("runner", "sandbox"))
# A system's Python is installed beside all other programs, whose paths reveal nothing.
_OF_THE_SYSTEM = frozenset({"/", "/usr", "/usr/local"})
# The rest of a path, up to the character that ends it in a sentence, in quotes or in JSON.
_MORE = r"[^\s'\"<>:,;)\]\\]*"
_NAME = r"[^\s'\"<>:,;)\]\\/]*"
_REST = f"(?:/{_MORE})?"
_FRAME = re.compile(r'^ +File "(?P<file>[^"\n]+)", line [^\n]*\n?(?:^    [^\n]*\n?)*', re.MULTILINE)
_MOST_LOGGED = 20


@dataclass(frozen=True, slots=True)
class OwnPaths:
    """Paths with the words that replace them.

    Attributes:
        words: Triples: a path, its replacement, and whether everything below the path is replaced, too.
        homes: The folder of homes; paths below it belong to callers.
    """

    words: tuple[tuple[str, str, bool], ...]
    homes: str
    _pattern: re.Pattern[str] = field(init=False, repr=False)
    _word_of: dict[str, str] = field(init=False, repr=False)
    _needles: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        word_of, parts = dict[str, str](), [(len(self.homes), self._home())]
        for path, word, whole in self.words:
            # Inside JSON text some characters of a path are escaped.
            for written in {path, json.dumps(path)[1:-1]}:
                word_of.setdefault(written, word)
                parts.append(
                    (len(written), f"(?P<p{len(parts)}>{re.escape(written)})(?![\\w-])" + _REST * whole)
                )
        # The longest first, and homes before any equal folder.
        parts.sort(key=lambda part: -part[0])
        object.__setattr__(self, "_word_of", word_of)
        object.__setattr__(self, "_pattern", re.compile("|".join(part for _length, part in parts)))
        object.__setattr__(self, "_needles", (*word_of, f"/{HIDDEN}"))

    @classmethod
    def of(cls, settings: ExecutionSettings, files: Iterable[Path] = ()) -> Self:
        """Return the paths of one installation.

        Args:
            settings: The effective settings.
            files: The files that are served, or that servers are started from.
        """
        named = [
            *((path, f"{{{name}}}", True) for name, path in settings.named_private_paths),
            *((path, f"{{tool_folder}}/{path.name}", False) for path in files),
            *((path.parent, "{tool_folder}", False) for path in files),
            *((Path(path), "{python}", False) for path in _python()),
            (_OUR_CODE, "{toolcell}", False),
        ]
        if settings.homes != Path("/tmp"):  # noqa: S108 - where homes are, as everybody knows
            named.append((settings.homes, "{homes}", False))
        not_redacted = {"/", "/tmp", str(settings.homes)}  # noqa: S108 - as above
        words = [
            (str(there), word, whole)
            for path, word, whole in named
            for there in dict.fromkeys((path.absolute(), path.resolve()))
            if str(there) not in not_redacted or word == "{homes}"
        ]
        return cls(tuple(words), str(settings.homes))

    def redact(self, value: Any) -> Any:
        """Return a JSON value without the paths, and log them."""
        left_out = dict[str, None]()
        redacted = self._redact(value, left_out)
        if left_out:
            log.warning("paths redacted", extra={"left_out": list(left_out)[:_MOST_LOGGED]})
        return redacted

    def redact_unlogged(self, value: Any) -> Any:
        """Return a JSON value without the paths, which are in the log already."""
        return self._redact(value, {})

    def _redact(self, value: Any, left_out: dict[str, None]) -> Any:
        if isinstance(value, str):
            return self._text(value, left_out)
        if isinstance(value, Mapping):
            return {key: self._redact(item, left_out) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact(item, left_out) for item in value]
        return value

    def _text(self, text: str, left_out: dict[str, None]) -> str:
        # Most texts name no path, and some have many megabytes.
        if not any(needle in text for needle in self._needles):
            return text

        def word(found: re.Match[str]) -> str:
            if found.lastgroup is None:
                return found[0]
            left_out[found[0]] = None
            return "{scratch}" if found.lastgroup == "hidden" else self._word_of[found[found.lastgroup]]

        def frame(found: re.Match[str]) -> str:
            if not found["file"].startswith(_OUR_PACKAGES):
                return found[0]
            left_out[found[0].strip()] = None
            return ""

        return self._pattern.sub(word, _FRAME.sub(frame, text))

    def _home(self) -> str:
        root = re.escape(self.homes.rstrip("/"))
        # A server may report files of its scratch folder to its callers.
        return f"(?P<hidden>{root}/{re.escape(HIDDEN)}){_NAME}|{root}/{_MORE}"


def _python() -> Iterator[str]:
    """Yield the folders of Python and its installed packages."""
    yield from (prefix for prefix in (sys.prefix, sys.base_prefix) if prefix not in _OF_THE_SYSTEM)
    paths = sysconfig.get_paths()
    yield from (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
