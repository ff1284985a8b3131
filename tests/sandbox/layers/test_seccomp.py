"""Answers of the filters: by a small interpreter for every call, and by the kernel for real ones."""

import ctypes
import errno
import os
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures.thread import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from confined_world import Confined, World
from forked import Function, Report

from sandbox.layers.seccomp import main_filter, supported_architecture, worker_filter
from sandbox.layers.syscall_table import (
    ARCHITECTURES,
    ATTRIBUTES,
    CHANGED_MODE,
    DENIED,
    NEWEST,
    SIGNALS,
    TIMES,
    Architecture,
)

NOBODY = 65534
ALLOW = "allow"
KILL = "kill"

Unconfined = Callable[[Function], Report]

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

HERE = supported_architecture()


def call(name: str, *arguments: int) -> int:
    """Make one system call by name; numbers only."""
    answer: int = libc.syscall(ctypes.c_long(HERE.number(name)), *(ctypes.c_long(a) for a in arguments))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


@dataclass(frozen=True)
class Answers:
    """A filter, run as the kernel would run it."""

    program: bytes
    audit: int

    def __call__(self, number: int, *arguments: int, audit: int | None = None) -> int | str:
        padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
        masked = [argument & (2**64 - 1) for argument in padded]
        data = struct.pack("<IIQ6Q", number, audit or self.audit, 0, *masked)
        accumulator, at = 0, 0
        instructions = list(struct.iter_unpack("<HBBI", self.program))
        while True:
            code, if_true, if_false, value = instructions[at]
            at += 1
            if code == 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
            elif code == 0x54:
                accumulator &= value
            elif code == 0x05:
                at += value
            elif code == 0x06:
                return meaning(value)
            else:
                test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value}[
                    code
                ]
                at += if_true if test else if_false


def meaning(action: int) -> int | str:
    if action == 0x7FFF0000:
        return ALLOW
    if action == 0x80000000:
        return KILL
    assert action & 0xFFFF0000 == 0x00050000
    return action & 0xFFFF


def main_of(architecture: Architecture, scoped: bool = True) -> Answers:
    return Answers(main_filter(architecture, signals_are_scoped=scoped).program, architecture.audit)


def worker_of(architecture: Architecture) -> Answers:
    return Answers(worker_filter(architecture).program, architecture.audit)


each_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)


@each_architecture
def test_no_number_stands_for_two_calls(architecture: Architecture) -> None:
    numbers = list(architecture.numbers.values())

    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number <= NEWEST for number in numbers)


def test_architectures_differ_only_in_non_generic_syscalls() -> None:
    x86_64, aarch64 = (set(architecture.numbers) for architecture in ARCHITECTURES)

    assert aarch64 < x86_64
    assert x86_64 - aarch64 == {
        "_sysctl", "chmod", "chown", "futimesat", "inotify_init", "ioperm", "iopl", "lchown", "mknod",
        "modify_ldt", "sysfs", "uselib", "ustat", "utime", "utimes",
    }  # fmt: skip


def test_syscalls_since_424_have_one_number_everywhere() -> None:
    x86_64, aarch64 = (architecture.numbers for architecture in ARCHITECTURES)

    assert all(aarch64[name] == number for name, number in x86_64.items() if number >= 424)


@each_architecture
def test_every_call_of_the_list_is_denied(architecture: Architecture) -> None:
    answer = main_of(architecture)

    answers = {name: answer(number) for name, number in architecture.numbers.items() if name in DENIED}

    assert set(answers.values()) == {errno.EPERM}
    assert {"ptrace", "bpf", "mount", "unshare", "memfd_create", "io_uring_setup", "keyctl"} <= set(answers)


@each_architecture
def test_changing_modes_seems_to_succeed(architecture: Architecture) -> None:
    answer = main_of(architecture)

    assert {answer(number) for number in architecture.known(CHANGED_MODE)} == {0}


