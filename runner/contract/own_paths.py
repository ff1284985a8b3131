"""The host's own paths, which no client needs: in what clients are told, a word in braces stands for each.

A path in an error of ours, of a library or of a tool says where the state, the store or the tool files lie.
An operator needs that, and finds it in the log; a client learns which setting or folder is meant, as
`{state_dir}`. Homes stay as they are: callers and tools name them, and so do paths that are no part of the
installation. Of a traceback, our own frames are left out, since no author can do anything about them.

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
# A system's Python lies beside all other programs, whose paths say nothing.
_OF_THE_SYSTEM = frozenset({"/", "/usr", "/usr/local"})
# What a path goes on with, up to what ends it in a sentence, in quotes or in JSON.
_MORE = r"[^\s'\"<>:,;)\]\\]*"
_NAME = r"[^\s'\"<>:,;)\]\\/]*"
_REST = f"(?:/{_MORE})?"
_FRAME = re.compile(r'^ +File "(?P<file>[^"\n]+)", line [^\n]*\n?(?:^    [^\n]*\n?)*', re.MULTILINE)
_MOST_LOGGED = 20


@dataclass(frozen=True, slots=True)
class OwnPaths:
    """What stands for which path.

    Attributes:
        words: Pairs of a path and the word that stands for it, and for all below it if `whole`.
        homes: The folder of homes, what lies below which is the caller's.
    """

    words: tuple[tuple[str, str, bool], ...]
    homes: str
    _pattern: re.Pattern[str] = field(init=False, repr=False)
    _meant: dict[str, str] = field(init=False, repr=False)
    _needles: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        meant, parts = dict[str, str](), [(len(self.homes), self._home())]
        for path, word, whole in self.words:
            # What is told inside JSON text has other characters than these escaped.
            for written in {path, json.dumps(path)[1:-1]}:
                meant.setdefault(written, word)
                parts.append(
                    (len(written), f"(?P<p{len(parts)}>{re.escape(written)})(?![\\w-])" + _REST * whole)
                )
        # The longest first, and a home before a folder that is that of homes too.
        parts.sort(key=lambda part: -part[0])
        object.__setattr__(self, "_meant", meant)
        object.__setattr__(self, "_pattern", re.compile("|".join(part for _length, part in parts)))
        object.__setattr__(self, "_needles", (*meant, f"/{HIDDEN}"))

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
        kept = {"/", "/tmp", str(settings.homes)}  # noqa: S108 - the same
        words = [
            (str(there), word, whole)
            for path, word, whole in named
            for there in dict.fromkeys((path.absolute(), path.resolve()))
            if str(there) not in kept or word == "{homes}"
        ]
        return cls(tuple(words), str(settings.homes))

    def told(self, value: Any) -> Any:
        """Return a JSON value as clients are told it; the log gets what was left out."""
        left_out = dict[str, None]()
        said = self._told(value, left_out)
        if left_out:
            log.warning("kept from a client", extra={"left_out": list(left_out)[:_MOST_LOGGED]})
        return said

    def without(self, value: Any) -> Any:
        """Return a JSON value as clients are told it; the log has what was left out already."""
        return self._told(value, {})

    def _told(self, value: Any, left_out: dict[str, None]) -> Any:
        if isinstance(value, str):
            return self._text(value, left_out)
        if isinstance(value, Mapping):
            return {key: self._told(item, left_out) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._told(item, left_out) for item in value]
        return value

    def _text(self, text: str, left_out: dict[str, None]) -> str:
        # Most texts name no path, and some have many megabytes.
        if not any(needle in text for needle in self._needles):
            return text

        def word(found: re.Match[str]) -> str:
            if found.lastgroup is None:
                return found[0]
            left_out[found[0]] = None
            return "{scratch}" if found.lastgroup == "hidden" else self._meant[found[found.lastgroup]]

        def frame(found: re.Match[str]) -> str:
            if not found["file"].startswith(_OUR_PACKAGES):
                return found[0]
            left_out[found[0].strip()] = None
            return ""

        return self._pattern.sub(word, _FRAME.sub(frame, text))

    def _home(self) -> str:
        root = re.escape(self.homes.rstrip("/"))
        # What lies in a scratch folder is its server's, which names it to its callers.
        return f"(?P<hidden>{root}/{re.escape(HIDDEN)}){_NAME}|{root}/{_MORE}"


def _python() -> Iterator[str]:
    """Yield where Python and what is installed for it lies."""
    yield from (prefix for prefix in (sys.prefix, sys.base_prefix) if prefix not in _OF_THE_SYSTEM)
    paths = sysconfig.get_paths()
    yield from (paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
