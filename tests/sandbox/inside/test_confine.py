"""Layers combined: order, environment, limits, life and death, and ordinary work that continues."""

import asyncio
import concurrent.futures.thread  # noqa: F401 - not found any more without privileges, where Python is in /root
import ctypes
import errno
import os
import pathlib
import resource
import select
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable

import pytest
from confined_world import Confined, World
from forked import Function, Report

from sandbox.inside import sharing
from sandbox.inside.confine import LAYERS, confine_zygote
from sandbox.layers.rlimits import narrowed, zygote_limits
from sandbox.policy import MIB, Limits, Policy

NOBODY = 65534

Unconfined = Callable[[Function], Report]


def error_of(report: Report) -> str:
    assert report.error is not None, report
    return report.error


def test_a_worker_starts_in_its_home_and_writes_there(confined: Confined, world: World) -> None:
    def work() -> str:
        with open("made.txt", "w") as file:
            file.write("made")
        return os.getcwd()

    report = confined(world.policy, work)

    assert report.value == str(world.home)
    assert (world.home / "made.txt").read_text() == "made"


def test_a_worker_without_a_home_starts_in_the_scratch_folder(confined: Confined, world: World) -> None:
    report = confined(world.narrowed(home=None), os.getcwd)

    assert report.value == str(world.scratch)


def test_new_files_are_private_to_their_owner(confined: Confined, world: World) -> None:
    confined(world.policy, lambda: (world.home / "made.txt").touch())

    assert (world.home / "made.txt").stat().st_mode & 0o777 == 0o600


def test_inherited_descriptors_are_closed(confined: Confined, unconfined: Unconfined, world: World) -> None:
    secret = os.open(world.outside / "file.txt", os.O_RDONLY)

    def read_it() -> str:
        return os.read(secret, 100).decode()

    before = unconfined(read_it)
    os.lseek(secret, 0, os.SEEK_SET)
    after = confined(world.policy, read_it)
    os.close(secret)

    assert before.value == "outside"
    assert after.errno == errno.EBADF


def test_the_environment_is_the_policy_s_for_python_and_for_c(confined: Confined, world: World) -> None:
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_char_p

    def look() -> list[object]:
        from_c = libc.getenv(b"SET_BY_C")
        shell = subprocess.run(["/bin/sh", "-c", "env"], capture_output=True, text=True, check=True)
        return [dict(os.environ), from_c and from_c.decode(), "SET_BY_C" in shell.stdout]

    def set_and_look() -> list[object]:
        libc.setenv(b"SET_BY_C", b"secret", 1)
        return look()

    libc.setenv(b"SET_BY_C", b"secret", 1)
    try:
        open_to_all = confined(world.policy, look, without=frozenset({"environment"}))
        scrubbed = confined(world.policy, look)
    finally:
        libc.unsetenv(b"SET_BY_C")

    assert open_to_all.value[1:] == ["secret", True]
    assert scrubbed.value == [dict(world.policy.environment), None, False]


def test_memory_above_the_limit_is_a_memory_error(confined: Confined, world: World) -> None:
    def take(size: int) -> int:
        return len(bytearray(size))

    small = world.narrowed(limits=Limits(memory_bytes=128 * MIB))

    assert confined(small, lambda: take(32 * MIB)).value == 32 * MIB
    # Far above: what other tests left to be collected in this process, the child may allocate again.
    assert error_of(confined(small, lambda: take(2048 * MIB))).startswith("MemoryError")


def test_memory_used_by_zygote_is_not_counted_twice(confined: Confined, world: World) -> None:
    ballast = bytearray(200 * MIB)
    small = world.narrowed(limits=Limits(memory_bytes=64 * MIB))

    report = confined(small, lambda: len(bytearray(32 * MIB)) + len(ballast))

    assert report.value == 232 * MIB


def test_a_file_above_the_limit_cannot_be_written(confined: Confined, world: World) -> None:
    small = world.narrowed(limits=Limits(file_bytes=1 * MIB))

    def write(size: int) -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return (world.home / "large").write_bytes(b"x" * size)

    assert confined(small, lambda: write(MIB)).value == MIB
    assert confined(small, lambda: write(MIB + 1)).errno == errno.EFBIG


def test_processor_time_above_the_limit_ends_the_worker(confined: Confined, world: World) -> None:
    small = world.narrowed(limits=Limits(cpu_s=1))

    def spin() -> None:
        while True:
            pass

    assert confined(small, spin).signal == signal.SIGXCPU


