"""Questions and answers on a DNS connection, byte by byte."""

import struct

import pytest

from sandbox.network.dns import Question, RecordType, ResponseCode, answer, read_question


def query(name: str, kind: int, *, flags: int = 0x0100, questions: int = 1, family: int = 1) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    header = struct.pack(">6H", 7, flags, questions, 0, 0, 0)
    return header + labels + b"\0" + struct.pack(">2H", kind, family)


def test_a_question_for_addresses_is_read() -> None:
    message = query("api.example.com", 28)

    assert read_question(message) == Question(7, "api.example.com", RecordType.IPV6, message[12:])


def test_data_after_the_question_is_ignored() -> None:
    extension = b"\0\0\x29\x04\xd0\0\0\0\0\0\0"

    assert read_question(query("a.example", 1) + extension).raw == query("a.example", 1)[12:]


@pytest.mark.parametrize(("kind", "family"), [(15, 1), (255, 1), (1, 3)])
def test_a_question_for_anything_else_has_no_kind(kind: int, family: int) -> None:
    assert read_question(query("a.example", kind, family=family)).kind is None


WHOLE = query("a.example", 1)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        *(WHOLE[:length] for length in (5, 12, 13, 18, 22, len(WHOLE) - 1)),
        query("a.example", 1, flags=0x8100),
        query("a.example", 1, flags=0x2900),
        query("a.example", 1, questions=2),
        query("a.example", 1, questions=0),
        WHOLE[:12] + b"\xc0\x0c" + WHOLE[-4:],
        WHOLE[:12] + b"\x01\xff\0" + WHOLE[-4:],
        WHOLE[:12] + b"\x3f" + b"a" * 63 + (b"\x3f" + b"a" * 63) * 40 + b"\0" + WHOLE[-4:],
    ],
)
def test_invalid_question_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its words are for the log only
        read_question(message)


def test_an_answer_repeats_the_question_and_lists_the_addresses() -> None:
    question = read_question(query("a.example", 1))

    message = answer(question, ResponseCode.FOUND, ["93.184.215.14", "8.8.8.8"])

    assert struct.unpack_from(">6H", message) == (7, 0x8180, 1, 2, 0, 0)
    assert message[12 : 12 + len(question.raw)] == question.raw
    records = message[12 + len(question.raw) :]
    assert records[:16] == struct.pack(">3HIH4s", 0xC00C, 1, 1, 1, 4, bytes([93, 184, 215, 14]))
    assert records[16:][-4:] == bytes([8, 8, 8, 8])


@pytest.mark.parametrize(
    ("response_code", "code"),
    [(ResponseCode.NO_SUCH_NAME, 3), (ResponseCode.TRY_AGAIN, 2), (ResponseCode.FOUND, 0)],
)
def test_answer_without_addresses_has_its_code(response_code: ResponseCode, code: int) -> None:
    message = answer(read_question(query("a.example", 1)), response_code)

    assert struct.unpack_from(">6H", message) == (7, 0x8180 | code, 1, 0, 0, 0)


def test_answer_length_fits_its_length_field() -> None:
    addresses = [f"2606:4700::{number:x}" for number in range(5000)]

    assert len(answer(read_question(query("a.example", 28)), ResponseCode.FOUND, addresses)) < 2**16
