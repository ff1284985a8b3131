"""Workers that stay with their user: real processes, stopped by the real kernel."""

import asyncio
import contextlib
import math
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import pytest
from held_objects import open_descriptors
from kept_calls import Options, leased, rests, run, value
from pools import Ears, reusing_pool_of
from support import becomes

from sandbox.deadlines import Deadlines
from sandbox.errors import SandboxError
from sandbox.host.forkserver import Forkserver
from sandbox.host.lease import Lease
from sandbox.host.pool import IdleWorkers, Pool
from sandbox.host.retirement import Reuse
from sandbox.host.stopping import is_stopped
from sandbox.host.usage import read_process
from sandbox.host.worker import Worker, children_of
from sandbox.outcome import Ending, Outcome
from sandbox.policy import MIB, Limits

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


async def test_next_call_runs_in_the_process_of_the_previous_one(pool: Pool) -> None:
    first, second = value(await run(pool, "count")), value(await run(pool, "count"))
    await rests(pool)
    third = value(await run(pool, "count"))

    assert [first["calls"], second["calls"], third["calls"]] == [1, 2, 3]
    assert first["pid"] == second["pid"] == third["pid"]


async def test_call_requiring_fresh_worker_gets_one_and_parks_none(pool: Pool) -> None:
    number = value(await run(pool, "count"))
    fresh = value(await run(pool, "count", keeps=False))
    again = value(await run(pool, "count"))

    assert (fresh["calls"], again["calls"]) == (1, 2)
    assert fresh["pid"] != number["pid"] == again["pid"]


async def test_last_used_worker_is_leased_first(pool: Pool) -> None:
    one, first = await leased(pool, "count")
    two, second = await leased(pool, "count")
    two.release()
    one.release()

    assert value(await run(pool, "count"))["pid"] == value(first)["pid"] != value(second)["pid"]


def cpu_s(worker: Worker) -> float:
    process = read_process(worker.pid)
    assert process is not None
    return process.cpu_s


async def waiting(pool: Pool, **options: Unpack[Options]) -> "asyncio.Task[Outcome]":
    """Begin a call that finds no worker parked, and has to wait for a fork."""
    before = pool.zygote.idle
    call = asyncio.create_task(run(pool, "count", **options))
    assert await becomes(lambda: pool.zygote.idle > before)
    return call


@contextlib.asynccontextmanager
async def nobody_free(pool: Pool) -> AsyncIterator[list[Lease]]:
    """Lease every worker at hand and stop their zygote: the next caller waits for a fork.

    Yields:
        The leases, oldest first. What the test leaves in the list is released once forks are made again.
    """
    leases = [(await leased(pool, "count"))[0] for _ in range(1 + pool.zygote.at_hand)]
    os.kill(pool.zygote.pid, signal.SIGSTOP)
    try:
        yield leases
    finally:
        os.kill(pool.zygote.pid, signal.SIGCONT)
        for lease in leases:
            lease.release()


async def test_waiter_for_fork_takes_worker_freed_meanwhile(pool: Pool) -> None:
    async with nobody_free(pool) as leases:
        fresh = await waiting(pool, keeps=False)
        narrower = await waiting(pool, limits=replace(pool.policy.limits, open_files=64))
        second, third = await waiting(pool), await waiting(pool)
        freed = leases.pop(0)
        freed.release()
        number = value(await second)

        assert (number["calls"], number["pid"]) == (2, freed.worker.pid)
        # Its worker is free again, and serves who waits next.
        assert value(await third)["calls"] == 3
        assert not fresh.done()
        assert not narrower.done()
    assert value(await fresh)["calls"] == value(await narrower)["calls"] == 1


async def test_cancelled_waiter_for_fork_leaves_the_worker_it_got(pool: Pool) -> None:
    async with nobody_free(pool) as leases:
        call = await waiting(pool)
        freed = leases.pop(0)
        freed.release()
        # Before it has its turn.
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        number = value(await run(pool, "count"))

    assert (number["calls"], number["pid"]) == (2, freed.worker.pid)


async def test_cancelled_waiter_is_removed_from_the_queue(pool: Pool) -> None:
    async with nobody_free(pool):
        calls = [await waiting(pool) for _ in range(5)]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        # Theirs are still to come: who waits next gets one of them, and orders no sixth.
        last = asyncio.create_task(run(pool, "count"))
        await asyncio.sleep(0)
        assert pool.zygote.idle == 5
        os.kill(pool.zygote.pid, signal.SIGCONT)
        assert value(await last)["calls"] == 1