def test_limits_cannot_be_raised_again(confined: Confined, world: World) -> None:
    def raise_it() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    report = confined(world.policy, raise_it)

    assert error_of(report).startswith("ValueError: not allowed to raise maximum limit")


def test_pending_signals_leave_part_of_the_uid_quota_free(confined: Confined, world: World) -> None:
    def make() -> int:
        libc, waiting = ctypes.CDLL(None), 0
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
        while waiting < 1000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN, ctypes.c_void_p()) == 0:
            waiting += 1
        return waiting

    assert confined(world.policy, make, without=frozenset({"rlimits"})).value == 1000
    assert 0 < confined(world.policy, make).value <= 512


def test_realtime_priority_limits_are_zero_for_any_operator() -> None:
    limits = zygote_limits(Limits(), data=0)

    assert narrowed(limits[resource.RLIMIT_RTPRIO], 99) == (0, 0)
    assert narrowed(limits[resource.RLIMIT_NICE], 40) == (0, 0)


def test_a_worker_holds_no_capability_and_cannot_gain_one(confined: Confined, world: World) -> None:
    libc = ctypes.CDLL(None)

    def look() -> list[int]:
        keys = ("CapInh", "CapPrm", "CapEff", "CapAmb", "NoNewPrivs")
        # The status file is open to a zygote only where Landlock is left out.
        with open("/proc/self/status") as file:
            lines = dict(line.split(":\t") for line in file)
        return [int(lines[key], 16) for key in keys] + [libc.prctl(39, 0, 0, 0, 0)]

    report = confined(world.policy, look, without=frozenset({"landlock"}))

    assert report.value == [0, 0, 0, 0, 1, 1]


def test_worker_stays_in_zygote_session_and_its_own_group(confined: Confined, world: World) -> None:
    def leave() -> list[bool | int]:
        before = [os.getsid(0) == os.getppid(), os.getpgrp() == os.getpid()]
        child = subprocess.run(["/bin/true"], start_new_session=True, check=False)
        os.setsid()
        os.setpgid(0, os.getppid())
        return [*before, child.returncode, os.getsid(0) == os.getppid(), os.getpgrp() == os.getpid()]

    assert confined(world.policy, leave).value == [True, True, 0, True, True]


def test_a_child_of_a_worker_cannot_leave_its_group(
    confined: Confined, unconfined: Unconfined, world: World
) -> None:
    def leave() -> bool:
        read, write = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.write(write, str(os.getpgrp()).encode())
            os._exit(0)
        os.wait()
        return int(os.read(read, 20)) == os.getpgrp()

    assert unconfined(leave).value is False
    assert confined(world.policy, leave).value is True


def test_worker_dies_with_zygote_and_zygote_with_its_parent(world: World) -> None:
    read, write = os.pipe()
    host = os.fork()
    if host == 0:
        os.setpgid(0, 0)
        zygote = os.fork()
        if zygote == 0:
            home = os.open(world.home, os.O_PATH)
            layers = confine_zygote(world.policy, home_fd=home, keep={write}, parent=os.getppid())
            me = os.getpid()
            if os.fork() == 0:
                layers.apply(parent=me)
                os.write(write, b"ready")
            signal.pause()
        signal.pause()
    os.close(write)
    ready = os.read(read, 5)

    os.kill(host, signal.SIGKILL)
    os.waitpid(host, 0)
    ended = select.select([read], [], [], 10)[0] and os.read(read, 1)
    os.close(read)

    assert ready == b"ready"
    # End of file: neither zygote nor worker holds the pipe any more.
    assert ended == b""


def test_confinement_fails_when_the_parent_has_gone(unconfined: Unconfined, world: World) -> None:
    def confine() -> None:
        home = os.open(world.home, os.O_PATH)
        confine_zygote(world.policy, home_fd=home, keep=range(1000), parent=1_000_000_000)

    report = unconfined(confine)

    assert "layer death with the parent could not be put in place" in error_of(report)


def test_home_descriptor_of_a_non_folder_fails_confinement(confined: Confined, world: World) -> None:
    def confine() -> None:
        confine_zygote(world.policy, home_fd=999, keep=range(900), parent=os.getppid())

    from_child = confined(world.policy, confine, without=frozenset(LAYERS), as_zygote=True)

    assert error_of(from_child).startswith("ConfinementError: layer landlock could not be put in place")


