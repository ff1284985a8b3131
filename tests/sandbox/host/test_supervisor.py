"""A forkserver that is killed, stopped, or cannot be started: what is left of it, and what comes after it."""

import asyncio
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pools import ENVIRONMENT, TESTS, Ears, forkserver_of, homeless_pool_of, run
from process_tree import forkservers
from support import alive, becomes, until

from sandbox.deadlines import Deadlines
from sandbox.errors import ForkserverDied, NoProcess
from sandbox.host import forkserver
from sandbox.host.forkserver import Forkserver
from sandbox.host.stopping import look
from sandbox.host.supervisor import ForkserverSupervisor, pause_s
from sandbox.layers import cgroup
from sandbox.outcome import Ending
from sandbox.policy import Policy

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


@asynccontextmanager
async def supervised(
    program: str = "programs.small", environment: dict[str, str] | None = None
) -> AsyncIterator[ForkserverSupervisor]:
    supervisor = await ForkserverSupervisor.start(
        program, environment=environment or ENVIRONMENT, lasting=False
    )
    try:
        yield supervisor
    finally:
        await supervisor.close()


async def replaced(ended: int) -> int:
    """Wait until there is another forkserver than the one that has ended; return its process id."""
    assert await becomes(lambda: forkservers() not in ([], [ended]))
    return forkservers()[0]


async def well(supervisor: ForkserverSupervisor, *, fault: str | None = None) -> None:
    """Wait until a supervisor reports no fault, or one with these words."""
    while (fault or "None") not in str(await supervisor.fault()):
        await asyncio.sleep(0.01)


@asynccontextmanager
async def impatient() -> AsyncIterator[Forkserver]:
    """Run a forkserver that is taken to hang after half a second."""
    server = await Forkserver.start("programs.small", environment=ENVIRONMENT, lasting=False)
    server.order_s = 0.5
    try:
        yield server
    finally:
        await server.close()


def make_first_impatient(monkeypatch: pytest.MonkeyPatch, order_s: float) -> None:
    """Give the next forkserver that is started so long for an order, and no other."""
    start = Forkserver.start

    async def started(*args: Any, **more: Any) -> Forkserver:
        monkeypatch.setattr(Forkserver, "start", start)
        server = await start(*args, **more)
        server.order_s = order_s
        return server

    monkeypatch.setattr(Forkserver, "start", started)


async def test_killed_forkserver_is_replaced_for_new_zygotes(tmp_path: Path) -> None:
    async with supervised() as supervisor, homeless_pool_of(supervisor, tmp_path) as pool:
        before = (await run(pool, "pid")).answer
        (killed,) = forkservers()
        os.kill(killed, signal.SIGKILL)
        assert await becomes(lambda: not pool.alive)

        async with homeless_pool_of(supervisor, tmp_path) as after:
            again = await run(after, "echo", "here")

        assert before is not None
        assert (again.ending, again.answer) == (Ending.ANSWERED, {"value": "here"})
        assert killed not in forkservers()
        assert await supervisor.fault() is None
        assert not alive(killed)


async def test_running_call_of_killed_forkserver_ends_with_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A caller that waits for the forkserver's answer waits for ever.
    monkeypatch.setattr("sandbox.host.job._REAP_S", 3600.0)
    async with supervised() as supervisor, homeless_pool_of(supervisor, tmp_path) as pool:
        ears = Ears(waits=True, delay_s=math.inf)
        running = asyncio.create_task(run(pool, "ask_and_sleep", "?", ears=ears))
        await ears.called.wait()
        os.kill(forkservers()[0], signal.SIGKILL)

        outcome = await asyncio.wait_for(running, 100)

    assert (outcome.ending, outcome.may_have_started) == (Ending.CRASHED, True)
    assert outcome.cause is not None
    assert "SIGKILL" in outcome.cause


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "not sent"])
async def test_call_has_not_begun_only_if_worker_ended_before_send(tmp_path: Path, *, is_sent: bool) -> None:
    async with supervised() as supervisor, homeless_pool_of(supervisor, tmp_path) as pool:
        lease = await pool.lease(pool.policy.limits)
        call = {"act": "echo", "args": [1]}
        if is_sent:
            # It reads nothing of it, which nobody but the worker could prove.
            os.kill(lease.worker.pid, signal.SIGSTOP)
            running = asyncio.create_task(lease.run(call, deadlines=Deadlines(), listener=Ears()))
            await asyncio.sleep(0)
            os.kill(forkservers()[0], signal.SIGKILL)
            outcome = await running
        else:
            os.kill(lease.worker.pid, signal.SIGKILL)
            assert await becomes(lambda: not alive(lease.worker.pid))
            outcome = await lease.run(call, deadlines=Deadlines(), listener=Ears())

    assert (outcome.ending, outcome.may_have_started) == (Ending.CRASHED, is_sent)