@pytest.mark.parametrize("failures", [1, 2])
async def test_fork_fails_after_its_caller_got_another_worker(
    pool: Pool, tmp_path: Path, failures: int
) -> None:
    async with nobody_free(pool) as leases:
        first, second = [asyncio.create_task(leased(pool, "count")) for _ in range(2)]
        assert await becomes(lambda: pool.zygote.idle == 2)
        # The first gets a worker that has become free; what it has ordered is still to come.
        leases.pop(0).release()
        leases.append((await first)[0])
        for number in range(failures):
            (tmp_path / "home" / f"unready-{number}").touch()
        os.kill(pool.zygote.pid, signal.SIGCONT)
        if failures == 1:
            leases.append((await second)[0])
        else:
            with pytest.raises(SandboxError, match="it is not ready"):
                await second


async def test_worker_with_a_running_job_is_not_given_to_a_waiter(pool: Pool) -> None:
    job = (await leased(pool, "count", goes_on=True))[0]
    async with nobody_free(pool) as leases:
        call = await waiting(pool)
        assert job.release() is not None
        await asyncio.sleep(0)
        assert not call.done()
        assert len(pool.zygote.jobs()) == 1
        freed = leases.pop(0)
        freed.release()

        assert value(await call)["pid"] == freed.worker.pid


async def test_a_worker_whose_call_may_not_begin_goes_back_to_its_pool(pool: Pool) -> None:
    number = value(await run(pool, "count"))
    before = open_descriptors()
    for _ in range(10):
        lease = await pool.lease(pool.policy.limits, keeps=True)
        await lease.retire("abandoned")
        # As often as its caller is told of an end.
        await lease.retire("abandoned")

    again = value(await run(pool, "count"))

    assert (again["pid"], again["calls"]) == (number["pid"], 2)
    assert open_descriptors() <= before


@pytest.mark.parametrize("act", ["ticks", "timer"])
async def test_between_two_calls_no_instruction_of_a_worker_runs(
    pool: Pool, tmp_path: Path, act: str
) -> None:
    file = tmp_path / "home" / "ticks"
    # As long as the call is not released it goes on: what it writes is seen to change.
    lease, outcome = await leased(pool, act, str(file))
    assert outcome.ending is Ending.ANSWERED
    assert await becomes(file.exists)

    lease.release()
    await rests(pool)
    worker = lease.worker
    before = file.read_text(), cpu_s(worker)
    await asyncio.sleep(0.3)

    assert (file.read_text(), cpu_s(worker)) == before
    assert is_stopped(worker.pid)
    assert value(await run(pool, "count"))["calls"] == 2