@each_architecture
def test_times_filter_denies_them_unless_allowed(architecture: Architecture) -> None:
    program = main_filter(architecture, signals_are_scoped=True, times=True).program
    allowed, denied = Answers(program, architecture.audit), main_of(architecture)

    assert {allowed(number, 3, 1) for number in architecture.known(TIMES)} == {ALLOW}
    assert {denied(number, 3, 0) for number in architecture.known(TIMES)} == {errno.EPERM}


@each_architecture
def test_modes_filter_denies_set_id_bits(architecture: Architecture) -> None:
    program = main_filter(architecture, signals_are_scoped=True, modes=True).program
    answer = Answers(program, architecture.audit)
    places = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}

    for name, place in places.items():
        for number in architecture.known((name,)):
            answers = {mode: answer(number, *[9] * place, mode) for mode in (0o755, 0o1777, 0o4755, 0o2755)}
            assert answers == {0o755: ALLOW, 0o1777: ALLOW, 0o4755: errno.EPERM, 0o2755: errno.EPERM}


@each_architecture
def test_syscalls_programs_depend_on_are_allowed(architecture: Architecture) -> None:
    denied_somewhere = set(architecture.numbers.values())
    answer = main_of(architecture)

    others = {number: answer(number) for number in range(NEWEST + 1) if number not in denied_somewhere}

    assert set(others.values()) == {ALLOW}
    assert len(others) > 250


@each_architecture
def test_calls_younger_than_the_list_do_not_exist(architecture: Architecture) -> None:
    answer = main_of(architecture)

    assert (answer(NEWEST + 1), answer(NEWEST + 500)) == (errno.ENOSYS, errno.ENOSYS)
    absent = ("clone3", "timer_create", "landlock_create_ruleset", "landlock_add_rule")
    assert {answer(architecture.number(name)) for name in absent} == {errno.ENOSYS}


@each_architecture
def test_a_foreign_architecture_is_killed_by_both_filters(architecture: Architecture) -> None:
    for answer in (main_of(architecture), worker_of(architecture)):
        assert answer(1, audit=0x4000_0003) == KILL
        assert answer(1) == ALLOW


def test_x32_calls_are_killed_by_both_filters() -> None:
    x86_64 = ARCHITECTURES[0]

    for answer in (main_of(x86_64), worker_of(x86_64)):
        assert answer(0x4000_0000 | 1) == KILL


@each_architecture
def test_clone_allows_threads_and_children_but_no_namespaces(
    architecture: Architecture,
) -> None:
    answer = main_of(architecture)
    clone = architecture.number("clone")
    thread, child, vfork = 0x3D0F00, 0x1200011, 0x4111

    assert {answer(clone, flags) for flags in (thread, child, vfork)} == {ALLOW}
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x8000):
        assert answer(clone, child | flag) == errno.EPERM


@each_architecture
def test_attributes_are_not_read_by_path(architecture: Architecture) -> None:
    answer = main_of(architecture)

    assert {answer(number) for number in architecture.known(ATTRIBUTES)} == {errno.ENOTSUP}


@each_architecture
def test_the_threads_of_a_process_have_one_table_of_descriptors(architecture: Architecture) -> None:
    answer = main_of(architecture)
    clone, close_range = architecture.number("clone"), architecture.number("close_range")
    thread, files = 0x3D0F00, 0x400

    assert answer(clone, thread) == ALLOW
    assert answer(clone, thread & ~files) == errno.EPERM
    assert answer(close_range, 3, 4, 0) == answer(close_range, 3, 4, 0x4) == ALLOW
    assert answer(close_range, 3, 4, 0x2) == answer(close_range, 3, 4, 0x6) == errno.EINVAL


@each_architecture
def test_knobs_of_other_processes_are_denied(architecture: Architecture) -> None:
    answer = main_of(architecture)

    for name in ("prlimit64", "sched_setaffinity", "sched_setparam"):
        assert (answer(architecture.number(name), 0), answer(architecture.number(name), 1)) == (
            ALLOW,
            errno.EPERM,
        )
    setpriority = architecture.number("setpriority")
    assert {answer(setpriority, 0, 7), answer(setpriority, 1, 0), answer(setpriority, 2, 0)} == {errno.EPERM}


