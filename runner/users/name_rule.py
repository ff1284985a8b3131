"""The user's name out of a claim: as it stands there, or refused. Never changed so that two could become one.

Nothing is folded, mapped or cut: a name that would need it to be unmistakable is refused. Leaving off an
ending that every name must have keeps names apart, since all lose the same.

Refused are characters that nobody sees, two spaces in a row, a spelling that Unicode has a usual form for,
and Latin, Greek, Cyrillic and their like mixed in one name, which only looks like another's. What is written
in one such script throughout is another user than it looks; a person who tells users apart by looking
sets `identity_pattern`.

Source: RFC 8265; RFC 8264, section 12.6; RFC 8266, section 2.3; Unicode UTS 39, sections 4 and 5; UAX 15;
UAX 44, `DerivedCoreProperties.txt`.
"""

import unicodedata
from dataclasses import dataclass

import re2

from runner.settings.parts import IdentitySettings

__all__ = ["NameRule"]

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters, marks and signs by their category, and yet nothing is drawn: `Default_Ignorable_Code_Point` of
# Unicode, as far as its categories are not among those above, and the blank of Braille.
_BLANK = frozenset(
    map(
        chr,
        (
            *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164),
            *(*range(0xFE00, 0xFE10), 0xFFA0, *range(0xE0100, 0xE01F0)),
        ),
    )
)
_ALIKE = frozenset({"LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "CHEROKEE", "COPTIC", "FULLWIDTH", "LISU"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """Rules for usernames.

    Attributes:
        pattern: What a name must match from its first to its last character; None for anything.
        suffix: How a name must end; it is left off. None for anything.
    """

    pattern: str | None = None
    suffix: str | None = None

    @classmethod
    def of(cls, settings: IdentitySettings) -> "NameRule":
        """Return the rule of settings."""
        return cls(
            pattern=settings.identity_pattern,
            suffix=settings.identity_suffix,
        )

    def name(self, claimed: str) -> str:
        """Return the name of the user whom a claim names.

        Raises:
            ValueError: It does not count; the message says why.
        """
        fault = _fault(claimed) or self._own_fault(claimed)
        if fault is not None:
            raise ValueError(fault)
        return claimed.removesuffix(self.suffix) if self.suffix else claimed

    def _own_fault(self, claimed: str) -> str | None:
        if self.suffix and not (claimed.endswith(self.suffix) and claimed != self.suffix):
            return f"it does not end with {self.suffix!r} (identity_suffix)"
        if self.pattern is not None and re2.fullmatch(self.pattern, claimed) is None:
            return "it does not match identity_pattern"
        return None


def _fault(claimed: str) -> str | None:
    if "  " in claimed:
        return "it has two spaces in a row, which a page shows as one"
    if claimed.isascii() and claimed.isprintable() and claimed == claimed.strip():
        return None
    if any(unicodedata.category(char) in _UNSEEN or char in _BLANK for char in claimed):
        return "it holds a character that cannot be seen"
    if claimed != claimed.strip():
        return "it begins or ends with a space"
    if unicodedata.normalize("NFKC", claimed) != claimed:
        return "it is not in its usual spelling (Unicode NFKC)"
    scripts = {unicodedata.name(char, "").partition(" ")[0] for char in claimed if char.isalpha()}
    if len(scripts & _ALIKE) > 1:
        return f"it mixes letters that look alike ({', '.join(sorted(scripts & _ALIKE)).lower()})"
    return None
