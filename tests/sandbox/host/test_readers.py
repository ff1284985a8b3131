import asyncio
import os
from collections.abc import Callable, Iterator

import pytest
from held_objects import open_descriptors

from sandbox.host.readers import Readers
from sandbox.loop_share import LoopShare

pytestmark = pytest.mark.anyio


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    made = [os.pipe() for _ in range(2)]
    yield made
    for ends in made:
        for end in ends:
            os.close(end)


def reading(pipe: int, received: "asyncio.Queue[bytes]") -> Callable[[], None]:
    return lambda: received.put_nowait(os.read(pipe, 100))


async def test_each_descriptor_has_its_own_callback(pipes: list[tuple[int, int]]) -> None:
    readers = Readers(LoopShare())
    received: list[asyncio.Queue[bytes]] = [asyncio.Queue(), asyncio.Queue()]
    for (ours, _), queue in zip(pipes, received, strict=True):
        readers.add(ours, reading(ours, queue))

    for number, (_, theirs) in enumerate(pipes):
        os.write(theirs, b"%d" % number)
    came = [await queue.get() for queue in received]
    readers.close()

    assert came == [b"0", b"1"]


async def test_removed_reader_is_not_called_in_the_same_turn(
    pipes: list[tuple[int, int]],
) -> None:
    readers, called = Readers(LoopShare()), asyncio.Event()
    calls: list[int] = []

    def first_of_both(ours: int) -> None:
        calls.append(ours)
        for pipe, _ in pipes:
            readers.remove(pipe)
        called.set()

    for ours, theirs in pipes:
        readers.add(ours, lambda ours=ours: first_of_both(ours))  # type: ignore[misc]
        os.write(theirs, b"there")
    await called.wait()
    await asyncio.sleep(0)
    readers.close()

    assert len(calls) == 1


async def test_closed_readers_call_nothing_and_leave_descriptors_open(
    pipes: list[tuple[int, int]],
) -> None:
    (ours, theirs), (open_end, closed_end) = pipes
    closed, others = Readers(LoopShare()), Readers(LoopShare())
    unheard: asyncio.Queue[bytes] = asyncio.Queue()
    received: asyncio.Queue[bytes] = asyncio.Queue()
    closed.add(ours, reading(ours, unheard))
    others.add(open_end, reading(open_end, received))

    closed.close()
    closed.close()
    closed.add(ours, reading(ours, unheard))
    closed.remove(ours)
    os.write(theirs, b"late")
    os.write(closed_end, b"now")
    await received.get()
    others.close()

    assert unheard.empty()
    assert os.read(ours, 100) == b"late"


async def test_failing_reader_does_not_block_others(pipes: list[tuple[int, int]]) -> None:
    loop, readers = asyncio.get_running_loop(), Readers(LoopShare())
    received: asyncio.Queue[bytes] = asyncio.Queue()
    errors: list[str] = []

    def fails() -> None:
        raise RuntimeError("on purpose")

    (first, into_first), (second, into_second) = pipes
    readers.add(first, fails)
    readers.add(second, reading(second, received))
    loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
    os.write(into_first, b"x")
    os.write(into_second, b"y")
    came = await received.get()
    loop.set_exception_handler(None)
    readers.close()

    assert came == b"y"
    assert "on purpose" in errors


async def test_readers_rest_while_share_is_spent_until_hurried(pipes: list[tuple[int, int]]) -> None:
    (ours, theirs), (other, into_other) = pipes
    spent, available = Readers(LoopShare(at_once=0.0, per_s=1e-9)), Readers(LoopShare())
    received: asyncio.Queue[bytes] = asyncio.Queue()
    others: asyncio.Queue[bytes] = asyncio.Queue()
    spent.add(ours, reading(ours, received))
    available.add(other, reading(other, others))

    os.write(theirs, b"first")
    first = await received.get()
    os.write(theirs, b"second")
    for _ in range(3):
        os.write(into_other, b"turn")
        await others.get()
    during_rest = received.empty()
    spent.hurry()
    second = await received.get()
    spent.close()
    available.close()

    assert (first, during_rest, second) == (b"first", True, b"second")


async def test_callback_that_is_behind_is_called_without_data(pipes: list[tuple[int, int]]) -> None:
    (ours, theirs), _ = pipes
    readers, called = Readers(LoopShare()), asyncio.Event()
    pieces = [b"a", b"b", b"c"]

    def take() -> bool:
        pieces.pop()
        if not pieces:
            os.read(ours, 100)
            called.set()
        return bool(pieces)

    readers.add(ours, take)
    os.write(theirs, b"once")
    await called.wait()
    readers.close()

    assert pieces == []


async def test_one_descriptor_serves_any_number_of_listening_calls(pipes: list[tuple[int, int]]) -> None:
    before = open_descriptors()

    listening = [Readers(LoopShare()) for _ in range(20)]
    for readers, (ours, _) in zip(listening, pipes, strict=False):
        readers.add(ours, lambda: None)
    meanwhile = open_descriptors()
    for readers in listening:
        readers.close()

    # Fewer where what a test before has left was collected meanwhile.
    assert meanwhile <= before