@pytest.mark.parametrize("ended", [True, False])
async def test_import_started_process_does_not_outlive_forkserver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    if not ended:
        # The control: without the search by session, the child of a killed zygote lives on.
        monkeypatch.setattr("sandbox.host.forkserver.end_orphans", lambda _sessions: True)
    async with (
        supervised() as supervisor,
        homeless_pool_of(supervisor, tmp_path, load="process later") as pool,
    ):
        assert await becomes(
            lambda: pool.zygote.at_hand == pool.zygote.idle and bool(pool.zygote.import_processes())
        )
        (child,) = pool.zygote.import_processes()
        (first,) = forkservers()
        os.kill(first, signal.SIGKILL)
        await replaced(first)
        async with homeless_pool_of(supervisor, tmp_path) as after:
            await run(after, "echo", 1)

        assert alive(child) is not ended
        if not ended:
            os.kill(child, signal.SIGKILL)


async def test_forkserver_killed_during_import_is_replaced(tmp_path: Path) -> None:
    async with supervised() as supervisor:
        os.kill(forkservers()[0], signal.SIGKILL)
        with suppress(ForkserverDied):
            async with homeless_pool_of(supervisor, tmp_path):
                pass

        async with homeless_pool_of(supervisor, tmp_path) as pool:
            outcome = await run(pool, "echo", 1)

    assert outcome.answer == {"value": 1}


async def test_stopped_forkserver_is_detected_and_ended(tmp_path: Path) -> None:
    async with impatient() as server, homeless_pool_of(server, tmp_path) as pool:
        os.kill(server.process.pid, signal.SIGSTOP)

        with pytest.raises(ForkserverDied, match=r"took no order for 0\.5 s"):
            await server.zygote(pool.policy, {}, home_fd=None)

        assert not pool.alive
        assert not server.alive
    assert not alive(server.process.pid)


async def test_order_lost_by_stopped_forkserver_goes_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_first_impatient(monkeypatch, 0.5)
    async with supervised() as supervisor, homeless_pool_of(supervisor, tmp_path) as pool:
        (stopped,) = forkservers()
        os.kill(stopped, signal.SIGSTOP)

        zygote = await supervisor.zygote(pool.policy, {}, home_fd=None)
        loaded = await zygote.load(30)

        assert loaded.threads == 1
        assert not pool.alive
        assert not alive(stopped)
        zygote.close()


async def test_stopped_forkserver_is_detected_by_health_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_first_impatient(monkeypatch, 2.0)
    async with supervised() as supervisor:
        await well(supervisor)
        (stopped,) = forkservers()
        os.kill(stopped, signal.SIGSTOP)

        fault = await supervisor.fault()

        assert fault == "the forkserver has not answered for 1.5 seconds"
        await replaced(stopped)
        await well(supervisor)


async def test_orders_exceeding_socket_buffer_reach_stopped_forkserver() -> None:
    async with forkserver_of("small") as server:
        await server.answers()
        os.kill(server.process.pid, signal.SIGSTOP)
        waiting = [asyncio.create_task(server.answers()) for _ in range(2000)]
        await asyncio.sleep(0.1)
        assert not any(each.done() for each in waiting)

        os.kill(server.process.pid, signal.SIGCONT)

        await asyncio.gather(*waiting)
        assert server.alive


