"""Forkserver, zygote, pool and lease with a small program: real processes, real kernel."""

import asyncio
import errno
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from immortals import HAS_IMMORTALS
from pools import ENVIRONMENT, TESTS, Ears, forkserver_of, parks, pool_of, run
from support import becomes

from sandbox.deadlines import Deadlines
from sandbox.errors import ConfinementError, LoadError, SandboxError, ZygoteDied
from sandbox.frames import FrameKind, encode
from sandbox.host.call_watch import FIRST_LOOK_S
from sandbox.host.forkserver import Forkserver
from sandbox.host.launch import launch
from sandbox.host.pool import IdleWorkers, Pool
from sandbox.host.worker import children_of
from sandbox.outcome import Denial, Ending, Outcome
from sandbox.policy import MIB, Limits, Policy

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture(scope="module")
async def forkserver() -> AsyncIterator[Forkserver]:
    async with forkserver_of("small") as server:
        yield server


@pytest.fixture
async def pool(forkserver: Forkserver, tmp_path: Path) -> AsyncIterator[Pool]:
    async with pool_of(forkserver, tmp_path) as it:
        yield it


def value(outcome: Outcome) -> Any:
    assert outcome.answer is not None, outcome
    return outcome.answer["value"]


async def test_only_a_lasting_call_is_sampled(pool: Pool) -> None:
    short = await run(pool, "echo", 1)
    long = await run(pool, "sleep", idle_s=2)

    # A machine with much to do may take as long for it as a call may take unseen.
    assert short.memory_peak_bytes is None or short.elapsed_s > FIRST_LOOK_S
    assert long.memory_peak_bytes is not None
    assert long.memory_peak_bytes > MIB


async def test_a_call_has_limits_of_its_own_within_those_of_its_pool(pool: Pool) -> None:
    lease = await pool.lease(replace(pool.policy.limits, open_files=77, cpu_s=7, file_bytes=777))
    outcome = await lease.run({"act": "limits"}, deadlines=Deadlines(), listener=Ears())
    await lease.at_rest()

    assert value(outcome) == {"CPU": 7, "FSIZE": 777, "NOFILE": 77}
    assert value(await run(pool, "limits")) == {"CPU": 600, "FSIZE": 51_200 * MIB, "NOFILE": 1024}


async def test_a_call_is_answered_by_a_process_of_its_own(pool: Pool) -> None:
    first, second = value(await run(pool, "pid")), value(await run(pool, "pid"))

    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert first["pid"] != second["pid"]
    assert first["group"] == first["pid"]
    assert first["parent"] == first["session"] == pool.zygote.pid


async def test_a_worker_is_born_bound_to_its_home(pool: Pool, tmp_path: Path) -> None:
    inside = value(await run(pool, "write", str(tmp_path / "home" / "a")))
    outside = value(await run(pool, "write", str(tmp_path / "b")))
    scratch = value(await run(pool, "write", str(tmp_path / "scratch" / "c")))

    assert (inside, outside, scratch) == (0, errno.EACCES, errno.EACCES)


async def test_without_a_home_nothing_can_be_written(forkserver: Forkserver, tmp_path: Path) -> None:
    async with pool_of(forkserver, tmp_path, with_home=False) as pool:
        denied = value(await run(pool, "write", str(tmp_path / "home" / "a")))

    assert denied == errno.EACCES


async def test_import_may_write_only_the_scratch_folder(forkserver: Forkserver, tmp_path: Path) -> None:
    scratch, outside = tmp_path / "scratch" / "a", tmp_path / "outside"

    async with pool_of(forkserver, tmp_path, load="writes", path=str(scratch)) as pool:
        allowed = pool.loaded.hello
    async with pool_of(forkserver, tmp_path, load="writes", path=str(outside)) as pool:
        denied = pool.loaded.hello

    assert "errno" not in allowed
    assert scratch.read_text() == "written at import"
    assert denied == {"errno": errno.EACCES}
    assert not outside.exists()