@each_architecture
def test_scheduling_is_faked_for_ordinary_policies(architecture: Architecture) -> None:
    answer = main_of(architecture)
    scheduler, attributes = architecture.number("sched_setscheduler"), architecture.number("sched_setattr")
    other, fifo, round_robin, batch, idle, deadline, ext = 0, 1, 2, 3, 5, 6, 7
    reset_on_fork = 0x4000_0000

    for pid in (0, 7):
        ordinary, others = (other, batch, idle, idle | reset_on_fork), (fifo, round_robin, deadline, ext)
        assert {answer(scheduler, pid, policy) for policy in ordinary} == {0}
        assert {answer(scheduler, pid, policy) for policy in others} == {errno.EPERM}
    assert [answer(attributes, pid) for pid in (0, 7)] == [0, errno.EPERM]
    assert answer(architecture.number("setpriority"), 0, 0, 5) == 0


@each_architecture
def test_prctl_permits_options_a_worker_needs_until_confined(architecture: Architecture) -> None:
    main, worker = main_of(architecture), worker_of(architecture)
    prctl = architecture.number("prctl")

    assert [main(prctl, option) for option in (1, 4, 15, 22, 36, 78, 0x59616D61)] == [
        ALLOW, errno.EPERM, ALLOW, ALLOW, errno.EPERM, errno.EPERM, errno.EPERM,
    ]  # fmt: skip
    assert [worker(prctl, option) for option in (1, 15)] == [errno.EPERM, ALLOW]


@each_architecture
def test_clocks_of_other_processes_are_absent(architecture: Architecture) -> None:
    answer = main_of(architecture)
    clocks = [architecture.number(name) for name in ("clock_gettime", "clock_getres", "clock_nanosleep")]
    of_another = [(~pid << 3 | kind) & 0xFFFF_FFFF for pid in (1, 7, 4_194_303) for kind in (0, 1, 2)]
    own = [-6 & 0xFFFF_FFFF, -2 & 0xFFFF_FFFF, (~7 << 3 | 6) & 0xFFFF_FFFF]

    assert {answer(clock, each) for clock in clocks for each in of_another} == {errno.EINVAL}
    assert {answer(clock, each) for clock in clocks for each in (*range(12), *own)} == {ALLOW}


def test_processor_time_of_another_process_stays_unknown(confined: Confined, world: World) -> None:
    parent = ~os.getpid() << 3 | 2

    control = confined(world.policy, lambda: time.clock_gettime_ns(parent), without=frozenset({"seccomp"}))
    denied = confined(world.policy, lambda: time.clock_gettime_ns(parent))
    own = confined(
        world.policy, lambda: time.clock_gettime_ns(time.pthread_getcpuclockid(threading.get_ident()))
    )

    assert isinstance(control.value, int)
    assert denied.errno == errno.EINVAL
    assert isinstance(own.value, int)


@each_architecture
def test_setpgid_is_faked_in_worker_and_setsid_everywhere(architecture: Architecture) -> None:
    main, worker = main_of(architecture), worker_of(architecture)
    setsid, setpgid = architecture.number("setsid"), architecture.number("setpgid")

    assert (main(setsid), main(setpgid)) == (0, ALLOW)
    assert (worker(setsid), worker(setpgid)) == (0, 0)


@each_architecture
def test_ioctl_and_fcntl_are_judged_by_their_command(architecture: Architecture) -> None:
    answer = main_of(architecture)
    ioctl, fcntl = architecture.number("ioctl"), architecture.number("fcntl")

    assert {answer(ioctl, 0, command) for command in (0x5401, 0x5413, 0x541B, 0x8001_6601)} == {ALLOW}
    assert {answer(ioctl, 0, command) for command in (0x5412, 0x541C, 0x4008_6602, 0x8901)} == {errno.EPERM}
    cloning, pid_info, snapshot, set_label = (0x4004_9409, 0x4020_940D), 0xC040_FF0B, 0x5000_9401, 0x4100_9432
    assert {answer(ioctl, 0, command) for command in cloning} == {ALLOW}
    assert {answer(ioctl, 0, command) for command in (pid_info, snapshot, set_label)} == {errno.ENOTTY}
    assert {answer(fcntl, 0, command) for command in (0, 1, 2, 3, 4, 5, 6, 7, 1030)} == {ALLOW}
    assert {answer(fcntl, 0, command) for command in (8, 15)} == {errno.EPERM}


