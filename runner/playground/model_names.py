"""Names of tools as endpoints of models take them, and back.

MCP lets a tool be called almost anything; both APIs take letters, digits, `_` and `-`, 64 at most. A name
that fits stays as it is. Another gets one that fits and that no other tool has.

Source: OpenAI API reference, "Create chat completion", `tools.function.name`; Anthropic API reference,
"Messages", `tools.name`; MCP 2025-11-25, "Tool Names".
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["ModelNames"]

_FITS = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ODD = re.compile(r"[^a-zA-Z0-9_-]")
_KEPT = 51
_MARK = 12


@dataclass(frozen=True, slots=True)
class ModelNames:
    """The names of the tools of one turn.

    Attributes:
        theirs: By name of the tool: what the model is told that it is called.
    """

    theirs: Mapping[str, str]
    _ours: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ours", {theirs: ours for ours, theirs in self.theirs.items()})

    @classmethod
    def of(cls, names: Iterable[str]) -> "ModelNames":
        """Give each tool a name that fits; the same set of names gives the same."""
        known = sorted(set(names))
        theirs = {name: name for name in known if _FITS.fullmatch(name)}
        taken = set(theirs)
        for name in known:
            if name not in theirs:
                theirs[name] = _made(name, taken)
                taken.add(theirs[name])
        return cls(theirs)

    def to_model(self, name: str) -> str:
        """Return what the model is told that a tool is called."""
        return self.theirs[name]

    def from_model(self, name: str) -> str:
        """Return the tool that the model means; a name that nobody gave it stays as it is."""
        return self._ours.get(name, name)

    def changed(self) -> dict[str, str]:
        """Return the names that are others for the model."""
        return {ours: theirs for ours, theirs in self.theirs.items() if ours != theirs}


def _made(name: str, taken: set[str]) -> str:
    stem = _ODD.sub("_", name)[:_KEPT]
    salt = 0
    while True:
        mark = hashlib.sha256(f"{salt}:{name}".encode()).hexdigest()[:_MARK]
        made = f"{stem}_{mark}"
        if made not in taken:
            return made
        salt += 1
