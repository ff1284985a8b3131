"""Frames: length-prefixed JSON messages between host, zygote and worker.

A frame is a four-byte big-endian body length, one byte for its kind, and the body: one JSON
value in UTF-8. Input from a worker is untrusted: lengths are checked before memory is allocated, and a
body that is not strict JSON is a `FrameError`.
"""

import enum
import json
import re
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sandbox import strict_json
from sandbox.errors import FrameError, FrameTooLong

__all__ = [
    "ANSWERS",
    "CONTROL_BYTES",
    "GATE",
    "MOST_VALUES",
    "NO_PROCESS",
    "Decoder",
    "FrameKind",
    "decode",
    "encode",
    "receive",
    "send",
]

_HEADER = struct.Struct(">Ic")

CONTROL_BYTES = 64 * 1024 * 1024
"""Largest frame on a control socket; the largest content there is the catalog of a tool file."""

GATE = b"gate"
"""First message of a zygote, sent with the descriptor of its gate."""

NO_PROCESS = b"no process: "
"""Prefix of the announcement of a worker that could not be forked; the reason follows."""

_MAX_DESCRIPTORS = 8

# Decoding costs time and memory for each value, and blocks the host's other calls.
MOST_VALUES = 2_000_000
"""Most values of a frame; so many small ones take about half a second to decode."""

# JSON can contain half of a surrogate pair, which no text sent by the host may contain.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
# Stands for an escaped backslash during the search for escapes; it never occurs in JSON.
_NO_ESCAPE = b"\0\0"


class FrameKind(bytes, enum.Enum):
    """Kind of a frame: its first byte."""

    # Host to forkserver, host to zygote.
    ZYGOTE = b"Z"
    FORK = b"F"
    PING = b"P"
    # Forkserver and zygote to host.
    STARTED = b"S"
    LOADED = b"L"
    FAILED = b"X"
    ENDED = b"E"
    # Host to worker.
    LIMITS = b"M"
    RENEW = b"W"
    CALL = b"C"
    # Carries the connection of one of several concurrent calls of a worker.
    JOIN = b"J"
    REPLY = b"Y"
    # Worker to host.
    NOTIFY = b"N"
    REQUEST = b"Q"
    DENIED = b"D"
    ANSWER = b"A"
    # An answer with the number of the call, from a worker that has restored its state and waits for another.
    ANSWER_AND_READY = b"R"
    # On the connection of one of several concurrent calls: its cancellation has been received.
    CANCELLING = b"G"


ANSWERS = frozenset((FrameKind.ANSWER, FrameKind.ANSWER_AND_READY))
"""Frames that end a call. Only a worker in its own loop is ready for another one."""

_KINDS: Mapping[bytes, FrameKind] = {kind.value: kind for kind in FrameKind}
# Created once: `json` would create one for each frame.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def encode(kind: FrameKind, value: object) -> bytes:
    """Return `value` as one frame.

    Raises:
        ValueError: The value is not JSON (NaN and infinities are not).
        TypeError: The value is not JSON.
    """
    body = _ENCODER.encode(value).encode()
    return _HEADER.pack(len(body), kind) + body


def decode(body: bytes | bytearray | memoryview, *, most_values: int = MOST_VALUES) -> object:
    """Return the value of a frame body; half of a surrogate pair in it becomes a question mark.

    Args:
        body: The body.
        most_values: Most values that it may contain.

    Raises:
        FrameError: The body is not JSON, nested too deeply, or contains too many values.
    """
    whole = bytes(body)
    values = strict_json.values_above(whole, most_values)
    if values:
        raise FrameError(f"a frame of {values} values is above the limit of {most_values}")
    try:
        # As text: `json` guesses the encoding of bytes, and accepts invalid UTF-8.
        # A single search for either case takes ten times as long.
        if rb"\ud" in whole or rb"\uD" in whole:
            whole = _mended(whole)
        value = strict_json.loads(whole.decode())
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the frame is not JSON: {error}") from error
    return value


def _mended(body: bytes) -> bytes:
    """Return JSON with a question mark for each half of a surrogate pair."""
    if _SURROGATE.search(body) is None or 0 in body:
        return body
    return _HALF.sub(b"?", body.replace(rb"\\", _NO_ESCAPE)).replace(_NO_ESCAPE, rb"\\")


@dataclass(slots=True, eq=False)
class Decoder:
    """Splitter of a byte stream into frames.

    Attributes:
        limit_bytes: Largest accepted body.
        notice_bytes: Largest accepted body of frames other than answers, if smaller.
        partial: Received part of the next frame.
    """

    limit_bytes: int
    notice_bytes: int | None = None
    partial: bytearray = field(init=False, default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """Add received bytes and yield the complete frames, with undecoded bodies.

        Raises:
            FrameError: A frame is above the limit or of an unknown kind.
        """
        self.partial += data
        while len(self.partial) >= _HEADER.size:
            length, kind = _header(self.partial, self.limit_bytes)
            if kind not in ANSWERS and self.notice_bytes is not None and length > self.notice_bytes:
                raise _too_long(length, self.notice_bytes)
            end = _HEADER.size + length
            if len(self.partial) < end:
                return
            body = bytes(memoryview(self.partial)[_HEADER.size : end])
            del self.partial[:end]
            yield kind, body


def send(channel: socket.socket, kind: FrameKind, value: object, descriptors: Sequence[int] = ()) -> None:
    """Write one frame to a blocking socket, with the given descriptors."""
    frame = memoryview(encode(kind, value))
    if descriptors:
        sent = socket.send_fds(channel, [frame], descriptors)
        frame = frame[sent:]
    channel.sendall(frame)


def receive(channel: socket.socket, limit_bytes: int) -> tuple[FrameKind, object, list[int]] | None:
    """Read one frame from a blocking socket; None when the peer has closed it.

    Returns:
        The kind, the value and the received descriptors (the caller closes them).

    Raises:
        FrameError: The frame is malformed, or the peer disconnected in the middle of it.
    """
    head, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, _MAX_DESCRIPTORS)
    if not head:
        return None
    if len(head) < _HEADER.size:
        head += _read(channel, _HEADER.size - len(head))
    length, kind = _header(head, limit_bytes)
    return kind, decode(_read(channel, length)), descriptors


def _header(data: bytes | bytearray, limit_bytes: int) -> tuple[int, FrameKind]:
    length, letter = _HEADER.unpack_from(data)
    if length > limit_bytes:
        raise _too_long(length, limit_bytes)
    kind = _KINDS.get(letter)
    if kind is None:
        raise FrameError(f"a frame of unknown kind {letter!r}")
    return length, kind


def _too_long(length: int, limit_bytes: int) -> FrameTooLong:
    return FrameTooLong(length, limit_bytes)


def _read(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = channel.recv(min(count - len(data), 1 << 20))
        if not chunk:
            raise FrameError(f"the peer left after {len(data)} of {count} bytes of a frame")
        data += chunk
    return bytes(data)