@each_architecture
def test_flags_of_devices_and_listeners_are_denied(architecture: Architecture) -> None:
    answer = main_of(architecture)
    rename, seccomp = architecture.number("renameat2"), architecture.number("seccomp")

    assert [answer(rename, 3, 1, 3, 1, flags) for flags in (0, 1, 2, 4)] == [ALLOW, ALLOW, ALLOW, errno.EPERM]
    assert [answer(seccomp, 1, flags) for flags in (0, 1, 8, 9)] == [ALLOW, ALLOW, errno.EPERM, errno.EPERM]


@each_architecture
def test_sockets_are_pairs_without_datagrams_or_nothing(architecture: Architecture) -> None:
    answer = main_of(architecture)
    number = architecture.number
    cloexec = 0o2000000

    assert {answer(number("socket"), family) for family in (1, 2, 10, 16, 17, 38, 40)} == {errno.EACCES}
    assert {answer(number("socketpair"), 1, kind | cloexec) for kind in (1, 5)} == {ALLOW}
    assert {answer(number("socketpair"), 1, kind | cloexec) for kind in (2, 3, 4)} == {errno.EACCES}
    assert answer(number("socketpair"), 30, 1) == errno.EACCES
    for name in ("connect", "bind", "listen", "accept", "accept4"):
        assert answer(number(name)) == errno.EACCES
    assert answer(number("sendto"), 3, 1, 1, 0, 0, 0) == ALLOW
    for address in (0x1000, 0x7F00_0000_0000):
        assert answer(number("sendto"), 3, 1, 1, 0, address, 16) == errno.EACCES


@each_architecture
@pytest.mark.parametrize("gated", [False, True])
def test_socket_options_and_flags_burdening_host_are_denied(architecture: Architecture, gated: bool) -> None:
    program = main_filter(architecture, signals_are_scoped=True, gated=gated).program
    answer, number = Answers(program, architecture.audit), architecture.number
    linger, pass_rights, keepalive, send_buffer = 13, 83, 9, 7
    out_of_band, no_signal, zero_copy = 0x1, 0x4000, 0x4000000
    devices_and_zero_copy = (25, 62, 60)
    denied = (linger, pass_rights, *devices_and_zero_copy)

    assert {answer(number("setsockopt"), 3, 1, o) for o in denied} == {errno.EPERM}
    assert {answer(number("setsockopt"), 3, level, o) for level, o in ((1, keepalive), (6, 13))} == {ALLOW}
    assert answer(number("setsockopt"), 3, 1, send_buffer) == 0
    for name, at in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
        flags = [[*[0] * at, value] for value in (no_signal, no_signal | out_of_band, zero_copy)]
        assert [answer(number(name), *each) for each in flags] == [ALLOW, errno.EPERM, errno.EPERM]


@each_architecture
def test_signals_are_denied_only_without_landlock_scoping(architecture: Architecture) -> None:
    scoped, unscoped = main_of(architecture), main_of(architecture, scoped=False)
    kill = architecture.number("kill")

    assert {scoped(number, 1) for number in architecture.known(SIGNALS)} == {ALLOW}
    assert {unscoped(number, 1) for number in architecture.known(SIGNALS)} == {errno.EPERM}
    assert (unscoped(kill, 0), unscoped(kill, -1)) == (ALLOW, errno.EPERM)


NOT_PERMITTED = {
    "ptrace": lambda: call("ptrace", 0, 0, 0, 0),
    "process_vm_readv": lambda: call("process_vm_readv", os.getpid(), 0, 0, 0, 0, 0),
    "unshare": lambda: call("unshare", 0),
    "memfd_create": lambda: os.close(os.memfd_create("name")),
    "personality": lambda: call("personality", 0xFFFFFFFF),
    "mknod": lambda: os.mknod("made", 0o600),
    "sync": lambda: call("sync"),
    "prlimit": lambda: resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE),
    "setpriority": lambda: os.setpriority(os.PRIO_PGRP, 0, 0),
    "subreaper": lambda: call("prctl", 36, 0, 0, 0, 0),
    "dumpable": lambda: call("prctl", 4, 1, 0, 0, 0),
}


