"""How many pages a PDF has: `/Count` of the page tree that its catalog names.

Objects are found by looking for them, as repair tools do, in the beginning and the end of the file;
those in compressed object streams are unpacked up to a bound. Libraries that read PDF follow what a
file tells them, without a bound on time or memory, and need the whole of it.

Source: ISO 32000-1, 7.5.7 (object streams), 7.7.2 (catalog), 7.7.3 (page tree).
"""

import itertools
import os
import re
import zlib
from collections.abc import Iterator

__all__ = ["pdf_pages"]

_PART = 4 * 1024 * 1024
_MAX_OBJECTS = 100_000
_MAX_UNPACKED = 8 * 1024 * 1024
_MAX_STREAMS = 2_000
_MAX_PAIRS_BYTES = 256 * 1024
_MAX_PAGES = 10_000_000

# The number in front of `obj` is looked for from the word, which is quicker to find than a number.
_OBJECT = re.compile(rb"(?<=[0-9][ \r\n\t])obj\b")
_NUMBER = re.compile(rb"([0-9]{1,10})\s{1,4}[0-9]{1,5}\s\Z")
_LONGEST_HEAD = 24
_CATALOG = re.compile(rb"/Type\s{0,4}/Catalog\b")
_PAGES = re.compile(rb"/Type\s{0,4}/Pages\b")
_OBJECT_STREAM = re.compile(rb"/Type\s{0,4}/ObjStm\b")
_TREE = re.compile(rb"/Pages\s{1,4}([0-9]{1,10})\s{1,4}[0-9]{1,5}\s{1,4}R\b")
_COUNT = re.compile(rb"/Count\s{1,4}([0-9]{1,10})(?![0-9.])(?!\s{1,4}[0-9]{1,5}\s{1,4}R\b)")
_FIRST = re.compile(rb"/First\s{1,4}([0-9]{1,10})\b")
_STREAM = re.compile(rb"\bstream\r?\n")


def pdf_pages(fd: int, size: int) -> int | None:
    """Return how many pages an open PDF says it has; None where that cannot be found cheaply."""
    content = os.pread(fd, min(size, 2 * _PART), 0)
    if not content.startswith(b"%PDF-"):
        return None
    if size > len(content):
        content = content[:_PART] + b"\n" + os.pread(fd, _PART, size - _PART)
    tree: int | None = None
    counts: dict[int, int] = {}
    # What an update appends comes later and replaces what was.
    for number, body in _objects(content):
        if _CATALOG.search(body) and (named := _TREE.search(body)):
            tree = int(named[1])
        elif _PAGES.search(body) and (count := _COUNT.search(body)):
            counts[number] = int(count[1])
    pages = None if tree is None else counts.get(tree)
    return pages if pages is not None and pages <= _MAX_PAGES else None


def _objects(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the objects that may matter, with their numbers, in the order of the file."""
    left = _MAX_UNPACKED
    streams = 0
    words = list(itertools.islice(_OBJECT.finditer(content), _MAX_OBJECTS))
    ends = [word.start() for word in words[1:]] + [len(content)]
    for word, end in zip(words, ends, strict=False):
        number = _NUMBER.search(content, max(word.start() - _LONGEST_HEAD, 0), word.start())
        head, stream = _parted(content, word.end(), end)
        if number is not None:
            yield int(number[1]), head
        if stream is not None and streams < _MAX_STREAMS and _OBJECT_STREAM.search(head):
            streams += 1
            unpacked = _unpacked(content, stream, end, left)
            left -= len(unpacked)
            yield from _packed_objects(head, unpacked)


def _parted(content: bytes, start: int, end: int) -> tuple[bytes, int | None]:
    """Return an object without its stream, and where that begins."""
    stream = _STREAM.search(content, start, end)
    return content[start : end if stream is None else stream.start()], stream.end() if stream else None


def _unpacked(content: bytes, start: int, end: int, most: int) -> bytes:
    """Unpack a stream up to `most` bytes; nothing where it is packed in another way, or encrypted."""
    if most <= 0:
        return b""
    try:
        return zlib.decompressobj().decompress(content[start:end], most)
    except zlib.error:
        return b""


def _packed_objects(head: bytes, unpacked: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the objects of an object stream; pairs of number and place stand in front of them."""
    first = _FIRST.search(head)
    if first is None:
        return
    begin = int(first[1])
    words = [int(word) for word in unpacked[: min(begin, _MAX_PAIRS_BYTES)].split() if _is_number(word)]
    places = [begin + place for place in words[1::2]]
    for number, place, end in zip(words[::2], places, [*places[1:], len(unpacked)], strict=False):
        if end <= place:
            # Objects that overlap could make a small file cost much.
            return
        yield number, unpacked[place:end]


def _is_number(word: bytes) -> bool:
    return len(word) <= 10 and word.isdigit()