def hold_starts(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let the next forkserver start once the event that is returned is set."""
    may_start, start = asyncio.Event(), Forkserver.start

    async def held(*args: Any, **more: Any) -> Forkserver:
        await may_start.wait()
        return await start(*args, **more)

    monkeypatch.setattr(Forkserver, "start", held)
    return may_start


async def test_unstartable_forkserver_fails_soon_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (TESTS / "programs" / "small.py").read_text()
    program = tmp_path / "brittle.py"
    program.write_text(source)
    environment = {**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{TESTS}"}
    async with supervised("brittle", environment) as supervisor:
        await well(supervisor)
        program.write_text("raise SystemExit(3)")
        os.kill(forkservers()[0], signal.SIGKILL)

        await well(supervisor, fault="times in a row")
        # A caller that arrives now and waits for the next try waits for ever.
        may_start = hold_starts(monkeypatch)
        assert await becomes(lambda: not forkservers())
        with pytest.raises(ForkserverDied, match=r"times in a row.*exit status 3"):
            await supervisor.zygote(Policy(), {}, home_fd=None)

        assert "times in a row" in str(await supervisor.fault())
        may_start.set()
        program.write_text(source)
        await well(supervisor)
        async with homeless_pool_of(supervisor, tmp_path) as pool:
            assert (await run(pool, "echo", 1)).answer == {"value": 1}


async def test_forkserver_at_process_limit_reports_it_and_survives(tmp_path: Path) -> None:
    assert cgroup.places(), "mount control groups with the controllers memory and pids"
    server = await Forkserver.start("programs.small", environment=ENVIRONMENT, lasting=False)
    place = next(place for place in cgroup.places() if place.pids)
    group = place.folder / f"full-{os.getpid()}"
    group.mkdir()
    assert place.pids is not None
    try:
        async with homeless_pool_of(server, tmp_path) as pool:
            (group / "cgroup.procs").write_text(str(server.process.pid))
            (group / place.pids).write_text("1")

            with pytest.raises(NoProcess, match="Resource temporarily unavailable"):
                await server.zygote(pool.policy, {}, home_fd=None)

            assert (await run(pool, "echo", 1)).answer == {"value": 1}
            (group / place.pids).write_text("100")
            async with homeless_pool_of(server, tmp_path) as later:
                assert (await run(later, "echo", 2)).answer == {"value": 2}
    finally:
        await server.close()
        group.rmdir()


def test_the_pause_before_a_start_grows_to_ten_seconds() -> None:
    assert [pause_s(ends) for ends in (0, 1, 2, 3, 100)] == [0.0, 0.1, 0.2, 0.4, 10.0]


async def test_forkserver_waiting_for_cpu_is_not_considered_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = itertools.count()
    monkeypatch.setattr(forkserver, "_wanted_processor_s", lambda _pid: float(next(wanted)))
    async with impatient() as server, homeless_pool_of(server, tmp_path) as pool:
        starved = server.process.pid
        os.kill(starved, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(1.5, os.kill, starved, signal.SIGCONT)

        zygote = await server.zygote(pool.policy, {}, home_fd=None)
        zygote.close()

        # The control: with nothing that it wants of a processor it is ended.
        monkeypatch.setattr(forkserver, "_wanted_processor_s", lambda _pid: 0.0)
        os.kill(starved, signal.SIGSTOP)
        with pytest.raises(ForkserverDied, match=r"took no order for 0\.5 s"):
            await server.zygote(pool.policy, {}, home_fd=None)


async def test_forkserver_of_delayed_host_is_not_considered_hung(tmp_path: Path) -> None:
    async with impatient() as server, homeless_pool_of(server, tmp_path) as pool:
        well_pid = server.process.pid
        # What comes meanwhile is read by nobody, and all of this host's time-outs are over at once.
        asyncio.get_running_loop().call_later(0.1, time.sleep, 2.0)
        os.kill(well_pid, signal.SIGSTOP)
        going_on = threading.Timer(1.0, os.kill, (well_pid, signal.SIGCONT))
        going_on.start()
        zygote = await server.zygote(pool.policy, {}, home_fd=None)
        zygote.close()
        going_on.join()

        assert server.alive


async def test_forkserver_waiting_for_disk_is_not_considered_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with impatient() as server, homeless_pool_of(server, tmp_path) as pool:
        waiting = server.process.pid
        facts = look(waiting)
        assert facts is not None
        monkeypatch.setattr(forkserver, "look", lambda _pid: replace(facts, state=b"D"))
        os.kill(waiting, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(1.5, os.kill, waiting, signal.SIGCONT)

        zygote = await server.zygote(pool.policy, {}, home_fd=None)
        zygote.close()

        assert server.alive


def test_uninterruptible_process_is_in_disk_wait_state(tmp_path: Path) -> None:
    # A parent sleeps so until its program runs; this one first waits for a write to a pipe.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    starts = (
        "import os, sys; os.posix_spawn('/bin/true', ['true'], {}, "
        "file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])"
    )

    def state_of(pid: int) -> bytes | None:
        facts = look(pid)
        return None if facts is None else facts.state

    with subprocess.Popen([sys.executable, "-c", starts, str(pipe)]) as parent:
        assert until(lambda: state_of(parent.pid) == b"D")
        with pipe.open("wb"):
            parent.wait()
    assert state_of(os.getpid()) == b"R"
    assert state_of(parent.pid) is None