async def test_a_worker_sees_its_policys_environment_and_nothing_else(pool: Pool) -> None:
    environment = value(await run(pool, "environment"))

    assert environment == {"PATH": os.environ["PATH"], "ONLY": "this"}


async def test_a_worker_inherits_no_descriptor_but_its_connection(pool: Pool) -> None:
    assert value(await run(pool, "descriptors")) == []


async def test_unloadable_program_reports_cause_and_line(forkserver: Forkserver, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="line 3 is wrong") as failed:
        async with pool_of(forkserver, tmp_path, load="fails"):
            pass

    assert failed.value.line == 3


async def test_program_exiting_at_load_is_reported_with_last_output(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    with pytest.raises(LoadError, match=r"^it exits; its last output: error: --root is required$"):
        async with pool_of(forkserver, tmp_path, load="exits"):
            pass


async def test_program_hanging_at_load_is_abandoned(forkserver: Forkserver, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"still being imported after 0\.3 seconds \(load_timeout_s\)"):
        async with pool_of(forkserver, tmp_path, load="hangs", load_timeout_s=0.3):
            pass


@pytest.mark.parametrize(
    ("limits", "config"),
    [
        (Limits(home_bytes=1), {"load": "writes"}),
        (Limits(home_bytes=4 * MIB), {"load": "maps"}),
        (Limits(call_memory_bytes=128 * MIB), {"load": "grows"}),
        (Limits(call_processes=1), {"breeds": "fork"}),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else "",
)
async def test_import_beyond_the_limits_of_a_call_is_ended(
    forkserver: Forkserver, tmp_path: Path, limits: Limits, config: dict[str, Any]
) -> None:
    path = str(tmp_path / "scratch" / "a")

    async with pool_of(forkserver, tmp_path, path=path, **config) as pool:
        assert pool.alive
    with pytest.raises(LoadError, match="its import exceeded a limit: "):
        async with pool_of(forkserver, tmp_path, limits=limits, path=path, stays=True, **config):
            pass


async def test_program_dying_at_load_is_reported(forkserver: Forkserver, tmp_path: Path) -> None:
    with pytest.raises(ZygoteDied, match="exit status 9"):
        async with pool_of(forkserver, tmp_path, load="dies"):
            pass


async def test_a_program_with_threads_gets_one_shot_interpreters(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with pool_of(forkserver, tmp_path, load="threads") as pool:
        answers = [value(await run(pool, "echo", n)) for n in range(3)]
        outside = value(await run(pool, "write", str(tmp_path / "b")))

    assert pool.loaded.threads == 2
    assert not pool.forks
    assert answers == [0, 1, 2]
    assert outside == errno.EACCES


@pytest.mark.parametrize("how", ["fork", "clone without exit signal"])
async def test_program_that_starts_a_process_is_loaded_for_each_call(
    forkserver: Forkserver, tmp_path: Path, how: str
) -> None:
    async with pool_of(forkserver, tmp_path, breeds=how) as pool:
        lease = await pool.lease(pool.policy.limits)
        started = children_of(lease.worker.pid)
        outcome = await lease.run({"act": "echo", "args": [7]}, deadlines=Deadlines(), listener=Ears())
        await lease.at_rest()
        left = [pid for pid in started if psutil.pid_exists(pid)]

    assert (pool.forks, len(started), left) == (False, 1, [])
    assert value(outcome) == 7


@pytest.mark.parametrize("load", ["process later", "process in a group later"])
async def test_zygote_that_starts_a_process_later_is_closed(
    forkserver: Forkserver, tmp_path: Path, load: str
) -> None:
    async with pool_of(forkserver, tmp_path, load=load) as pool:
        assert pool.forks
        assert await becomes(
            lambda: pool.zygote.idle == pool.zygote.at_hand and bool(pool.zygote.import_processes())
        )
        started = pool.zygote.import_processes()
        answer = value(await run(pool, "echo", 7))
        # As each end of a call does.
        assert await becomes(lambda: pool.zygote.has_strays(pool.zygote.pid) and not pool.zygote.alive)

        assert await becomes(lambda: not any(map(psutil.pid_exists, started)))

    assert (answer, pool.zygote.alive) == (7, False)


async def test_worker_that_cannot_get_ready_is_reported(forkserver: Forkserver, tmp_path: Path) -> None:
    async with pool_of(forkserver, tmp_path, prepare="fails") as pool:
        with pytest.raises(SandboxError, match="cannot get ready"):
            await pool.ready()


async def test_exhausted_pool_holds_more_workers_until_unused(
    forkserver: Forkserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox.host.pool.CALM_S", 1.5)
    async with pool_of(forkserver, tmp_path, idle_workers=IdleWorkers(least=1, most=3)) as pool:
        await pool.ready()
        outcomes = await asyncio.gather(*(run(pool, "echo", number) for number in range(6)))
        pool.refill()
        after_calls = pool.zygote.idle
        await parks(pool, 1)
        await pool.zygote.settled()
        left = children_of(pool.zygote.pid)

    assert sorted(value(outcome) for outcome in outcomes) == list(range(6))
    assert (after_calls, len(left)) == (3, 1)


async def test_first_call_of_pool_does_not_raise_worker_target(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with pool_of(forkserver, tmp_path, idle_workers=IdleWorkers(least=1, most=3)) as pool:
        found = pool.zygote.at_hand
        await run(pool, "echo", 1)
        size = pool.idle_workers.size
        pool.refill()
        await parks(pool, 1)
        await asyncio.gather(run(pool, "echo", 2), run(pool, "echo", 3))

        assert (found, size, pool.idle_workers.size) == (0, 1, 2)


def huge_bytes(pid: int) -> int:
    facts = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * next(int(line.split()[1]) for line in facts.splitlines() if line.startswith("AnonHuge"))


async def test_large_zygote_memory_moves_to_huge_pages_unchanged(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "small").mkdir()
    async with (
        pool_of(forkserver, tmp_path / "large", load="grows") as large,
        pool_of(forkserver, tmp_path / "small") as small,
    ):
        digest = value(await run(large, "digest"))
        await small.ready()
        huge = [huge_bytes(pool.zygote.pid) for pool in (large, small)]

    assert digest == large.loaded.hello["digest"]
    assert huge[0] > 250 * MIB > huge[1]


async def test_layer_that_cannot_be_applied_ends_the_zygote(forkserver: Forkserver, tmp_path: Path) -> None:
    policy = Policy(home=tmp_path)

    with pytest.raises(ConfinementError, match="home"):
        await Pool.start(
            forkserver,
            policy,
            {},
            home_fd=None,
            load_timeout_s=120,
            idle_workers=IdleWorkers(least=1, most=1),
        )


async def test_notifications_arrive_in_order_before_the_answer(pool: Pool) -> None:
    ears = Ears()

    outcome = await run(pool, "notify", 200, ears=ears)

    assert value(outcome) == 200
    assert [note["number"] for note in ears.notes] == list(range(200))


async def test_simultaneous_frames_arrive_complete_and_in_order(pool: Pool) -> None:
    frames = [encode(FrameKind.NOTIFY, {"number": number}) for number in range(550)]
    ears = Ears()

    outcome = await run(
        pool, "raw", b"".join([*frames, encode(FrameKind.ANSWER, {"value": "last"})]).hex(), ears=ears
    )

    assert value(outcome) == "last"
    assert [note["number"] for note in ears.notes] == list(range(550))


async def test_a_call_longer_than_its_connection_holds_arrives_whole(pool: Pool) -> None:
    text = "long" * 1_000_000

    assert value(await run(pool, "echo", text)) == text


async def test_call_of_invalid_json_crashes_without_answer(pool: Pool) -> None:
    outcome = await run(pool, "echo", float("nan"))
    after = value(await run(pool, "echo", "fine"))

    assert outcome.ending is Ending.CRASHED
    assert after == "fine"


async def test_notification_to_slow_client_precedes_the_answer(pool: Pool) -> None:
    ears = Ears(takes_s=0.1)

    outcome = await run(pool, "notify", 1, ears=ears)

    assert value(outcome) == 1
    assert [note["number"] for note in ears.notes] == [0]


async def test_a_request_is_answered(pool: Pool) -> None:
    answered = value(await run(pool, "ask", "why?", ears=Ears(answer={"because": 1})))

    assert answered == {"id": 1, "because": 1}


async def test_waiting_for_the_client_is_no_silence(pool: Pool) -> None:
    patient = await run(pool, "ask", "why?", ears=Ears(waits=True, delay_s=1.0), idle_s=0.5)
    impatient = await run(pool, "ask", "why?", ears=Ears(waits=False, delay_s=1.0), idle_s=0.5)

    assert patient.ending is Ending.ANSWERED
    assert impatient.ending is Ending.IDLE_TIMEOUT


@pytest.mark.parametrize("limit", ["idle_s", "total_s"])
async def test_a_call_ends_at_its_limit(pool: Pool, limit: str) -> None:
    outcome = await run(pool, "sleep", idle_s=0.3, total_s=60.0 if limit == "idle_s" else 0.3)

    assert outcome.ending is (Ending.IDLE_TIMEOUT if limit == "idle_s" else Ending.TOTAL_TIMEOUT)
    assert outcome.status == "signal SIGKILL"


@pytest.mark.parametrize("act", ["not_json", "nan"])
async def test_invalid_json_answer_is_a_crash_with_its_reason(pool: Pool, act: str) -> None:
    outcome = await run(pool, act)

    assert outcome.ending is Ending.CRASHED
    assert "JSON" in outcome.output


@pytest.mark.parametrize(
    "data", ["ff" * 40, "00000002417b7d" + "ff" * 10, "0000000241" + "7b7b", "00000001" + "5a" + "31"]
)
async def test_garbage_breaks_the_protocol_and_only_this_call(pool: Pool, data: str) -> None:
    outcome = await run(pool, "raw", data)
    after = value(await run(pool, "echo", "fine"))

    assert outcome.ending in (Ending.BROKE_PROTOCOL, Ending.ANSWERED)
    assert (outcome.ending is Ending.ANSWERED) == data.startswith("00000002417b7d")
    assert after == "fine"


async def test_frame_above_the_limit_breaks_the_protocol(forkserver: Forkserver, tmp_path: Path) -> None:
    async with pool_of(forkserver, tmp_path, limits=Limits(frame_bytes=1000)) as pool:
        declared = await run(pool, "long_frame", 4_000_000_000)
        sent = await run(pool, "echo", "x" * 2000)

    assert (declared.ending, sent.ending) == (Ending.BROKE_PROTOCOL, Ending.BROKE_PROTOCOL)
    assert "above the limit of 1000" in str(declared.fault)


@pytest.mark.parametrize("kind", ["CALL", "REPLY", "FORK", "LOADED", "ZYGOTE", "ENDED"])
async def test_a_worker_cannot_speak_for_the_host_or_a_zygote(pool: Pool, kind: str) -> None:
    outcome = await run(pool, "sends_kind", kind)

    assert outcome.ending is Ending.BROKE_PROTOCOL
    assert kind in str(outcome.fault)


async def test_the_first_answer_counts(pool: Pool) -> None:
    assert value(await run(pool, "answers_twice")) == "first"


async def test_child_holding_the_connection_hides_no_crash(pool: Pool) -> None:
    outcome = await run(pool, "held_socket")

    assert (outcome.ending, outcome.status) == (Ending.CRASHED, "exit status 5")


async def test_orphaned_child_is_dead_before_the_outcome(pool: Pool) -> None:
    lease = await pool.lease(Limits())

    outcome = await lease.run({"act": "answers_and_leaves_a_child"}, deadlines=Deadlines(), listener=Ears())

    assert not Path(f"/proc/{value(outcome)}").exists()
    await lease.at_rest()


async def test_output_above_the_limit_retains_its_end(forkserver: Forkserver, tmp_path: Path) -> None:
    async with pool_of(forkserver, tmp_path, limits=Limits(output_bytes=1000)) as pool:
        outcome = await run(pool, "prints", 10_000_000)

    assert outcome.ending is Ending.ANSWERED
    assert len(outcome.output) == 1000
    assert outcome.output.endswith("xend")


async def test_denials_are_recorded_up_to_a_bound(pool: Pool) -> None:
    outcome = await run(pool, "denies", 5000)

    assert len(outcome.denials) == 100
    assert outcome.denials[0] == Denial(operation="open", path="/0", layer="guard")


async def test_only_a_spare_worker_warms_libraries_again(pool: Pool) -> None:
    await pool.ready()

    assert value(await run(pool, "warmth")) is True


async def test_worker_beyond_processor_count_is_not_warmed(forkserver: Forkserver, tmp_path: Path) -> None:
    processors = len(os.sched_getaffinity(0))
    # Room for all of them: one too many would be ended after the first call.
    enough = IdleWorkers(least=0, most=processors + 1)
    async with pool_of(forkserver, tmp_path, idle_workers=enough) as pool:
        for _ in range(processors + 1):
            pool.zygote.order(1)
        assert await becomes(lambda: pool.zygote.at_hand == processors + 1)
        warmed = [value(await run(pool, "warmth")) for _ in range(processors + 1)]

    assert sorted(warmed) == [False, *[True] * processors]


async def _take_all(pool: Pool) -> None:
    for _ in range(100):
        await pool.zygote.take()


async def test_zygote_that_slows_system_calls_ends_with_its_reason(pool: Pool) -> None:
    ears = Ears(delay_s=math.inf)
    call = asyncio.create_task(run(pool, "ask", "why?", ears=ears))
    await ears.called.wait()

    pool.zygote.loop_share.slowed()
    outcome = await call

    assert (outcome.ending, pool.zygote.alive) == (Ending.CRASHED, False)
    assert "epoll" in str(outcome.cause)


async def test_a_killed_zygote_is_noticed_and_its_workers_are_gone(
    forkserver: Forkserver, tmp_path: Path
) -> None:
    async with pool_of(forkserver, tmp_path) as pool:
        await pool.ready()
        worker = await pool.zygote.take()
        os.kill(pool.zygote.pid, 9)
        with pytest.raises(ZygoteDied):
            await _take_all(pool)
        gone = await becomes(lambda: not Path(f"/proc/{worker.pid}/exe").exists())
        worker.close()

    assert gone
    assert not pool.alive


@pytest.mark.parametrize("late", [False, True])
async def test_forkserver_start_failure_is_raised_for_zygote_request(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], late: bool
) -> None:
    server = await Forkserver.start("programs.missing", environment={"PYTHONPATH": str(TESTS)})
    if late:
        await asyncio.to_thread(server.process.wait)

    with pytest.raises(ZygoteDied, match="ended unexpectedly"):
        async with pool_of(server, tmp_path):
            pass

    await server.close()
    assert "No module named 'programs.missing'" in capfd.readouterr().err


async def test_importing_forkserver_is_ended_at_once(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text("import time\nwhile True:\n    time.sleep(60)\n")
    server = await Forkserver.start("endless", environment={"PYTHONPATH": str(tmp_path)})

    await server.close()

    assert server.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("lasting", [False, True])
async def test_lasting_forkserver_imports_are_immortal_if_supported(tmp_path: Path, lasting: bool) -> None:
    server = await Forkserver.start("programs.small", environment=ENVIRONMENT, lasting=lasting)
    async with pool_of(server, tmp_path) as pool:
        references = value(await run(pool, "references"))
    await server.close()

    assert (references == sys.getrefcount(None)) is (lasting and HAS_IMMORTALS)


async def test_prelaunched_process_is_used_only_for_its_kind() -> None:
    launched = launch("programs.small", environment=ENVIRONMENT, lasting=True)

    same = await Forkserver.start("programs.small", environment=ENVIRONMENT, launched=launched)
    other = await Forkserver.start(
        "programs.small", environment={**ENVIRONMENT, "EXTRA": "1"}, launched=launched
    )

    assert same.process is launched.process
    assert other.process is not launched.process
    await same.close()
    await other.close()
    launched.discard()


async def test_pool_rests_before_refill_unless_empty(pool: Pool) -> None:
    pool.idle_workers.size = 2
    pool.refill()
    leases = [await pool.lease(pool.policy.limits)]

    pool.refill_later()
    resting = pool.zygote.idle
    while pool.zygote.idle < 2:
        await asyncio.sleep(0.001)
    leases += [await pool.lease(pool.policy.limits), await pool.lease(pool.policy.limits)]
    empty = pool.zygote.idle
    pool.refill_later()

    assert (resting, empty, pool.zygote.idle) == (1, 0, 2)
    for lease in leases:
        lease.worker.kill()
        lease.worker.close()


async def test_closed_forkserver_leaves_nothing(tmp_path: Path) -> None:
    server = await Forkserver.start("programs.small", environment=ENVIRONMENT)
    async with pool_of(server, tmp_path) as pool:
        await pool.ready()
        worker = await pool.zygote.take()
        pids = (server.process.pid, pool.zygote.pid, worker.pid)
        worker.close()
        await server.close()

    assert sys.platform == "linux"
    assert [Path(f"/proc/{pid}/exe").exists() for pid in pids] == [False] * 3


@asynccontextmanager
async def greeting() -> AsyncIterator[tuple[str, int]]:
    """Listen on the loopback address and greet each client."""

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()


@pytest.mark.parametrize("load", ["works", "threads"])
async def test_worker_reaches_only_the_address_in_its_policy(
    forkserver: Forkserver, tmp_path: Path, load: str
) -> None:
    async with (
        greeting() as here,
        greeting() as other,
        pool_of(forkserver, tmp_path, reach=(here,), load=load) as pool,
    ):
        reached = value(await run(pool, "fetch", *here))
        refused = await run(pool, "fetch", *other)
        again = value(await run(pool, "fetch", *here))

    assert (reached, again) == ("hello", "hello")
    assert value(refused) == errno.EACCES
    where = f"{other[0]}:{other[1]}"
    assert refused.denials == (Denial(operation="socket.connect", path=where),)


async def test_without_an_address_in_its_policy_a_worker_has_no_socket(pool: Pool) -> None:
    async with greeting() as here:
        outcome = await run(pool, "fetch", *here)

    assert value(outcome) == errno.EACCES


async def test_gate_reports_refusals_with_the_guard_removed(forkserver: Forkserver, tmp_path: Path) -> None:
    async with (
        greeting() as here,
        greeting() as other,
        pool_of(forkserver, tmp_path, reach=(here,), guard=False) as pool,
    ):
        refused = await run(pool, "fetch", *other)

    assert value(refused) == errno.EACCES
    where = f"{other[0]}:{other[1]}"
    assert refused.denials == (Denial(operation="connect", path=where, layer="kernel"),)


async def test_silence_counts_again_after_a_wait_for_the_client(pool: Pool) -> None:
    outcome = await run(pool, "ask_and_sleep", "why?", ears=Ears(waits=True), idle_s=0.5, total_s=600)

    assert outcome.ending is Ending.IDLE_TIMEOUT
