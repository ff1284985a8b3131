"""Base64 decoding and encoding, fast and in bounded memory.

Source: RFC 4648; rule N9 of the contract: either alphabet, blanks ignored, padding optional.
"""

import binascii
import os

import pybase64

__all__ = [
    "CHUNK_BYTES",
    "canonical",
    "decode",
    "decode_any",
    "encode",
    "encode_file",
    "strict",
    "url_body",
    "without_header",
]

# A multiple of three, so that only the last chunk is padded.
CHUNK_BYTES = 768 * 1024

_HEADER_MAX_CHARS = 256
_SHORT_CHARS = 64 * 1024
_UNUSUAL = "-_ \t\r\n"
_URL_SAFE_AND_BLANKS = str.maketrans({"-": "+", "_": "/", " ": None, "\t": None, "\r": None, "\n": None})


def canonical(text: object) -> str | None:
    """Return base64 `text` in the standard alphabet, padded, without blanks; None if it is not base64."""
    body = _canonical(text)
    return None if body is None or strict(body) is None else body


def decode_any(text: object) -> bytes | None:
    """Return the bytes of base64 in any form that `canonical` accepts; None if it is not base64."""
    body = _canonical(text)
    return None if body is None else strict(body)


def _canonical(text: object) -> str | None:
    if not isinstance(text, str) or not text.isascii():
        return None
    # Translating a large text takes longer than decoding it, and most need none.
    unusual = any(char in text for char in _UNUSUAL)
    body = text.translate(_URL_SAFE_AND_BLANKS) if unusual else text
    if len(body) % 4:
        if body.endswith("="):
            return None
        body += "=" * (-len(body) % 4)
    return body


def strict(text: str) -> bytes | None:
    """Decode base64 in the standard alphabet, padded; None if it is not.

    Not with pybase64, which releases the GIL: a thread that decodes many short texts would reacquire it each
    time before another thread wakes up, and starve the event loop for a second.
    """
    if len(text) % 4 or text.endswith("==="):
        return None
    try:
        if len(text) < _SHORT_CHARS:
            return binascii.a2b_base64(text, strict_mode=True)
        return pybase64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


def without_header(text: object) -> object:
    """Return the base64 of a `data:` URL; any other value unchanged."""
    body = url_body(text) if isinstance(text, str) else None
    return text if body is None else body


def url_body(text: str) -> str | None:
    """Return the body of a `data:` URL of base64, still percent-encoded; None if `text` is not such a URL."""
    if text[:5].lower() != "data:":
        return None
    comma = text.find(",", 0, _HEADER_MAX_CHARS)
    if comma < 0 or not text[:comma].lower().rstrip().endswith(";base64"):
        return None
    return text[comma + 1 :]


def decode(text: str) -> bytes:
    """Return the bytes of base64 from `canonical`."""
    return pybase64.b64decode(text, validate=True)


def encode(content: bytes) -> str:
    """Return bytes as base64."""
    return pybase64.b64encode_as_string(content)


def encode_file(fd: int, size: int) -> str:
    """Return `size` bytes from the start of `fd` as base64.

    Needs memory for the result and a few chunks.

    Raises:
        EOFError: The file is shorter than `size`.
    """
    text = ""
    for start in range(0, size, CHUNK_BYTES):
        # CPython grows a local string in place. Joining a list, StringIO.getvalue and decoding
        # a bytearray were measured: each needs twice the memory.
        text += pybase64.b64encode_as_string(_read(fd, min(CHUNK_BYTES, size - start), start))
    return text


def _read(fd: int, count: int, start: int) -> bytes:
    pieces: list[bytes] = []
    while count:
        piece = os.pread(fd, count, start)
        if not piece:
            raise EOFError(f"the file ended at byte {start} while it was read")
        pieces.append(piece)
        start += len(piece)
        count -= len(piece)
    return b"".join(pieces)
