"""Whatever a worker says, the host ends the call with a value or a documented error, in bounds."""

import asyncio
import struct
from pathlib import Path
from typing import Any

from fuzz_worker import LIMITS, Overheard, as_on_the_wire, hear, listening, streams
from hypothesis import example, given
from hypothesis import strategies as st

from runner.contract.error_messages import envelope
from runner.contract.normalise import normalise
from runner.errors import CallError
from runner.steps.verdict import judge
from runner.worker.wire import WireError
from sandbox.errors import FrameError
from sandbox.frames import ANSWERS, Decoder, FrameKind, decode
from sandbox.outcome import Ending

HOME = Path("/tmp/alice")


async def _refuse(_params: object) -> dict[str, Any]:
    return {"refused": "no home here"}


async def receive(frames: bytes, printed: bytes) -> None:
    """Take one call from a worker's bytes to what a client gets; raise if the host would have."""
    behind = listening(_refuse)
    listener = Overheard(behind)

    outcome = await hear(frames, printed, listener)

    assert listener.raised == []
    assert outcome.ending in (Ending.ANSWERED, Ending.CRASHED, Ending.BROKE_PROTOCOL)
    as_on_the_wire([[d.operation, d.path, d.layer] for d in outcome.denials])
    as_on_the_wire([outcome.output, outcome.fault, behind.last_progress])
    try:
        wire = judge(outcome, behind, home=HOME, limits=LIMITS, unknown=("x.txt",))
    except CallError as error:
        as_on_the_wire(envelope(error))
    except WireError as error:
        # What a tool's own server says is an error of JSON-RPC; `runner.server.host` makes it one.
        as_on_the_wire(dict(error.error))
    else:
        for wrapped in (False, True):
            as_on_the_wire(normalise(wire, wrapped=wrapped).value)


def framed(kind: FrameKind, body: bytes) -> bytes:
    return struct.pack(">Ic", len(body), kind.value) + body


@given(streams, st.binary(max_size=100))
@example(framed(FrameKind.DENIED, rb'{"path": "\ud800"}'), b"")
@example(framed(FrameKind.DENIED, rb'{"path": "\\ud83d\ude00"}'), b"")
@example(framed(FrameKind.NOTIFY, rb'{"method": "notifications/message", "params": {"data": "\udfff"}}'), b"")
@example(framed(FrameKind.ANSWER, '{"result": {}}'.encode("utf-16")), b"")
def test_fuzzed_worker_frames_end_as_value_or_documented_error(frames: bytes, printed: bytes) -> None:
    asyncio.run(receive(frames, printed))


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_in_any_pieces_are_frames_or_a_frame_error(stream: bytes, step: int) -> None:
    def read(pieces: list[bytes]) -> list[object]:
        decoder = Decoder(1000, notice_bytes=100)
        seen: list[object] = []
        try:
            for piece in pieces:
                for kind, body in decoder.feed(piece):
                    assert len(body) <= (1000 if kind in ANSWERS else 100)
                    seen.append((kind, decode(body)))
        except FrameError as error:
            seen.append(str(error))
        return seen

    whole = read([stream])
    cut = read([stream[start : start + step] for start in range(0, len(stream), step)])

    assert cut == whole


PROPERTIES = (
    test_fuzzed_worker_frames_end_as_value_or_documented_error,
    test_any_bytes_in_any_pieces_are_frames_or_a_frame_error,
)
