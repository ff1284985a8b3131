"""Servers that never answer: a caller waits for seconds only, and blocks nobody else."""

import asyncio
import contextlib
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from suite import ALICE, BOB, read

from runner.errors import CallError, Code
from runner.store.protocol import Content, Put
from runner.store.s3 import store as s3_store
from runner.store.s3.bucket import BucketAddress
from runner.store.s3.store import S3Store
from runner.store.spool import Spool, SpoolingStore

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]

# Eight seconds and what a busy machine adds to them. The server would be waited for for ever.
SOON_S = 30.0


@dataclass
class Deaf:
    """A TCP proxy that does not hear requests with a certain word in them, and passes all others."""

    target: BucketAddress
    word: bytes
    ends: list[socket.socket] = field(default_factory=list)

    def __enter__(self) -> "Deaf":
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        threading.Thread(target=self.serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self.listener, *self.ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    @property
    def address(self) -> BucketAddress:
        """The bucket, as reached through the proxy."""
        return replace(self.target, endpoint=f"http://127.0.0.1:{self.listener.getsockname()[1]}")

    def serve(self) -> None:
        host, port = str(self.target.endpoint).removeprefix("http://").split(":")
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection((host, int(port)))
                self.ends += [client, server]
                for source, sink, deaf in ((client, server, self.word), (server, client, b"")):
                    threading.Thread(target=self.carry, args=(source, sink, deaf), daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket, deaf: bytes) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                if deaf and deaf in chunk:
                    return
                sink.sendall(chunk)
            sink.shutdown(socket.SHUT_WR)


async def test_whatever_people_wait_for_ends_within_seconds(rgw: BucketAddress, tmp_path: Path) -> None:
    record = await S3Store(rgw).put_bytes(b"x" * 1000, Put(name="a.txt"), scope=ALICE)
    with Deaf(rgw, b"HTTP/1.1") as silent:
        store = SpoolingStore(S3Store(silent.address), Spool(tmp_path / "spool"))
        start = time.monotonic()

        ended = await asyncio.gather(
            store.list(scope=ALICE),
            store.find("a.txt", scope=ALICE),
            store.stat(record.id, scope=ALICE),
            store.delete(record.id, scope=ALICE),
            read(store, record),
            return_exceptions=True,
        )
        waited_s = time.monotonic() - start

    assert all(isinstance(error, CallError) and error.code is Code.E_STORE for error in ended), ended
    assert all("try again later" in str(error) for error in ended)
    assert waited_s < SOON_S, f"{waited_s:.1f} s"
    assert await read(S3Store(rgw), record) == b"x" * 1000


async def test_files_for_a_silent_server_are_spooled_after_one_wait(
    rgw: BucketAddress, tmp_path: Path
) -> None:
    with Deaf(rgw, b"HTTP/1.1") as silent:
        store = SpoolingStore(S3Store(silent.address), Spool(tmp_path / "spool"))
        start = time.monotonic()

        records = [
            await store.put_bytes(b"%d" % number, Put(name=f"{number}.txt"), scope=ALICE)
            for number in range(10)
        ]
        waited_s = time.monotonic() - start

    assert all(record.pending for record in records)
    assert waited_s < 2 * SOON_S, f"{waited_s:.1f} s"
    # Each would have waited at least as long as a question does.
    assert waited_s < 10 * 5.0


@pytest.mark.parametrize("each", [8, 10_000], ids=["bounded", "control"])
async def test_one_users_waits_hold_up_nobody_else(
    rgw: BucketAddress, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "_WAITING_OF_ONE", each)
    await S3Store(rgw).put_bytes(b"bob's", Put(name="b.txt"), scope=BOB)
    with Deaf(rgw, b"alice") as deaf:
        store = S3Store(deaf.address)
        waiting = [asyncio.ensure_future(store.list(scope=ALICE)) for _ in range(200)]
        await asyncio.sleep(0.5)
        try:
            found = [record.name for record in await store.list(scope=BOB)]
        except CallError:
            found = []
        ended = await asyncio.gather(*waiting, return_exceptions=True)

    assert all(isinstance(error, CallError) for error in ended)
    assert found == (["b.txt"] if each == 8 else [])


async def read_deafening(reading: Content, proxy: Deaf) -> None:
    """Read; after each piece all connections break, and no request is heard any more."""
    async for _ in reading:
        for end in proxy.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        proxy.word = b"HTTP/1.1"


async def test_a_download_that_stalls_ends_as_an_error(
    rgw: BucketAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than the kernel buffers on its way: what has arrived there is read after the end, too.
    content = bytes(40_000_000)
    record = await S3Store(rgw).put_bytes(content, Put(name="a.bin"), scope=ALICE)
    monkeypatch.setattr("runner.store.s3.store._READ_S", 2.0)
    with Deaf(rgw, b"no such word") as proxy:
        store = S3Store(proxy.address)
        async with store.open(record, scope=ALICE) as reading:
            with pytest.raises(CallError) as failed:
                await read_deafening(reading, proxy)

    assert failed.value.code is Code.E_STORE


async def test_a_server_that_is_heard_again_is_used_again(rgw: BucketAddress) -> None:
    await S3Store(rgw).put_bytes(b"alice's", Put(name="a.txt"), scope=ALICE)
    with Deaf(rgw, b"alice") as deaf:
        store = S3Store(deaf.address)
        with pytest.raises(CallError):
            await store.list(scope=ALICE)

        deaf.word = b""

        assert [record.name for record in await store.list(scope=ALICE)] == ["a.txt"]