def test_a_missing_scratch_folder_fails_the_confinement(confined: Confined, world: World) -> None:
    broken = world.narrowed(scratch=world.outside / "missing")

    report = confined(broken, os.getpid)

    assert error_of(report).startswith("ConfinementError: layer session")
    assert "missing" in error_of(report)


def test_linked_scratch_folder_fails_the_confinement(confined: Confined, world: World) -> None:
    link = world.outside / "link"
    link.symlink_to(world.other)

    report = confined(world.narrowed(scratch=link), os.getpid)

    assert error_of(report).startswith("ConfinementError: layer landlock")


def test_an_unknown_layer_cannot_be_left_out(world: World) -> None:
    with pytest.raises(ValueError, match="no layer is called firewall"):
        confine_zygote(world.policy, home_fd=3, keep=(), parent=os.getppid(), without=frozenset({"firewall"}))


def test_a_home_goes_with_its_descriptor_only() -> None:
    with pytest.raises(ValueError, match="home is None, but its descriptor is 3"):
        confine_zygote(Policy(), home_fd=3, keep=(), parent=os.getppid())


def test_a_zygote_can_be_its_own_one_worker(unconfined: Unconfined, world: World) -> None:
    def work() -> str:
        read, write = os.pipe()
        parent = os.getpid()
        if os.fork() == 0:
            home = os.open(world.home, os.O_PATH)
            layers = confine_zygote(world.policy, home_fd=home, keep={write}, parent=parent)
            layers.apply(parent=parent)
            (world.home / "made.txt").write_text("made")
            os.write(write, b"done")
            os._exit(0)
        os.wait()
        return os.read(read, 4).decode()

    assert unconfined(work).value == "done"
    assert (world.home / "made.txt").read_text() == "made"


def _threads() -> list[int]:
    seen: list[int] = []
    threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(seen)


def _asyncio() -> int:
    async def main() -> int:
        inside = await asyncio.to_thread(lambda: 20)
        process = await asyncio.create_subprocess_exec("/bin/echo", "22", stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        return inside + int(out)

    return asyncio.run(main())


def _sqlite() -> int:
    connection = sqlite3.connect("data.db")
    assert connection.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    connection.execute("create table numbers (n)")
    connection.executemany("insert into numbers values (?)", [(n,) for n in range(10)])
    connection.commit()
    total: int = connection.execute("select sum(n) from numbers").fetchone()[0]
    connection.close()
    return total


def _subprocess() -> list[str | int]:
    ran = subprocess.run(["/bin/sh", "-c", "echo a | tr a b"], capture_output=True, text=True, check=True)
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as sleeper:
        sleeper.kill()
        sleeper.wait()
        return [ran.stdout.strip(), sleeper.returncode]


def _tempfile() -> list[bool]:
    tempfile.tempdir = None
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile(dir=folder) as file:
        file.write(b"x")
        return [os.path.dirname(folder) == os.getcwd(), os.path.exists(file.name)]


def _files() -> list[str]:
    sharing.install(pathlib.Path.cwd(), times=False)
    os.makedirs("a/b")
    with open("a/b/one", "w") as file:
        file.write("1")
    os.rename("a/b/one", "two")
    os.symlink("two", "three")
    os.link("two", "four")
    os.truncate("two", 0)
    os.removedirs("a/b")
    pathlib.Path("five").touch()
    shutil.copy2("two", "six")
    return sorted(set(os.listdir()) - {"file.txt"})


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (_threads, [0, 1, 2, 3]),
        (_asyncio, 42),
        (_sqlite, 45),
        (_subprocess, ["b", -9]),
        (_tempfile, [True, True]),
        (_files, ["five", "four", "six", "three", "two"]),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
@pytest.mark.parametrize(
    ("where", "uid"), [("world", None), ("plain_world", NOBODY)], ids=["as-we-are", "unprivileged"]
)
def test_ordinary_work_still_works_confined(
    request: pytest.FixtureRequest,
    confined: Confined,
    work: Function,
    expected: object,
    where: str,
    uid: int | None,
) -> None:
    world: World = request.getfixturevalue(where)
    policy = world.policy

    report = confined(policy, work, uid=uid)

    assert report.value == expected, report.error