async def test_outputs_are_read_while_the_worker_stands_still(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "home" / "ticks"
    lease, _ = await leased(pool, "ticks", str(file))
    seen: set[str] = set()

    def has_changed_twice() -> bool:
        seen.add(file.read_text())
        return len(seen) > 2

    assert await becomes(has_changed_twice)

    await lease.at_rest()
    text = file.read_text()
    await asyncio.sleep(0.2)

    assert file.read_text() == text
    lease.release()
    assert value(await run(pool, "count"))["calls"] == 2


@pytest.mark.parametrize("how", ["timer", "descriptor"])
async def test_stopped_worker_cannot_be_continued_through_the_kernel(
    pool: Pool, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "home" / "ticks"
    lease, outcome = await leased(pool, "wakes_itself", how, str(file))
    lease.release()

    assert value(outcome) in ("Function not implemented", "Operation not permitted")


async def test_caller_not_waiting_for_stop_leaves_a_responsive_worker(pool: Pool) -> None:
    for _ in range(20):
        lease, _ = await leased(pool, "count")
        resting = asyncio.create_task(lease.at_rest())
        await asyncio.sleep(0)
        resting.cancel()
        await asyncio.wait({resting})
        lease.release()

        assert (await run(pool, "count")).ending is Ending.ANSWERED


async def test_state_before_the_first_call_does_not_count(forkserver: Forkserver, tmp_path: Path) -> None:
    limits = Limits(memory_bytes=256 * MIB)
    async with reusing_pool_of(forkserver, tmp_path, limits=limits, warm_bytes=140 * MIB) as pool:
        counted = []
        for _ in range(3):
            counted.append(value(await run(pool, "count"))["calls"])
            await rests(pool)

    assert counted == [1, 2, 3]


async def test_no_worker_stays_where_the_machine_has_no_room(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.host.parking.has_room", lambda: False)
    await run(pool, "count")
    await rests(pool)

    assert value(await run(pool, "count"))["calls"] == 1
    assert pool.zygote.retired == {"no room": 1}


async def test_unflushable_output_loses_no_answer(pool: Pool) -> None:
    assert (await run(pool, "breaks_output")).ending is Ending.ANSWERED
    assert value(await run(pool, "count"))["calls"] == 2


async def test_worker_blocking_every_signal_is_stopped(pool: Pool) -> None:
    await run(pool, "blocks_signals")
    await rests(pool)

    assert value(await run(pool, "count"))["calls"] == 2


@pytest.mark.parametrize(
    ("act", "args", "reason"),
    [
        ("child", (), "left a process"),
        ("orphan", (), "left a process"),
        ("fork_late", (), "left a process"),
        ("hold", (140 * MIB,), "memory"),
        ("threads", (6,), "threads"),
        ("descriptors", (60,), "descriptors"),
        ("speaks_late", ("00000001", True), "spoke"),
        ("speaks_late", ("000000024e7b7d", True), "spoke"),
        ("speaks_late", ("00" * 1000, True), "spoke"),
        ("shuts_late", (), "spoke"),
        ("asks_and_answers", (), "disorder"),
        ("answers_and_goes_on", ("ANSWER",), "not ready"),
        ("loses_its_environment", (), "not ready"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_odd_worker_state_ends_it(
    forkserver: Forkserver, tmp_path: Path, act: str, args: tuple[object, ...], reason: str
) -> None:
    limits = Limits(memory_bytes=256 * MIB, call_processes=8, open_files=100)
    async with reusing_pool_of(forkserver, tmp_path, limits=limits) as pool:
        # Who asks and does not wait has no reply yet when its answer comes.
        lease, outcome = await leased(pool, act, *args, ears=Ears(delay_s=math.inf))
        assert outcome.ending is Ending.ANSWERED
        if act.endswith("late"):
            done = tmp_path / "home" / "done"
            assert await becomes(lambda: done.exists() or bool(pool.zygote.retired))
        lease.release()
        await rests(pool)
        after = value(await run(pool, "count"))

        assert after["calls"] == 1
        # What is said behind the answer may also be read together with it.
        assert pool.zygote.retired in ({reason: 1}, {"disorder": 1} if act == "speaks_late" else {})


async def test_reply_unread_by_a_call_does_not_disturb_later_calls(pool: Pool) -> None:
    await run(pool, "asks_and_waits_for_the_reply")
    counted = [value(await run(pool, "count"))["calls"] for _ in range(2)]

    assert counted == [2, 3]
    assert pool.zygote.retired == {}


async def test_worker_out_of_descriptors_serves_no_other_call(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, limits=Limits(open_files=100)) as pool:
        little = [await run(pool, "descriptors", 10) for _ in range(2)]
        await run(pool, "descriptors", 50)
        after = value(await run(pool, "count"))
        retired = dict(pool.zygote.retired)

    assert [outcome.ending for outcome in little] == [Ending.ANSWERED] * 2
    assert after["calls"] == 1
    assert retired == {"descriptors": 1}


@pytest.mark.parametrize("mapped", [False, True])
async def test_worker_with_large_unnamed_files_serves_no_other_call(
    forkserver: Forkserver, tmp_path: Path, *, mapped: bool
) -> None:
    async with reusing_pool_of(forkserver, tmp_path, limits=Limits(home_bytes=16 * MIB)) as pool:
        home = str(tmp_path / "home")
        await run(pool, "hides", home, MIB // 2, mapped)
        await rests(pool)
        little = value(await run(pool, "count"))
        await run(pool, "hides", home, 2 * MIB, mapped)
        await rests(pool)
        much = value(await run(pool, "count"))
        retired = dict(pool.zygote.retired)

    assert (little["calls"], much["calls"]) == (2, 1)
    assert retired == {"files without a name": 1}


async def test_false_ready_message_costs_its_own_user_one_call(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with reusing_pool_of(forkserver, tmp_path) as pool:
        forged = await run(pool, "answers_and_goes_on", "ANSWER_AND_READY")
        silent = await run(pool, "count", idle_s=1.0)
        after = await run(pool, "count")

    assert value(forged) == "forged"
    assert silent.ending is Ending.IDLE_TIMEOUT
    assert value(after)["calls"] == 1


async def test_the_answer_of_a_call_before_answers_no_other(pool: Pool) -> None:
    forged = await run(pool, "answers_twice", 0.5)
    late = await run(pool, "count")
    after = await run(pool, "count")

    assert value(forged) == "forged"
    assert (late.ending, late.fault) == (Ending.BROKE_PROTOCOL, "an answer to another call")
    assert value(after)["calls"] == 1


async def test_message_on_channel_of_ended_call_is_dropped(pool: Pool, tmp_path: Path) -> None:
    lease, _ = await leased(pool, "speaks_late", "NOTIFY", False)
    assert await becomes((tmp_path / "home" / "done").exists)
    lease.release()
    ears = Ears()
    lease = await pool.lease(pool.policy.limits, keeps=True)
    outcome = await lease.run({"act": "count"}, deadlines=Deadlines(), listener=ears)
    lease.release()

    assert not pool.zygote.retired
    assert value(outcome)["calls"] == 2
    assert ears.notes == []


async def test_worker_continued_by_others_serves_no_other_call(pool: Pool) -> None:
    pid = value(await run(pool, "count"))["pid"]
    await rests(pool)
    os.kill(pid, signal.SIGCONT)
    assert await becomes(lambda: not is_stopped(pid))

    assert value(await run(pool, "count"))["pid"] != pid
    assert pool.zygote.retired == {"continued": 1}


async def test_worker_killed_between_calls_is_not_reused(pool: Pool) -> None:
    pid = value(await run(pool, "count"))["pid"]
    await rests(pool)
    os.kill(pid, signal.SIGKILL)
    assert await becomes(lambda: not Path(f"/proc/{pid}").exists())

    assert value(await run(pool, "count"))["calls"] == 1
    assert pool.zygote.retired == {"ended": 1}


def _has_lost_its_first_thread(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        # The watcher of jobs between calls was faster, and it has been reaped.
        return True


async def test_worker_without_first_thread_serves_no_other_call(pool: Pool) -> None:
    lease, _ = await leased(pool, "loses_its_first_thread", goes_on=True)
    pid = lease.worker.pid
    lease.release()
    assert await becomes(lambda: _has_lost_its_first_thread(pid))

    after = value(await run(pool, "count"))

    assert after["calls"] == 1
    assert pool.zygote.retired == {"ended": 1}


@pytest.mark.parametrize(
    ("act", "ending"), [("crash", Ending.CRASHED), ("raises", Ending.CRASHED), ("sleep", Ending.IDLE_TIMEOUT)]
)
async def test_failed_call_ends_its_worker(pool: Pool, act: str, ending: Ending) -> None:
    await run(pool, "count")
    outcome = await run(pool, act, idle_s=0.5)

    assert outcome.ending is ending
    assert value(await run(pool, "count"))["calls"] == 1


async def test_cancelled_call_ends_its_worker(pool: Pool) -> None:
    pid = value(await run(pool, "count"))["pid"]
    parked = pool.zygote.at_hand
    running = asyncio.create_task(run(pool, "sleep"))
    assert await becomes(lambda: pool.zygote.at_hand < parked)
    running.cancel()
    await asyncio.wait({running})
    await pool.zygote.settled()

    assert not Path(f"/proc/{pid}").exists()
    assert value(await run(pool, "count"))["calls"] == 1


async def test_a_worker_serves_so_many_calls_and_no_more(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, reuse=Reuse(calls=3)) as pool:
        counted = [value(await run(pool, "count"))["calls"] for _ in range(7)]

        assert counted == [1, 2, 3, 1, 2, 3, 1]
        assert pool.zygote.retired == {"calls": 2}


@pytest.mark.parametrize("reason", ["age", "idle"])
async def test_an_old_or_idle_worker_takes_no_further_call(
    forkserver: Forkserver, tmp_path: Path, reason: str
) -> None:
    async with reusing_pool_of(forkserver, tmp_path, reuse=Reuse(calls=9, **{f"{reason}_s": 0.2})) as pool:
        first = value(await run(pool, "count"))
        await asyncio.sleep(0.3)
        second = value(await run(pool, "count"))

        assert (first["calls"], second["calls"]) == (1, 1)
        assert first["pid"] != second["pid"]
        assert pool.zygote.retired == {reason: 1}


async def test_time_of_a_call_and_before_it_is_not_idle_time(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, reuse=Reuse(calls=9, idle_s=3600.0)) as pool:
        lease, first = await leased(pool, "count")
        # As if the process had been made, and the call had begun, long ago.
        lease.worker.idle_since -= 7200.0
        lease.release()
        second = value(await run(pool, "count"))

        assert (second["calls"], second["pid"]) == (2, value(first)["pid"])
        assert pool.zygote.retired == {}


async def test_a_worker_ages_from_its_first_call(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, reuse=Reuse(calls=9, age_s=5.0)) as pool:
        made = time.monotonic()
        lease, _ = await leased(pool, "count")
        lease.release()

        assert lease.worker.first_called >= made
        assert value(await run(pool, "count"))["calls"] == 2


async def test_process_changes_of_a_call_are_reset_for_the_next(pool: Pool, tmp_path: Path) -> None:
    before = value(await run(pool, "where"))
    await run(pool, "moves", "/usr")

    assert value(await run(pool, "where")) == before
    assert before == [str(tmp_path / "home"), 0o077, ["ONLY"], False, None]


@pytest.mark.parametrize("timer", ["ITIMER_REAL", "ITIMER_VIRTUAL", "ITIMER_PROF"])
async def test_a_timer_of_a_call_does_not_end_the_next_one(pool: Pool, timer: str) -> None:
    await run(pool, "alarms", timer)

    outcome = await run(pool, "lasts")

    assert (outcome.ending, value(outcome)) == (Ending.ANSWERED, "lasted")
    assert value(await run(pool, "count"))["calls"] == 3
    assert pool.zygote.retired == {}


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_STACK"])
async def test_limit_narrowed_by_a_call_affects_no_other(pool: Pool, limit: str) -> None:
    before = value(await run(pool, "limit", limit))
    narrowed = value(await run(pool, "narrows", limit, False))
    after = value(await run(pool, "limit", limit))
    # What cannot be raised again, the worker takes with it.
    narrowed_for_good = value(await run(pool, "narrows", limit, True))
    last = value(await run(pool, "limit", limit))

    assert narrowed != before == after == last != narrowed_for_good
    assert pool.zygote.retired == {"not ready": 1}
    assert value(await run(pool, "count"))["calls"] == 2


async def test_time_zone_set_by_a_call_affects_no_other(pool: Pool) -> None:
    before = value(await run(pool, "zone"))

    assert value(await run(pool, "travels")) == "XYZ" != before
    assert value(await run(pool, "zone")) == before
    assert pool.zygote.retired == {}


async def test_output_and_denials_are_those_of_the_call(pool: Pool, tmp_path: Path) -> None:
    first = await run(pool, "print", "one")
    denied = await run(pool, "deny", "/usr/x")
    lease, _ = await leased(pool, "prints_late")
    assert await becomes((tmp_path / "home" / "done").exists)
    lease.release()
    again = await run(pool, "deny", "/usr/x")
    last = await run(pool, "print", "two")

    assert (first.output, last.output) == ("one\n", "two\n")
    assert [denial.path for denial in denied.denials] == ["/usr/x"]
    assert again.denials == denied.denials
    assert (again.output, last.denials) == ("", ())


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("how", ["connect", "look_up"])
async def test_gate_refusal_after_answer_is_not_recorded_for_next_call(
    forkserver: Forkserver, tmp_path: Path, how: str, *, goes_on: bool
) -> None:
    async with reusing_pool_of(forkserver, tmp_path, net=("127.0.0.1:9",)) as pool:
        result = await run(pool, how, goes_on=goes_on)
        lease, outcome = await leased(pool, "begins", how)
        assert await becomes((tmp_path / "home" / "done").exists)
        lease.release()
        after = await run(pool, "count")
        again = await run(pool, how)
        retired = dict(pool.zygote.retired)

    assert [denial.layer for denial in result.denials] == ["kernel"]
    assert again.denials == result.denials
    # It may come before the host has read the answer; then it is a matter of the call that began it.
    assert outcome.denials in ((), result.denials)
    assert after.denials == ()
    assert (value(after)["calls"], retired) == (3, {})


async def test_burst_leaves_a_full_stock_that_shrinks_to_one_spare(
    forkserver: Forkserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.host.pool.CALM_S", 0.5)
    async with reusing_pool_of(forkserver, tmp_path, idle_workers=IdleWorkers(least=2, most=3)) as pool:
        leases = [await leased(pool, "count") for _ in range(6)]
        for lease, _ in leases:
            lease.release()
        last = value(leases[-1][1])["pid"]
        pool.refill()
        after_burst = pool.zygote.idle
        assert await becomes(lambda: pool.zygote.idle == 2)

        assert after_burst == 3
        # The one that was used last stays.
        assert value(await run(pool, "count"))["pid"] == last
        pool.refill()
        assert await becomes(lambda: pool.zygote.at_hand == 2)


async def test_tools_with_limits_of_their_own_leave_no_more_workers(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with reusing_pool_of(forkserver, tmp_path, idle_workers=IdleWorkers(least=1, most=2)) as pool:
        for number in range(6):
            await run(pool, "count", limits=replace(pool.policy.limits, cpu_s=10 + number))
            pool.refill()
            assert pool.zygote.idle <= 2


async def test_no_more_one_shot_processes_stay_either(
    forkserver: Forkserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.host.pool.CALM_S", 0.5)
    async with reusing_pool_of(
        forkserver, tmp_path, threads=True, idle_workers=IdleWorkers(least=1, most=2)
    ) as pool:
        leases = [await leased(pool, "count") for _ in range(4)]
        for lease, _ in leases:
            lease.release()
        pool.refill()
        assert await becomes(lambda: len(children_of(forkserver.process.pid)) <= 2)
        assert await becomes(lambda: len(children_of(forkserver.process.pid)) == 1)
        assert value(await run(pool, "count"))["calls"] == 2


async def test_each_call_has_the_processor_time_of_a_call(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, limits=Limits(cpu_s=2)) as pool:
        limits = [value(await run(pool, "burn", 0.7)) for _ in range(4)]
        assert value(await run(pool, "count"))["calls"] == 5
        over = await run(pool, "burn", 5, idle_s=100.0, total_s=200.0)

    assert limits == sorted(limits)
    assert limits[-1] > limits[0]
    assert over.ending is Ending.OVER_LIMIT
    assert over.reached is not None
    assert over.reached.limit == "cpu_s"


@pytest.mark.release
async def test_worker_raising_its_cpu_limit_is_ended(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, limits=Limits(cpu_s=1)) as pool:
        await run(pool, "burn", 0.3)
        outcome = await run(pool, "burn_on", idle_s=100.0, total_s=200.0)

    assert outcome.ending is Ending.OVER_LIMIT
    assert outcome.reached is not None
    assert outcome.reached.limit == "cpu_s"


async def test_memory_of_a_call_is_counted_above_its_worker(forkserver: Forkserver, tmp_path: Path) -> None:
    async with reusing_pool_of(forkserver, tmp_path, limits=Limits(memory_bytes=256 * MIB)) as pool:
        before = value(await run(pool, "limits"))["DATA"]
        await run(pool, "hold", 100 * MIB)
        after = value(await run(pool, "limits"))["DATA"]
        held = await run(pool, "hold", 230 * MIB)

    assert after - before >= 95 * MIB
    assert held.ending is Ending.ANSWERED


async def test_a_call_with_narrower_limits_leaves_them_to_no_other(pool: Pool) -> None:
    narrow = replace(pool.policy.limits, open_files=77, cpu_s=7)
    wide = value(await run(pool, "count"))
    limited = value(await run(pool, "limits", limits=narrow))
    again = value(await run(pool, "limits", limits=narrow))
    after = value(await run(pool, "count"))

    assert (limited["NOFILE"], limited["CPU"]) == (77, 7)
    assert again["NOFILE"] == 77
    assert after == {"calls": 2, "pid": wide["pid"]}


async def test_a_program_with_threads_keeps_its_one_shot_process(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with reusing_pool_of(forkserver, tmp_path, threads=True) as pool:
        assert not pool.forks
        counted = [value(await run(pool, "count")) for _ in range(3)]

    assert [each["calls"] for each in counted] == [1, 2, 3]
    assert len({each["pid"] for each in counted}) == 1


async def test_a_poisoned_worker_harms_its_own_pool_only(forkserver: Forkserver, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    mine.mkdir()
    other.mkdir()
    async with reusing_pool_of(forkserver, mine) as one, reusing_pool_of(forkserver, other) as two:
        pid = value(await run(two, "count"))["pid"]
        await run(one, "poisons")
        await run(one, "count")

        assert value(await run(two, "count")) == {"calls": 2, "pid": pid}


async def test_parked_workers_leave_nothing_when_their_pool_closes(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    before = open_descriptors()
    async with reusing_pool_of(forkserver, tmp_path) as pool:
        leases = [await leased(pool, "count") for _ in range(3)]
        pids = [value(outcome)["pid"] for _, outcome in leases]
        for lease, _ in leases[:2]:
            lease.release()
        await rests(pool, held=leases[2][0])
    leases[2][0].release()

    assert await becomes(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert await becomes(lambda: open_descriptors() <= before)
