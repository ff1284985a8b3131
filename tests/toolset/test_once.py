"""Objects made once for many callers, such as the listener where tools fetch files."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from starlette.routing import Route

from runner.http.loopback import Loopback
from runner.system.once import Once

pytestmark = pytest.mark.anyio


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave no descriptor free in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, hard))
    taken: list[int] = []
    try:
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_failed_listener_reopened_by_next_caller() -> None:
    async def answer(_: object) -> None:
        """Answer nothing."""

    once = Once(lambda: Loopback.open([Route("/", answer)]))
    with no_descriptors():
        results = await asyncio.gather(once.get(), once.get(), return_exceptions=True)

    opened, same = await once.get(), await once.get()
    reader, writer = await asyncio.open_connection(*opened.address)
    writer.close()
    await once.end(Loopback.close)

    assert [type(error) for error in results] == [OSError, OSError]
    assert opened is same
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*opened.address)
    assert reader is not None


async def test_end_of_failed_or_unmade_object_does_nothing() -> None:
    once = Once(lambda: Loopback.open([]))
    await once.end(Loopback.close)
    with no_descriptors(), pytest.raises(OSError, match="Too many open files"):
        await once.get()

    await once.end(Loopback.close)
