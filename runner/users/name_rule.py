"""The username from a claim: unchanged or refused. No change may turn two names into one.

Nothing is folded, mapped or truncated: a name that would be ambiguous without it is refused. Removing a
suffix that every name must have keeps names distinct.

Refused are invisible characters, two spaces in a row, and text that is not in Unicode's normal form. So are
mixes of scripts such as Latin, Greek and Cyrillic, which imitate another name. A look-alike in a single
script is accepted, as a different user; an operator who identifies users by sight sets `identity_pattern`.

Source: RFC 8265; RFC 8264, section 12.6; RFC 8266, section 2.3; Unicode UTS 39, sections 4 and 5; UAX 15;
UAX 44, `DerivedCoreProperties.txt`.
"""

import unicodedata

import re2

__all__ = ["accepted_name"]

_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters, marks and signs by category that nevertheless are invisible: `Default_Ignorable_Code_Point` of
# Unicode, without the categories above, and the blank of Braille.
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


def accepted_name(claimed: str, *, pattern: str | None = None, suffix: str | None = None) -> str:
    """Return the name of the user in a claim.

    Args:
        claimed: The claim.
        pattern: RE2 pattern that it must match as a whole; None for any name.
        suffix: Required suffix, which is removed; None for no suffix.

    Raises:
        ValueError: The name is refused; the message has the reason.
    """
    if fault := _fault(claimed):
        raise ValueError(fault)
    if suffix and not (claimed.endswith(suffix) and claimed != suffix):
        raise ValueError(f"it does not end with {suffix!r} (identity_suffix)")
    if pattern is not None and re2.fullmatch(pattern, claimed) is None:
        raise ValueError("it does not match identity_pattern")
    return claimed.removesuffix(suffix) if suffix else claimed


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
