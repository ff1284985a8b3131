"""Kept workers of three users under calls that end in every way, in any order; real processes throughout.

`PARKING_EXAMPLES` says how many sequences are tried, 50 by default.
"""

import asyncio
import contextlib
import functools
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Concatenate, ParamSpec

import pytest
from held_objects import open_descriptors
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from pools import ENVIRONMENT, Ears, reusing_pool_of
from support import becomes

from sandbox.deadlines import Deadlines
from sandbox.host.forkserver import Forkserver
from sandbox.host.lease import Lease
from sandbox.host.pool import Pool
from sandbox.host.worker import children_of
from sandbox.outcome import Ending, Outcome
from sandbox.policy import Limits

pytestmark = [pytest.mark.release, pytest.mark.kernel]

EXAMPLES = int(os.environ.get("PARKING_EXAMPLES", "50"))
USERS = ("ann", "ben", "cem")
LEAVES = (
    "child",
    "orphan",
    "fork_late",
    "shuts_late",
    "prints_late",
    "asks_and_answers",
    "moves",
    "crash",
    "raises",
)
JOBS = ("write", "print", "speak", "end", "denied")
users = st.sampled_from(USERS)
_tokens = itertools.count()
P = ParamSpec("P")


async def _descriptors() -> int:
    return open_descriptors()


def noted(act: Callable[Concatenate["Machine", P], None]) -> Callable[Concatenate["Machine", P], None]:
    """Note a rule when it is done; where it fails, say what was done before, for it may not fail again."""

    @functools.wraps(act)
    def noting(self: "Machine", /, *args: P.args, **kwargs: P.kwargs) -> None:
        arguments = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        self.steps.append(f"{act.__name__}({arguments})")
        try:
            act(self, *args, **kwargs)
        except Exception as error:
            error.add_note("\n".join(["What was done:", *self.steps]))
            raise

    return noting


