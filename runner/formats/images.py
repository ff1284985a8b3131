"""Size of an image from its header: PNG, GIF, JPEG, WebP, BMP and TIFF. No pixel is decoded.

The image is untrusted, and this runs in the host: only fields of fixed place and length are read, in a
bounded number of steps, and no allocation depends on a size in the image (decision 36).

Source: PNG 3rd edition, 11.2.1; GIF89a, 18; ITU T.81, B.1.1 and B.2.2; RFC 9649; Windows
`BITMAPINFOHEADER`; TIFF 6.0, section 2.
"""

import struct
from collections.abc import Callable

__all__ = ["Read", "image_size"]

_HEADER = 64
_MAX_SEGMENTS = 500
_MAX_ENTRIES = 200

# Baseline to lossless frames; the gaps are tables: DHT, JPG and DAC.
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_BARE = frozenset({0x01, *range(0xD0, 0xD8)})
_BMP_HEADERS = frozenset({40, 52, 56, 64, 108, 124})
_TIFF_TYPES = {3: "H", 4: "I"}

Size = tuple[int, int]
Read = Callable[[int, int], bytes]
"""Returns at most so many bytes from an offset on, like `os.pread`."""


def image_size(read: Read) -> Size | None:
    """Return width and height in pixels from an image's header; None if the format is unknown."""
    header = read(_HEADER, 0)
    size = next((size for signature, size in _FORMATS.items() if header.startswith(signature)), None)
    if size is None:
        return None
    try:
        found = size(read, header)
    except struct.error:
        # The header ends too early.
        return None
    return found if found is not None and found[0] > 0 and found[1] > 0 else None


def _png(_read: Read, header: bytes) -> Size | None:
    kind, width, height = struct.unpack_from(">4sII", header, 12)
    return (width, height) if kind == b"IHDR" and max(width, height) < 1 << 31 else None


def _gif(_read: Read, header: bytes) -> Size | None:
    width, height = struct.unpack_from("<HH", header, 6)
    return width, height


def _bmp(_read: Read, header: bytes) -> Size | None:
    size, width, height = struct.unpack_from("<Iii", header, 14)
    # A negative height means that the rows are stored top-down.
    return (width, abs(height)) if size in _BMP_HEADERS else None


def _webp(_read: Read, header: bytes) -> Size | None:
    form, chunk = struct.unpack_from("<4s4s", header, 8)
    if form != b"WEBP":
        return None
    if chunk == b"VP8 ":
        start, width, height = struct.unpack_from("<3sHH", header, 23)
        return (width & 0x3FFF, height & 0x3FFF) if start == b"\x9d\x01\x2a" else None
    if chunk == b"VP8L":
        mark, bits = struct.unpack_from("<BI", header, 20)
        return ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1) if mark == 0x2F else None
    if chunk == b"VP8X":
        low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", header, 24)
        return (low_width | high_width << 16) + 1, (low_height | high_height << 16) + 1
    return None


def _jpeg(read: Read, _header: bytes) -> Size | None:
    at = 2
    for _ in range(_MAX_SEGMENTS):
        mark, marker = struct.unpack(">BB", read(2, at))
        if mark != 0xFF:
            return None
        if marker == 0xFF:
            # A fill byte.
            at += 1
        elif marker in _JPEG_BARE:
            at += 2
        elif marker in _JPEG_FRAMES:
            height, width = struct.unpack(">HH", read(4, at + 5))
            return width, height
        else:
            (length,) = struct.unpack(">H", read(2, at + 2))
            at += 2 + length
    return None


def _tiff(read: Read, header: bytes) -> Size | None:
    order = "<" if header.startswith(b"II") else ">"
    (at,) = struct.unpack_from(order + "I", header, 4)
    (count,) = struct.unpack(order + "H", read(2, at))
    entries = read(12 * min(count, _MAX_ENTRIES), at + 2)
    values = {}
    for offset in range(0, len(entries) - 11, 12):
        tag, kind = struct.unpack_from(order + "HH", entries, offset)
        if kind in _TIFF_TYPES:
            (values[tag],) = struct.unpack_from(order + _TIFF_TYPES[kind], entries, offset + 8)
    return (values[256], values[257]) if values.keys() >= {256, 257} else None


_FORMATS: dict[bytes, Callable[[Read, bytes], Size | None]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"GIF87a": _gif,
    b"GIF89a": _gif,
    b"\xff\xd8\xff": _jpeg,
    b"RIFF": _webp,
    b"BM": _bmp,
    b"II*\0": _tiff,
    b"MM\0*": _tiff,
}
