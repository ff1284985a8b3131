"""A smaller version of a picture, made in a confined process of its own: the picture may be hostile.

usage: python small_picture.py MOST_BYTES MOST_PIXELS < PICTURE > SMALLER

PNG, JPEG and WebP keep their format. The longest side is reduced until the picture fits. Of an animation, the
first frame stays. Without a result, the exit status is not 0.
"""

import io
import math
import sys
from typing import Any

from PIL import Image, ImageOps

__all__ = ["FORMATS", "main", "smaller"]

FORMATS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 85}, "PNG": {}, "WEBP": {"quality": 85}}
"""Formats that are made smaller, with the options with which they are written."""

_LEAST_SIDE = 16
_MOST_ROUNDS = 8


def smaller(picture: bytes, most_bytes: int, most_pixels: int) -> bytes | None:
    """Return a smaller version of a picture; None if its format is unknown or no version is small enough.

    Raises:
        Exception: The picture cannot be decoded. Pillow names no common class.
    """
    with Image.open(io.BytesIO(picture), formats=tuple(FORMATS)) as opened:
        kind, side = str(opened.format), max(opened.size)
        if math.prod(opened.size) > most_pixels:
            return None
        # A JPEG is decoded at a fraction of its size; the output has about as many bytes per pixel.
        wanted = side * min(1.0, math.sqrt(most_bytes / len(picture)))
        opened.draft(None, (math.ceil(wanted), math.ceil(wanted)))
        # The orientation is in the metadata, which are not written.
        whole = ImageOps.exif_transpose(opened)
    for _round in range(_MOST_ROUNDS):
        if wanted < _LEAST_SIDE:
            return None
        made, written = whole.copy(), io.BytesIO()
        made.thumbnail((int(wanted), int(wanted)))
        made.save(written, kind, **FORMATS[kind])
        if written.tell() <= most_bytes:
            return written.getvalue()
        wanted *= min(0.9, math.sqrt(most_bytes / written.tell()))
    return None


def main() -> None:
    """Write the smaller version of the picture on standard input to standard output."""
    made = smaller(sys.stdin.buffer.read(), *map(int, sys.argv[1:3]))
    if made is None:
        sys.exit("the picture cannot be made small enough")
    sys.stdout.buffer.write(made)


if __name__ == "__main__":
    main()