class Machine(RuleBasedStateMachine):
    """Three users, each with a pool; what each call returns says who else its process has served."""

    runner: asyncio.Runner
    forkserver: Forkserver

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="parking-"))
        self.steps: list[str] = []
        self.pids: set[int] = set()
        self.held: list[tuple[str, Lease]] = []
        self.pools: dict[str, Pool] = {}
        self.stacks: dict[str, AsyncExitStack] = {}
        self.descriptors = self.runner.run(_descriptors())

    @initialize()
    def begin(self) -> None:
        for user in USERS:
            (self.folder / user).mkdir()

    @rule(user=users, count=st.integers(1, 3))
    @noted
    def call(self, user: str, count: int) -> None:
        async def at_once() -> None:
            await self._pool(user)
            await asyncio.gather(*(self._call(user) for _ in range(count)))

        self.runner.run(at_once())

    @rule(user=users)
    @noted
    def call_and_hold(self, user: str) -> None:
        if len(self.held) < 4:
            self.held.append((user, self.runner.run(self._call(user, release=False))))

    @rule(stops=st.booleans())
    @noted
    def let_go(self, stops: bool) -> None:
        async def release() -> None:
            if self.held:
                _, lease = self.held.pop()
                if stops:
                    await lease.at_rest()
                lease.release()

        self.runner.run(release())

    @rule()
    @noted
    def retire(self) -> None:
        if self.held:
            _, lease = self.held.pop()
            self.runner.run(lease.retire("limit"))

    @rule(user=users, act=st.sampled_from(LEAVES))
    @noted
    def leave_something(self, user: str, act: str) -> None:
        async def odd() -> None:
            done = self.folder / user / "home" / "done"
            done.unlink(missing_ok=True)
            lease, task = await self._begin(user, act, *(["/usr"] if act == "moves" else []))
            outcome = await task
            if act.endswith("late"):
                if lease.worker.goes_on:
                    # Beside a job that prints it waits until the worker is back: before, nobody takes output.
                    lease.release()
                # Of a call whose next one is there at once, a thread that stays behind may act in that one.
                assert await becomes(lambda: done.exists() or not _runs(lease.worker.pid))
            if act == "shuts_late" and lease.worker.goes_on:
                # It is not stopped, so the next call might come before its end is heard, and end with it.
                assert await _ends(lease.worker.pid)
            lease.release()
            assert (outcome.ending is Ending.CRASHED) == (act in ("crash", "raises")), outcome

        self.runner.run(odd())

    @rule(user=users, act=st.sampled_from(JOBS), count=st.integers(1, 2))
    @noted
    def go_on(self, user: str, act: str, count: int) -> None:
        """Leave something that goes on; where it says something or ends, its worker goes with it."""

        async def begin() -> None:
            await self._pool(user)
            calls = [
                await self._begin(user, "begins", act, *self._where(user, act), goes_on=True)
                for _ in range(count)
            ]
            for lease, task in calls:
                outcome = await task
                assert outcome.ending is Ending.ANSWERED, outcome
                lease.release()
                if act in ("speak", "end"):
                    assert await _ends(lease.worker.pid)

        self.runner.run(begin())

    @rule(user=users)
    @noted
    def end_session(self, user: str) -> None:
        async def end() -> None:
            pool = await self._pool(user)
            jobs = pool.zygote.jobs()
            pids = [job.worker.pid for job in jobs]
            pool.end_jobs("session")
            assert await becomes(lambda: not any(map(_runs, pids))), (
                _descriptions(pids),
                [(job.worker, job.over.is_set()) for job in jobs],
                pool.zygote.retired,
            )

        self.runner.run(end())

    @rule(user=users)
    @noted
    def time_out(self, user: str) -> None:
        async def late() -> None:
            lease, task = await self._begin(user, "sleep", idle_s=0.05)
            assert (await task).ending is Ending.IDLE_TIMEOUT
            lease.release()

        self.runner.run(late())

    @rule(
        user=users,
        act=st.sampled_from(["sleep", "count", "child"]),
        delay_s=st.sampled_from([0, 0.0005, 0.002, 0.01]),
    )
    @noted
    def cancel(self, user: str, act: str, delay_s: float) -> None:
        async def gone() -> None:
            lease, task = await self._begin(user, act)
            await asyncio.sleep(delay_s)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
                # It was quicker.
                lease.release()

        self.runner.run(gone())

    @rule(user=users, delay_s=st.sampled_from([0, 0.001, 0.004]))
    @noted
    def cancel_the_rest(self, user: str, delay_s: float) -> None:
        async def gone() -> None:
            lease = await self._call(user, release=False)
            resting = asyncio.create_task(lease.at_rest())
            await asyncio.sleep(delay_s)
            resting.cancel()
            await asyncio.wait({resting})
            lease.release()

        self.runner.run(gone())

    @rule(seconds=st.sampled_from([0.002, 0.006, 0.012, 0.03]))
    @noted
    def wait(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule(user=users, number=st.sampled_from([signal.SIGKILL, signal.SIGCONT]))
    @noted
    def disturb(self, user: str, number: signal.Signals) -> None:
        async def disturbed() -> None:
            pool = await self._pool(user)
            held = {lease.worker.pid for _, lease in self.held}
            for pid in children_of(pool.zygote.pid) - held:
                # One may have ended by itself a moment ago.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                assert number == signal.SIGCONT or await _ends(pid)

        self.runner.run(disturbed())

    @rule(user=users, narrow=st.booleans())
    @noted
    def reopen(self, user: str, narrow: bool) -> None:
        async def replace_pool() -> None:
            if narrow:
                # In the middle of a call, which ends then.
                lease, task = await self._begin(user, "sleep")
                self.pools[user].close()
                assert (await task).ending is Ending.CRASHED
                lease.release()
            await self._close(user)
            await self._pool(user)

        self.runner.run(replace_pool())

    def teardown(self) -> None:
        async def end() -> None:
            for user in list(self.stacks):
                await self._close(user)
            assert await becomes(lambda: not any(_runs(pid) for pid in self.pids)), _descriptions(self.pids)
            assert await becomes(lambda: not _in_folder(self.folder)), _descriptions(_in_folder(self.folder))
            assert await becomes(lambda: open_descriptors() <= self.descriptors), (
                f"more than {self.descriptors} descriptors: {_open_files()}"
            )

        try:
            self.runner.run(end())
        finally:
            shutil.rmtree(self.folder)

    async def _pool(self, user: str) -> Pool:
        if user in self.pools:
            return self.pools[user]
        stack = self.stacks[user] = AsyncExitStack()
        self.pools[user] = await stack.enter_async_context(
            reusing_pool_of(self.forkserver, self.folder / user, limits=Limits(call_processes=16))
        )
        return self.pools[user]

    async def _close(self, user: str) -> None:
        if self.pools.pop(user, None) is not None:
            await self.stacks.pop(user).aclose()
        for holder, lease in self.held:
            if holder == user:
                lease.release()
        self.held = [(holder, lease) for holder, lease in self.held if holder != user]

    def _where(self, user: str, act: str) -> list[str]:
        return [str(self.folder / user / "home" / "written")] if act == "write" else []

    async def _begin(
        self, user: str, act: str, *args: object, idle_s: float = 60.0, goes_on: bool = False
    ) -> "tuple[Lease, asyncio.Task[Outcome]]":
        pool = await self._pool(user)
        lease = await pool.lease(pool.policy.limits, keeps=True, goes_on=goes_on, session="session")
        self.pids.add(lease.worker.pid)
        call = {"act": act, "args": list(args)}
        run = lease.run(call, deadlines=Deadlines(idle_s=idle_s, total_s=120.0), listener=Ears())
        return lease, asyncio.create_task(run)

    async def _call(self, user: str, *, release: bool = True) -> Lease:
        token = next(_tokens)
        lease, task = await self._begin(user, "whose", user, token)
        outcome = await task
        assert outcome.ending is Ending.ANSWERED, outcome
        assert outcome.answer is not None
        value = outcome.answer["value"]
        assert isinstance(value, dict)
        assert value["token"] == token
        assert set(value["names"]) == {user}, value
        assert value["pid"] == lease.worker.pid
        if release:
            lease.release()
        return lease


def _runs(pid: int) -> bool:
    """Return whether any thread of a process runs: until the last has ended, what it had open is open."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False
    return any(_thread_runs(thread / "status") for thread in threads)


async def _ends(pid: int) -> bool:
    return await becomes(lambda: not _runs(pid))


def _descriptions(pids: Iterable[int]) -> list[str]:
    """Return the kernel's state of the running processes, for the report of a failure."""
    found = []
    for pid in filter(_runs, pids):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/{pid}/stat").read_text() + Path(f"/proc/{pid}/wchan").read_text())
    return found


def _open_files() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(entry.readlink()))
    return sorted(found)


def _thread_runs(status: Path) -> bool:
    try:
        return b"\nState:\tZ" not in status.read_bytes()
    except OSError:
        return False


def _in_folder(folder: Path) -> list[int]:
    """Return the processes that work below a folder, whatever started them."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if Path(os.readlink(entry / "cwd")).is_relative_to(folder):
                found.append(int(entry.name))
    return found


@pytest.fixture
def machine() -> Iterator[type[Machine]]:
    with asyncio.Runner() as runner:
        forkserver = runner.run(Forkserver.start("programs.keeping", environment=ENVIRONMENT))
        try:
            yield type("Machine", (Machine,), {"runner": runner, "forkserver": forkserver})
        finally:
            runner.run(forkserver.close())


@pytest.mark.timeout(3600)
def test_any_order_of_call_ends_mixes_loses_and_leaves_nothing(
    machine: type[Machine],
) -> None:
    healthy = list(HealthCheck)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=12, deadline=None, suppress_health_check=healthy
        ),
    )
