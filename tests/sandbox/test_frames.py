import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.errors import FrameError
from sandbox.frames import Decoder, FrameKind, decode, encode, receive, send

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.lists(st.tuples(st.sampled_from(FrameKind), JSON), max_size=4), st.integers(1, 40))
def test_any_values_survive_any_cutting_of_the_stream(
    frames: list[tuple[FrameKind, object]], step: int
) -> None:
    stream = b"".join(encode(kind, value) for kind, value in frames)
    decoder = Decoder(1 << 20)

    cut = [stream[i : i + step] for i in range(0, len(stream), step)]
    seen = [(kind, decode(body)) for part in cut for kind, body in decoder.feed(part)]

    assert seen == frames


@given(st.binary(max_size=200))
def test_garbage_is_a_frame_error_or_frames_and_nothing_else(garbage: bytes) -> None:
    decoder = Decoder(1000)

    try:
        for _kind, body in decoder.feed(garbage):
            decode(body)
    except FrameError:
        return


def test_frame_above_limit_is_refused_before_body_is_received() -> None:
    header = encode(FrameKind.ANSWER, "x" * 100)[:5]

    with pytest.raises(FrameError, match="102 bytes is above the limit of 50"):
        list(Decoder(50).feed(header))


@pytest.mark.parametrize("body", [b"", b"{", b"NaN", b"[Infinity]", b"\xff", b"[" * 100_000])
def test_non_strict_json_body_is_refused(body: bytes) -> None:
    with pytest.raises(FrameError, match="not JSON"):
        decode(body)


def test_nan_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode(FrameKind.ANSWER, float("nan"))


def test_descriptors_travel_with_their_frame() -> None:
    ours, theirs = socket.socketpair()
    carried, own = socket.socketpair()

    with ours, theirs, carried, own:
        send(ours, FrameKind.ZYGOTE, {"a": 1}, [carried.fileno()])
        frame = receive(theirs, 1000)
        assert frame is not None
        kind, value, descriptors = frame
        with socket.socket(fileno=descriptors[0]) as arrived:
            arrived.send(b"x")
        answer = own.recv(1)

    assert (kind, value, answer) == (FrameKind.ZYGOTE, {"a": 1}, b"x")


def test_peer_closing_between_frames_is_none_within_is_error() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(encode(FrameKind.FORK, 1))
    ours.sendall(encode(FrameKind.FORK, 12345)[:7])
    ours.close()

    with theirs:
        first = receive(theirs, 1000)
        with pytest.raises(FrameError, match="left after 2 of 5 bytes"):
            receive(theirs, 1000)
        after = receive(theirs, 1000)

    assert first == (FrameKind.FORK, 1, [])
    assert after is None


@pytest.mark.parametrize("unit", [b"[],", b"0,", b'{"a":1},', b'"",', b'"\\"\\\\",'])
def test_body_of_millions_of_values_is_refused_undecoded(unit: bytes) -> None:
    body = b"[" + unit * 2_100_000 + b"0]"

    with pytest.raises(FrameError, match="values is above the limit of 2000000"):
        decode(body)


@pytest.mark.parametrize("text", ["a,b,[{" * 1_000_000, '\\",[' * 1_000_000, "\\\\" * 2_000_000])
def test_content_of_a_string_counts_as_one_value(text: str) -> None:
    assert decode(json.dumps([text]).encode()) == [text]


def test_unclosed_string_is_scanned_once() -> None:
    """Scanned again from each quote, this would hold the host for an hour."""
    body = b"[" + b"," * 2_100_000 + b'"' + b'\\"' * 500_000

    with pytest.raises(FrameError, match="values is above the limit of 2000000"):
        decode(body)
