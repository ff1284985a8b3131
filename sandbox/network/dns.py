"""DNS queries and responses, as sent on a TCP connection.

Only the part that the C library's resolver needs: one question for the addresses of one name. All other
queries get an empty response.

Source: RFC 1035, sections 4.1 and 4.2.2; RFC 3596; resolv.conf(5), option `use-vc`.
"""

import enum
import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LENGTH", "Question", "RecordType", "ResponseCode", "answer", "read_question"]

LENGTH = struct.Struct(">H")
"""Length prefix of each message."""

_HEADER = struct.Struct(">6H")
_ENDING = struct.Struct(">2H")
_RECORD = struct.Struct(">3HIH")
_RESPONSE, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
_OPCODE = 0x7800
_INTERNET = 1
_MOST_LABEL = 63
_MOST_NAME = 255
# A pointer to the name in the question, which directly follows the header.
_SAME_NAME = 0xC000 | _HEADER.size
_MOST_ADDRESSES = 32
# Clients should query again, so answers must not be cached for long.
_TTL_S = 1


class RecordType(enum.IntEnum):
    """Question of a DNS query."""

    IPV4 = 1
    IPV6 = 28


class ResponseCode(enum.IntEnum):
    """Response code and flags of a response."""

    FOUND = 0
    TRY_AGAIN = 2
    NO_SUCH_NAME = 3


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        number: Message id, repeated in the response.
        name: The name, as it was written.
        kind: The queried record type; None if it is not supported.
        raw: The question as received.
    """

    number: int
    name: str
    kind: RecordType | None
    raw: bytes


def read_question(message: bytes) -> Question:
    """Read a message.

    Raises:
        ValueError: It is not a question of this kind.
    """
    try:
        number, flags, questions, *_rest = _HEADER.unpack_from(message)
        if flags & (_RESPONSE | _OPCODE) or questions != 1:
            raise ValueError("not one question")
        name, at = _name(message, _HEADER.size)
        kind, family = _ENDING.unpack_from(message, at)
    except (struct.error, IndexError) as error:
        raise ValueError("a message that ends too early") from error
    known = RecordType(kind) if family == _INTERNET and kind in tuple(RecordType) else None
    return Question(number, name, known, message[_HEADER.size : at + _ENDING.size])


def answer(question: Question, code: ResponseCode, addresses: Sequence[str] = ()) -> bytes:
    """Return the message that answers a question."""
    flags = _RESPONSE | _RECURSION_DESIRED | _RECURSION_AVAILABLE | code
    packed = [ipaddress.ip_address(address).packed for address in addresses[:_MOST_ADDRESSES]]
    records = [
        _RECORD.pack(_SAME_NAME, question.kind or 0, _INTERNET, _TTL_S, len(one)) + one for one in packed
    ]
    return _HEADER.pack(question.number, flags, 1, len(records), 0, 0) + question.raw + b"".join(records)


def _name(message: bytes, at: int) -> tuple[str, int]:
    labels: list[str] = []
    start = at
    while (length := message[at]) != 0:
        if length > _MOST_LABEL or at - start > _MOST_NAME:
            raise ValueError("no name: a question holds no pointers, and is not longer than a name")
        labels.append(message[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1
