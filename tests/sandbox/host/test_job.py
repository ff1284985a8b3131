"""Background work in a worker between two calls: real processes, real limits."""

import asyncio
import os
from pathlib import Path

import pytest
from held_objects import open_descriptors
from kept_calls import leased, rests, run, value
from pools import reusing_pool_of
from support import becomes

from sandbox.host.forkserver import Forkserver
from sandbox.host.job import Job
from sandbox.host.lease import Lease
from sandbox.host.memory_guard import MemoryGuard
from sandbox.host.pool import Pool
from sandbox.host.retirement import Reuse
from sandbox.host.stopping import is_at_rest, is_stopped
from sandbox.host.worker import children_of
from sandbox.outcome import Ending
from sandbox.policy import MIB, Limits

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


async def start_job(pool: Pool, act: str, *args: object, session: str | None = None) -> Lease:
    """Run a call whose work may go on, and leave its worker to it."""
    lease = await asks(pool, act, *args, session=session)
    lease.release()
    return lease


async def asks(pool: Pool, act: str, *args: object, session: str | None = None) -> Lease:
    lease, outcome = await leased(pool, act, *args, goes_on=True, session=session)
    assert outcome.ending is Ending.ANSWERED, outcome
    return lease


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


async def proceeds(file: Path) -> bool:
    seen = {""}

    def has_changed_twice() -> bool:
        # A file that is rewritten is empty at times.
        seen.add(text_of(file))
        return len(seen) > 2

    return await becomes(has_changed_twice)


async def stands(file: Path) -> bool:
    before = text_of(file)
    await asyncio.sleep(0.3)
    return text_of(file) == before