@pytest.mark.parametrize("attempt", NOT_PERMITTED.values(), ids=NOT_PERMITTED)
@pytest.mark.parametrize(
    ("where", "uid"), [("world", None), ("plain_world", NOBODY)], ids=["as-we-are", "unprivileged"]
)
def test_the_kernel_does_not_permit(
    request: pytest.FixtureRequest, confined: Confined, attempt: Function, where: str, uid: int | None
) -> None:
    world: World = request.getfixturevalue(where)
    policy = world.policy

    control = confined(policy, attempt, uid=uid, without=frozenset({"seccomp"}))
    denied = confined(policy, attempt, uid=uid)

    assert control.error is None
    assert denied.errno == errno.EPERM


# Their control is the interpreter above: whether they answer at all depends on the kernel's build.
NEEDS_PRIVILEGE = {
    "mount": (0, 0, 0, 0, 0),
    "setns": (-1, 0),
    "bpf": (0, 0, 0),
    "io_uring_setup": (0, 0),
    "keyctl": (0, -2, 0),
    "shmget": (0, 4096, 0o600),
    "chroot": (0,),
    "perf_event_open": (0, 0, -1, -1, 0),
    "io_setup": (0, 0),
    "userfaultfd": (0,),
    "open_by_handle_at": (-1, 0, 0),
    "fanotify_init": (0, 0),
    "inotify_init1": (0,),
    "process_madvise": (-1, 0, 0, 0, 0),
    # PR_FUTEX_HASH, with 16 slots.
    "prctl": (78, 1, 16, 0, 0),
}


def test_kernel_refuses_privileged_acts(confined: Confined, world: World) -> None:
    def attempt_all() -> dict[str, int | str]:
        answers: dict[str, int | str] = {}
        for name, arguments in NEEDS_PRIVILEGE.items():
            try:
                answers[name] = call(name, *arguments)
            except OSError as error:
                answers[name] = errno.errorcode[error.errno or 0]
        return answers

    report = confined(world.policy, attempt_all)

    assert report.value == dict.fromkeys(NEEDS_PRIVILEGE, "EPERM")


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_DGRAM),
    ],
)
def test_no_socket_can_be_made(
    confined: Confined, world: World, family: socket.AddressFamily, kind: socket.SocketKind
) -> None:
    def make() -> None:
        socket.socket(family, kind).close()

    assert confined(world.policy, make, without=frozenset({"seccomp"})).error is None
    assert confined(world.policy, make).errno == errno.EACCES


def test_a_socket_cannot_be_made_slow_to_close(confined: Confined, world: World) -> None:
    def linger() -> None:
        left, right = socket.socketpair()
        with left, right:
            left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))

    assert confined(world.policy, linger, without=frozenset({"seccomp"})).error is None
    assert confined(world.policy, linger).errno == errno.EPERM


def test_thread_scheduling_request_succeeds_without_effect(confined: Confined, world: World) -> None:
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    before = os.sched_getscheduler(0)
    wanted = os.SCHED_BATCH if before == os.SCHED_OTHER else os.SCHED_OTHER

    def schedule_answers() -> list[int]:
        # As libzmq does in each of its threads, which it ends with all others where this is refused.
        priority = ctypes.c_int(0)
        answers = [
            libc.pthread_setschedparam(ctypes.c_void_p(libc.pthread_self()), policy, ctypes.byref(priority))
            for policy in (wanted, os.SCHED_FIFO)
        ]
        return [*answers, os.sched_getscheduler(0)]

    def work() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(schedule_answers).result()

    control = confined(world.policy, work, without=frozenset({"seccomp"}))
    report = confined(world.policy, work)

    assert (control.value[0], control.value[2]) == (0, wanted)
    assert (report.value[0], report.value[2]) == (0, before)
    assert report.value[1] != 0


