"""How many rows and columns a Parquet file has: from its footer, in Thrift's compact protocol.

Only what stands in front of the number of rows is passed over, with a bound on bytes and values; no library
that reads Parquet gives such a bound, and none is needed for two numbers.

Source: parquet-format, `parquet.thrift` (FileMetaData); Thrift, compact protocol.
"""

import os

__all__ = ["parquet_rows", "parquet_shape"]

_MAGIC = b"PAR1"
_MAX_FOOTER_BYTES = 4 * 1024 * 1024
_MAX_VALUES = 200_000
_MAX_DEPTH = 8
_SCHEMA, _NUM_ROWS = 2, 3
_NUM_CHILDREN = 5

# Types of the compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)


class _MalformedError(Exception):
    """It is no footer, or a larger one than is looked at."""


def parquet_rows(fd: int, size: int) -> int | None:
    """Return the number of rows that an open Parquet file says it has; None where it is no such file."""
    shape = parquet_shape(fd, size)
    return None if shape is None else shape[0]


def parquet_shape(fd: int, size: int) -> tuple[int, int | None] | None:
    """Return the rows, and where it says them the columns, of an open Parquet file; None: it is none."""
    if size < 12 or os.pread(fd, 4, 0) != _MAGIC:
        return None
    tail = os.pread(fd, 8, size - 8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length > size - 12:
        return None
    footer = _Footer(os.pread(fd, min(length, _MAX_FOOTER_BYTES), size - 8 - length))
    try:
        rows = footer.num_rows()
    except (_MalformedError, IndexError):
        return None
    return None if rows is None else (rows, footer.columns)


class _Footer:
    """A reader of one Thrift structure."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0
        self._values = 0
        self.columns: int | None = None

    def num_rows(self) -> int | None:
        number = 0
        while (field := self._field(number)) is not None:
            number, kind = field
            if number == _NUM_ROWS:
                rows = self._zigzag() if kind == _I64 else -1
                return rows if 0 <= rows < 1 << 63 else None
            if number == _SCHEMA and kind == _LIST:
                self._read_schema()
            else:
                self._skip(kind, depth=0)
        return None

    def _read_schema(self) -> None:
        """Read the number of columns from the root, the first of a flat list, and pass over the rest."""
        kind, count = self._list_head()
        for index in range(count):
            if index or kind != _STRUCT:
                self._skip(kind, depth=1)
                continue
            number = 0
            while (field := self._field(number)) is not None:
                number, inner = field
                if number == _NUM_CHILDREN and inner == _I32:
                    self.columns = self._zigzag()
                else:
                    self._skip(inner, depth=1)

    def _field(self, last: int) -> tuple[int, int] | None:
        """Read the head of a field: its number and type, or None where the structure ends."""
        head = self._byte()
        if head == _STOP:
            return None
        step = head >> 4
        return (last + step if step else self._zigzag()), head & 0x0F

    def _skip(self, kind: int, *, depth: int) -> None:
        self._values += 1
        if depth > _MAX_DEPTH or self._values > _MAX_VALUES:
            raise _MalformedError
        if kind in (_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY):
            self._skip_scalar(kind)
        elif kind in (_LIST, _SET):
            self._skip_list(depth + 1)
        elif kind == _STRUCT:
            number = 0
            while (field := self._field(number)) is not None:
                number, inner = field
                self._skip(inner, depth=depth + 1)
        elif kind not in (_TRUE, _FALSE):
            # A map is nowhere in front of the number of rows.
            raise _MalformedError

    def _skip_scalar(self, kind: int) -> None:
        if kind == _BYTE:
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            length = self._varint()
            self._at += length
        else:
            self._varint()

    def _skip_list(self, depth: int) -> None:
        kind, count = self._list_head()
        for _ in range(count):
            self._skip(kind, depth=depth)

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        return head & 0x0F, head >> 4 if head >> 4 < 0x0F else self._varint()

    def _zigzag(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise _MalformedError

    def _byte(self) -> int:
        byte = self._content[self._at]
        self._at += 1
        return byte
