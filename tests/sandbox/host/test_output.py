"""Retained output of a worker, with a real pipe."""

import os
from collections.abc import Iterator

import pytest

from sandbox.host.output import KeptOutput, drop_output, read_some
from sandbox.loop_share import LoopShare


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """An end to read, which never blocks, and an end to write."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    with os.fdopen(write, "wb") as held:
        yield read, held.fileno()
    os.close(read)


def test_output_end_is_retained_and_invalid_bytes_replaced(pipe: tuple[int, int]) -> None:
    output = KeptOutput(pipe=pipe[0], share=LoopShare(), most_bytes=4)
    os.write(pipe[1], b"begin ")
    output.read_all()
    os.write(pipe[1], b"en\xffd")

    output.read_all()

    assert (output.text(), output.has_ended) == ("en\ufffdd", False)


def test_ended_pipe_is_distinguished_from_empty_one(pipe: tuple[int, int]) -> None:
    output = KeptOutput(pipe=pipe[0], share=LoopShare(), most_bytes=100)
    assert (output.read(), output.has_ended, read_some(pipe[0], LoopShare())) == (False, False, None)

    empty, other = os.pipe()
    os.close(other)
    ended = KeptOutput(pipe=empty, share=LoopShare(), most_bytes=100)

    assert (ended.read(), ended.has_ended, read_some(empty, LoopShare())) == (False, True, b"")
    os.close(empty)


def test_dropped_output_is_gone_and_later_output_is_read(pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"before")
    drop_output(pipe[0], LoopShare())
    os.write(pipe[1], b"after")

    assert read_some(pipe[0], LoopShare()) == b"after"