def test_thread_of_tool_cannot_lower_its_weight(confined: Confined, world: World) -> None:
    def lower() -> list[bool]:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return [os.getpriority(os.PRIO_PROCESS, 0) == before, os.sched_getscheduler(0) == os.SCHED_IDLE]

    assert confined(world.policy, lower, without=frozenset({"seccomp"})).value[1]
    assert confined(world.policy, lower).value == [True, False]


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_RAW])
def test_no_pair_of_sockets_can_carry_datagrams(
    confined: Confined, world: World, kind: socket.SocketKind
) -> None:
    def pair(kind: socket.SocketKind) -> str:
        left, right = socket.socketpair(socket.AF_UNIX, kind)
        left.send(b"x")
        return right.recv(1).decode()

    assert confined(world.policy, lambda: pair(socket.SOCK_STREAM)).value == "x"
    assert confined(world.policy, lambda: pair(kind), without=frozenset({"seccomp"})).value == "x"
    assert confined(world.policy, lambda: pair(kind)).errno == errno.EACCES


def test_chmod_outside_the_home_changes_nothing(confined: Confined, world: World) -> None:
    target = world.outside / "file.txt"
    before = target.stat().st_mode

    def change() -> int:
        os.chmod(target, 0o777)
        return target.stat().st_mode & 0o777

    denied = confined(world.policy, change)
    after = target.stat().st_mode
    allowed = confined(world.policy, change, without=frozenset({"seccomp"}))

    assert denied.error is None
    assert after == before
    assert allowed.value == 0o777


def test_utime_without_a_view_is_denied(confined: Confined, world: World) -> None:
    target = world.outside / "file.txt"
    before = target.stat().st_mtime_ns

    def change() -> float:
        os.utime(target, (1, 1))
        return target.stat().st_mtime

    denied = confined(world.policy, change)
    after = target.stat().st_mtime_ns
    allowed = confined(world.policy, change, without=frozenset({"seccomp"}))

    assert denied.errno == errno.EPERM
    assert after == before
    assert allowed.value == 1.0


@pytest.mark.needs_root
def test_utime_with_an_own_id_reaches_own_files_only(confined: Confined, plain_world: World) -> None:
    world = plain_world
    others = world.outside / "file.txt"
    os.chown(others, 0, 0)
    others.parent.chmod(0o755)
    others.chmod(0o666)

    def change() -> list[object]:
        os.utime(world.home / "file.txt", (1, 1))
        try:
            os.utime(others, (1, 1))
        except PermissionError as error:
            return [os.stat(world.home / "file.txt").st_mtime, error.errno]
        return []

    assert confined(world.narrowed(uid=NOBODY), change).value == [1.0, errno.EPERM]


def test_extended_attributes_cannot_be_changed(confined: Confined, world: World) -> None:
    def change() -> None:
        os.chown(world.home / "file.txt", -1, -1)

    assert confined(world.policy, change, without=frozenset({"seccomp"})).error is None
    assert confined(world.policy, change).errno == errno.EPERM
    assert (
        confined(world.policy, lambda: os.setxattr(world.home / "file.txt", "user.a", b"b")).errno
        == errno.EPERM
    )


def test_the_kernel_kills_x32_calls(confined: Confined, unconfined: Unconfined, world: World) -> None:
    def getpid_by_x32() -> int:
        answer: int = libc.syscall(ctypes.c_long(0x4000_0000 | 39))
        return answer

    assert unconfined(getpid_by_x32).signal is None
    # Elsewhere the number is only one that no call has.
    assert confined(world.policy, getpid_by_x32).signal == (signal.SIGSYS if HERE.foreign_bit else None)


def test_a_worker_cannot_undo_its_death_with_the_zygote(confined: Confined, world: World) -> None:
    def undo() -> int:
        return call("prctl", 1, 0, 0, 0, 0)

    assert confined(world.policy, undo, as_zygote=True).value == 0
    assert confined(world.policy, undo).errno == errno.EPERM
