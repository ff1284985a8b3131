"""Remains of workers that end while parked, of cancelled callers, and of workers that cannot get ready."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from held_objects import open_descriptors
from pools import homeless_pool_of, parks
from support import becomes

from sandbox.deadlines import Deadlines, Rung
from sandbox.errors import SandboxError
from sandbox.host.forkserver import Forkserver
from sandbox.host.pool import IdleWorkers, Pool
from sandbox.host.worker import children_of
from sandbox.outcome import Ending, Outcome

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

PROGRAM = """
from sandbox.frames import FrameKind

class Told:
    def begin(self):
        pass

    def load(self, config):
        self.codes = config.get("codes")
        return {}

    def warm_up(self):
        pass

    def prepare(self, *, warm):
        if self.codes is not None:
            raise RuntimeError("".join(map(chr, self.codes)))

    def wait(self, connection):
        pass

    def serve(self, call, channel):
        channel.send(FrameKind.NOTIFY, {"number": 1})
        return {"value": call}

PROGRAM = Told()
"""


@dataclass
class Deaf:
    """A listener who never takes what it is told.

    Attributes:
        called: Set when it receives something.
    """

    called: asyncio.Event = field(default_factory=asyncio.Event)

    async def notify(self, value: Mapping[str, object]) -> None:
        self.called.set()
        await asyncio.Event().wait()

    async def request(self, value: Mapping[str, object]) -> Mapping[str, object]:
        return {}

    def waits_for_client(self, value: Mapping[str, object]) -> bool:
        return False

    async def rung(self, rung: Rung) -> None:
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("told")
    (folder / "told.py").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
async def forkserver(folder: Path) -> AsyncIterator[Forkserver]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    server = await Forkserver.start("told", environment=environment)
    yield server
    await server.close()


async def run(pool: Pool, call: object, listener: Deaf) -> Outcome:
    lease = await pool.lease(pool.policy.limits)
    return await lease.run(call, deadlines=Deadlines(), listener=listener)


async def test_parked_worker_that_ended_leaves_nothing(forkserver: Forkserver, folder: Path) -> None:
    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=2, most=2)) as pool:
        await parks(pool, 2)
        dead = children_of(pool.zygote.pid)
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        assert await becomes(lambda: not any(Path(f"/proc/{pid}").exists() for pid in dead))
        outcome = await run(pool, "alive", Deaf())
        await pool.zygote.settled()

        assert outcome.ending is Ending.ANSWERED
        assert len(dead) == 2
        assert not dead & children_of(pool.zygote.pid)


async def test_released_workers_leave_no_descriptor(forkserver: Forkserver, folder: Path) -> None:
    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=1, most=6)) as pool:
        await parks(pool, 1)
        before = open_descriptors()
        for size in (6, 1, 6, 1):
            pool.idle_workers.size = size
            pool.refill()
            if size == 6:
                await parks(pool, size)
            pool.zygote.dismiss(pool.zygote.idle - size)
        await pool.zygote.settled()

        assert open_descriptors() <= before
        assert pool.zygote.at_hand == 1


async def test_leased_worker_is_not_released(forkserver: Forkserver, folder: Path) -> None:
    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=2, most=2)) as pool:
        await parks(pool, 2)
        lease = await pool.lease(pool.policy.limits)
        pool.zygote.dismiss(9)
        outcome = await lease.run("alive", deadlines=Deadlines(), listener=Deaf())
        await pool.zygote.settled()

        assert outcome.answer == {"value": "alive"}
        assert pool.zygote.at_hand == 0


async def test_worker_is_refused_during_large_closing_backlog(forkserver: Forkserver, folder: Path) -> None:
    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=1, most=1)) as pool:
        await parks(pool, 1)
        closer = pool.zygote.closer
        with socket.create_server(("127.0.0.1", 0)) as server:
            slow = socket.create_connection(server.getsockname())
            peer, _ = server.accept()
        # Its close waits for a peer that reads nothing.
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 120))
        slow.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while slow.send(bytes(1 << 20)):
                pass
        # With it set, closing waits for nothing.
        slow.setblocking(True)
        closer.close(slow.detach(), *(os.open(os.devnull, os.O_RDONLY) for _ in range(300)))
        with pytest.raises(SandboxError, match="is still being closed; try again"):
            await pool.lease(pool.policy.limits)

        peer.close()

        assert await becomes(lambda: not closer.left)
        assert (await run(pool, "alive", Deaf())).answer == {"value": "alive"}


async def test_workers_let_go_as_their_zygote_ends_leave_no_descriptor(
    forkserver: Forkserver, folder: Path
) -> None:
    before = open_descriptors()
    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=3, most=3)) as pool:
        await parks(pool, 3)
        pool.zygote.dismiss(2)
        pool.close()
        await pool.zygote.settled()

    assert await becomes(lambda: open_descriptors() <= before)


async def test_client_ignoring_notifications_gets_its_answer(forkserver: Forkserver, folder: Path) -> None:
    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=1, most=1)) as pool:
        outcome = await run(pool, "said", Deaf())

    assert outcome.answer == {"value": "said"}


async def test_call_cancelled_during_notification_leaves_no_task(
    forkserver: Forkserver, folder: Path
) -> None:
    def drains() -> bool:
        return any("Queue.join" in repr(task) for task in asyncio.all_tasks())

    async with homeless_pool_of(forkserver, folder, idle_workers=IdleWorkers(least=1, most=1)) as pool:
        listener = Deaf()
        call = asyncio.create_task(run(pool, "said", listener))
        await listener.called.wait()
        while not drains():
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        await pool.zygote.settled()

        assert call.cancelled()
        assert not drains()


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([ord(letter) for letter in "no luck"], "RuntimeError: no luck"),
        ([0xDCFF, ord("!")], "RuntimeError: \\udcff!"),
        ([ord("x")] * 200_000, "RuntimeError: xxx"),
        ([ord(letter) for letter in "parked"], "RuntimeError: parked"),
    ],
    ids=["words", "no UTF-8", "a flood", "what a worker says"],
)
async def test_cause_of_unready_worker_is_reported_within_bounds(
    forkserver: Forkserver, folder: Path, codes: list[int], message: str
) -> None:
    async with homeless_pool_of(
        forkserver,
        folder,
        idle_workers=IdleWorkers(least=0, most=0),
        codes=codes,
    ) as pool:
        with pytest.raises(SandboxError) as raised:
            await run(pool, "said", Deaf())

    assert message in str(raised.value)
    assert len(str(raised.value)) <= 4096