async def test_job_continues_until_the_next_call(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "home" / "ticks"
    await start_job(pool, "ticks", str(file))

    assert await proceeds(file)
    assert await proceeds(file)
    assert value(await run(pool, "count"))["calls"] == 2
    assert await proceeds(file)
    assert not pool.zygote.retired


async def test_job_followed_by_a_call_at_once_leaks_no_descriptor(pool: Pool, tmp_path: Path) -> None:
    home = tmp_path / "home"

    def held() -> int:
        paths = (Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd"))
        return sum(path.is_symlink() and path.readlink() == home for path in paths)

    for _ in range(10):
        await start_job(pool, "ticks", str(home / "ticks"))
    await run(pool, "count")

    # One is the pool's own.
    assert await becomes(lambda: held() == 1 + len(pool.zygote.jobs()))


async def test_call_without_background_request_stops_afterwards(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "home" / "ticks"
    await run(pool, "ticks", str(file))
    await rests(pool)

    assert await stands(file)


@pytest.mark.parametrize("in_child", [False, True])
async def test_job_stops_while_outputs_are_read_and_then_continues(
    pool: Pool, tmp_path: Path, *, in_child: bool
) -> None:
    file = tmp_path / "home" / "ticks"
    act = ["begins", "write", str(file)] if in_child else ["ticks", str(file)]
    await start_job(pool, *act)
    assert await proceeds(file)
    lease, outcome = await leased(pool, "count")
    assert value(outcome)["calls"] == 2
    assert await proceeds(file)

    await lease.at_rest()
    beside = children_of(lease.worker.pid)
    assert bool(beside) is in_child
    assert is_stopped(lease.worker.pid)
    assert all(map(is_at_rest, beside))
    assert await stands(file)

    lease.release()
    assert await proceeds(file)
    assert not pool.zygote.retired


LIMITS = Limits(
    memory_bytes=256 * MIB,
    call_memory_bytes=300 * MIB,
    cpu_s=1,
    call_processes=20,
    home_bytes=32 * MIB,
    home_entries=200,
)


# What comes at once behind the answer may also be noticed together with it.
@pytest.mark.parametrize(
    ("what", "reasons"),
    [
        ("grow", {"call_memory_bytes", "memory"}),
        ("fork", {"call_processes"}),
        ("run_on", {"call_processes"}),
        ("burn", {"cpu_s"}),
        ("burn_in_children", {"cpu_s"}),
        ("fill", {"home_bytes"}),
        ("litter", {"home_entries"}),
        ("speak", {"spoke", "disorder"}),
        ("shut", {"spoke", "disorder"}),
        ("end", {"ended", "disorder"}),
    ],
)
async def test_job_is_ended_by_each_limit_and_by_its_messages(
    forkserver: Forkserver, tmp_path: Path, what: str, reasons: set[str]
) -> None:
    limits = LIMITS if what != "grow" else Limits(memory_bytes=2048 * MIB, call_memory_bytes=300 * MIB)
    async with reusing_pool_of(forkserver, tmp_path, limits=limits) as pool:
        lease = await start_job(pool, "begins", what)

        assert await becomes(lambda: bool(pool.zygote.retired))
        assert set(pool.zygote.retired) <= reasons
        assert await becomes(lambda: not Path(f"/proc/{lease.worker.pid}").exists())
        assert value(await run(pool, "count"))["calls"] == 1


async def test_job_memory_and_all_calls_share_the_limit_of_one_call(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with reusing_pool_of(forkserver, tmp_path, limits=Limits(memory_bytes=256 * MIB)) as pool:
        await start_job(pool, "count")
        held = [(await run(pool, "hold", 100 * MIB)).ending for _ in range(3)]

    assert held[:2] == [Ending.ANSWERED] * 2
    assert held[2] is not Ending.ANSWERED


async def test_job_output_belongs_to_no_call_and_does_not_stop_it(pool: Pool, tmp_path: Path) -> None:
    await start_job(pool, "begins", "print")
    assert await becomes((tmp_path / "home" / "printed").exists)

    assert (await run(pool, "print", "mine")).output == "mine\n"


async def test_job_denial_between_calls_belongs_to_no_call(pool: Pool, tmp_path: Path) -> None:
    lease = await start_job(pool, "begins", "denied")
    # Its thread ends with that, and so only the file is missing that says so.
    assert await becomes(lambda: len(os.listdir(f"/proc/{lease.worker.pid}/task")) == 1)

    after = await run(pool, "count")
    assert (value(after)["calls"], after.denials) == (2, ())
    assert [denial.path for denial in (await run(pool, "deny", "/usr/x")).denials] == ["/usr/x"]


async def test_next_call_uses_worker_with_job_not_the_last_used(pool: Pool) -> None:
    one, first = await leased(pool, "count", goes_on=True)
    two, _ = await leased(pool, "count")
    one.release()
    two.release()

    assert value(await run(pool, "count"))["pid"] == value(first)["pid"]


async def test_job_ends_by_age_and_not_by_idle_time(
    forkserver: Forkserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.host.parking._TIDY_S", 0.05)
    async with reusing_pool_of(forkserver, tmp_path, reuse=Reuse(calls=9, idle_s=0.1, age_s=2.0)) as pool:
        await start_job(pool, "count")
        await run(pool, "print", "", keeps=False)
        assert await becomes(lambda: bool(pool.zygote.retired))

    assert pool.zygote.retired == {"age": 1}


@pytest.mark.parametrize(("started_in", "ends"), [("a", True), ("b", False), (None, False)])
async def test_job_ends_with_its_session(pool: Pool, started_in: str | None, *, ends: bool) -> None:
    lease = await start_job(pool, "count", session=started_in)
    assert pool.has_jobs

    pool.end_jobs("a")
    await pool.zygote.settled()

    assert pool.has_jobs is not ends
    assert Path(f"/proc/{lease.worker.pid}").exists() is not ends


async def test_job_leaves_nothing_when_its_pool_closes(forkserver: Forkserver, tmp_path: Path) -> None:
    before = open_descriptors()
    async with reusing_pool_of(forkserver, tmp_path) as pool:
        file = tmp_path / "home" / "ticks"
        lease = await start_job(pool, "begins", "write", str(file))
        assert await proceeds(file)
        pids = {lease.worker.pid, *children_of(lease.worker.pid)}
        assert len(pids) == 2

    assert await becomes(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert await becomes(lambda: open_descriptors() <= before)


async def test_job_of_a_program_with_threads_continues(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, threads=True) as pool:
        file = tmp_path / "home" / "ticks"
        await start_job(pool, "ticks", str(file))

        assert await proceeds(file)
        assert value(await run(pool, "count"))["calls"] == 2


class Little:
    """The memory of a server in which there is none to spare."""

    limit_bytes = 64 * MIB
    reserve_bytes = 1 * MIB

    def kills(self) -> int:
        return 0

    def left_bytes(self) -> int:
        return 0


async def test_job_is_ended_when_server_memory_is_exhausted(pool: Pool) -> None:
    guard = MemoryGuard(memory=Little())  # type: ignore[arg-type]
    lease, _ = await leased(pool, "hold", 32 * MIB, goes_on=True)
    job = lease.release()
    assert isinstance(job, Job)

    guard.hold(job)
    assert await becomes(lambda: bool(pool.zygote.retired))
    await guard.close()

    assert pool.zygote.retired == {"server_memory_bytes": 1}
