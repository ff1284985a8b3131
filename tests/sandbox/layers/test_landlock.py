"""Files that a confined process reaches: every denial beside the same act where it is allowed."""

import errno
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confined_world import Confined, World
from forked import Function, Report, run_in_child

from sandbox.layers import landlock, privileges
from sandbox.layers.landlock import (
    HOME,
    MINIMUM_ABI,
    AccessRight,
    LandlockRule,
    handled,
    zygote_rules,
    zygote_ruleset,
)
from sandbox.layers.proc import own_folder
from sandbox.policy import Policy
from sandbox.syscalls import landlock_abi, landlock_add_path_rule, landlock_create_ruleset

NOBODY = 65534

Unconfined = Callable[[Function], Report]
Change = Callable[[Path], object]

CHANGES: dict[str, Change] = {
    "open for writing": lambda folder: open(folder / "file.txt", "w").close(),
    "open for appending": lambda folder: open(folder / "file.txt", "a").close(),
    "create": lambda folder: open(folder / "new", "x").close(),
    "create without a name": lambda folder: os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)),
    "touch": lambda folder: (folder / "new").touch(),
    "truncate": lambda folder: os.truncate(folder / "file.txt", 0),
    "truncate by opening for reading": lambda folder: os.close(
        os.open(folder / "file.txt", os.O_RDONLY | os.O_TRUNC)
    ),
    "remove": lambda folder: os.unlink(folder / "file.txt"),
    "make a folder": lambda folder: os.mkdir(folder / "new"),
    "remove a folder": lambda folder: os.rmdir(folder / "empty"),
    "make a link": lambda folder: os.symlink("file.txt", folder / "new"),
    "rename within": lambda folder: os.rename(folder / "file.txt", folder / "new"),
    "link within": lambda folder: os.link(folder / "file.txt", folder / "new"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    ("where", "uid"), [("world", None), ("plain_world", NOBODY)], ids=["as-we-are", "unprivileged"]
)
def test_files_can_be_changed_in_the_home_only(
    request: pytest.FixtureRequest, confined: Confined, change: Change, where: str, uid: int | None
) -> None:
    """Source: S1-23, S1-46, S1-47, S1-55 and S1-101."""
    world: World = request.getfixturevalue(where)
    for folder in (world.home, world.outside):
        (folder / "empty").mkdir()
        if uid is not None and os.getuid() == 0:
            os.chown(folder / "empty", uid, uid)

    at_home = confined(world.policy, lambda: change(world.home), uid=uid)
    outside = confined(world.policy, lambda: change(world.outside), uid=uid)

    assert (at_home.error, at_home.signal) == (None, None)
    assert outside.errno == errno.EACCES
    assert (world.outside / "file.txt").read_text() == "outside"
    assert sorted(os.listdir(world.outside)) == ["empty", "file.txt"]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_without_a_home_nothing_can_be_changed(
    confined: Confined, unconfined: Unconfined, world: World, change: Change
) -> None:
    """Source: S1-57."""
    (world.scratch / "empty").mkdir()
    policy = world.narrowed(home=None)

    denied = confined(policy, lambda: change(world.scratch))
    allowed = unconfined(lambda: change(world.scratch))

    assert denied.errno == errno.EACCES
    assert allowed.error is None


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_scratch_folder_is_writable_while_loading_only(
    confined: Confined, world: World, change: Change
) -> None:
    (world.scratch / "empty").mkdir()

    by_worker = confined(world.policy, lambda: change(world.scratch))
    by_zygote = confined(world.policy, lambda: change(world.scratch), as_zygote=True)

    assert by_worker.errno == errno.EACCES
    assert by_zygote.error is None


def test_worker_reads_caches_from_the_scratch_folder(confined: Confined, world: World) -> None:
    report = confined(world.policy, lambda: (world.scratch / "file.txt").read_text())

    assert report.value == "scratch"


MOVES: dict[str, Callable[[World], object]] = {
    "rename out": lambda world: os.rename(world.home / "file.txt", world.outside / "new"),
    "rename in": lambda world: os.rename(world.outside / "file.txt", world.home / "new"),
    "link out": lambda world: os.link(world.home / "file.txt", world.outside / "new"),
    "link in": lambda world: os.link(world.outside / "file.txt", world.home / "new"),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_files_cannot_be_moved_or_linked_across_home_border(
    confined: Confined, unconfined: Unconfined, world: World, move: Callable[[World], object]
) -> None:
    denied = confined(world.narrowed(read=(*world.policy.read, world.outside)), lambda: move(world))
    allowed = unconfined(lambda: move(world))

    assert denied.errno in (errno.EACCES, errno.EXDEV)
    assert allowed.error is None


def test_another_home_can_be_neither_read_nor_listed(confined: Confined, world: World) -> None:
    """Source: S1-49."""
    own = confined(world.policy, lambda: [(world.home / "file.txt").read_text(), os.listdir(world.home)])
    read = confined(world.policy, lambda: (world.other / "file.txt").read_text())
    listed = confined(world.policy, lambda: os.listdir(world.other))
    parent = confined(world.policy, lambda: os.listdir(world.home.parent))

    assert own.value == ["home", ["file.txt"]]
    assert (read.errno, listed.errno, parent.errno) == (errno.EACCES,) * 3


def test_link_in_the_home_opens_no_denied_path(
    confined: Confined, unconfined: Unconfined, world: World
) -> None:
    (world.home / "link").symlink_to(world.other / "file.txt")

    def follow() -> str:
        return (world.home / "link").read_text()

    assert unconfined(follow).value == "other"
    assert confined(world.policy, follow).errno == errno.EACCES


def test_a_file_can_be_its_own_hierarchy(confined: Confined, world: World) -> None:
    (world.outside / "second.txt").write_text("second")
    policy = world.narrowed(read=(*world.policy.read, world.outside / "second.txt"))

    assert confined(policy, lambda: (world.outside / "second.txt").read_text()).value == "second"
    assert confined(policy, lambda: (world.outside / "file.txt").read_text()).errno == errno.EACCES


@pytest.mark.parametrize("name", ["link.txt", "folder/file.txt"])
def test_grant_through_a_link_grants_nothing(confined: Confined, world: World, name: str) -> None:
    """A link put there after the grant was decided, as the file or as a folder above it, is not followed."""
    (world.outside / "link.txt").symlink_to(world.other / "file.txt")
    (world.outside / "folder").symlink_to(world.other)
    denied = world.narrowed(read=(*world.policy.read, world.outside / name))
    granted = world.narrowed(read=(*world.policy.read, world.other / "file.txt"))

    def read() -> str:
        return (world.outside / name).read_text()

    assert confined(granted, read).value == "other"
    assert confined(denied, read).errno == errno.EACCES


def test_a_hierarchy_to_list_only_tells_names_and_nothing_more(confined: Confined, world: World) -> None:
    policy = world.narrowed(list_only=(world.outside,))

    assert confined(world.policy, lambda: os.listdir(world.outside)).errno == errno.EACCES
    assert confined(policy, lambda: os.listdir(world.outside)).value == ["file.txt"]
    assert confined(policy, lambda: (world.outside / "file.txt").read_text()).errno == errno.EACCES


def test_home_rule_follows_descriptor_not_later_name(confined: Confined, world: World) -> None:
    moved = world.outside / "moved"

    descriptor = os.open(world.home, os.O_PATH)
    world.home.rename(moved)
    world.other.rename(world.home)
    policy = world.narrowed(home=Path(f"/proc/self/fd/{descriptor}"))
    denied = confined(policy, lambda: (world.home / "file.txt").read_text())
    allowed = confined(policy, lambda: (moved / "file.txt").read_text())
    os.close(descriptor)

    assert denied.errno == errno.EACCES
    assert allowed.value == "home"


@pytest.mark.parametrize(
    "make",
    [
        lambda path: os.mkfifo(path),
        lambda path: os.mknod(path, 0o600 | 0o010000),
        lambda path: socket.socket(socket.AF_UNIX).bind(str(path)),
    ],
    ids=["mkfifo", "mknod", "bind"],
)
def test_no_fifo_and_no_socket_can_be_made_in_the_home(
    confined: Confined, world: World, make: Change
) -> None:
    no_seccomp = frozenset({"seccomp"})
    no_landlock = frozenset({"landlock"})

    def try_it() -> None:
        make(world.home / "new")

    assert confined(world.policy, try_it, without=no_seccomp).errno == errno.EACCES
    assert confined(world.policy, try_it, without=no_landlock).errno in (errno.EACCES, errno.EPERM)
    assert confined(world.policy, try_it, without=no_seccomp | no_landlock).error is None


def test_file_written_to_home_cannot_be_executed(
    confined: Confined, unconfined: Unconfined, world: World
) -> None:
    def execute() -> int:
        program = world.home / "program"
        program.write_bytes(Path("/bin/true").read_bytes())
        program.chmod(0o700)
        return subprocess.run([program], check=False).returncode

    (world.home / "program").write_bytes(b"")
    (world.home / "program").chmod(0o700)

    assert confined(world.policy, execute).errno == errno.EACCES
    assert unconfined(execute).value == 0


def test_programs_run_unless_the_policy_forbids_them(confined: Confined, world: World) -> None:
    def run() -> int:
        return subprocess.run(["/bin/true"], check=True).returncode

    assert confined(world.policy, run).value == 0
    assert confined(world.narrowed(programs=False), run).errno == errno.EACCES


def test_a_program_is_confined_like_the_worker_that_started_it(
    confined: Confined, unconfined: Unconfined, world: World
) -> None:
    def run() -> list[str]:
        command = f"cat {world.other}/file.txt; echo x > {world.outside}/new; echo y > {world.home}/new"
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
        return [done.stdout, (world.home / "new").read_text()]

    assert confined(world.policy, run).value == ["", "y\n"]
    assert not (world.outside / "new").exists()
    assert unconfined(run).value == ["other", "y\n"]
    assert (world.outside / "new").exists()


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero", "/dev/full"])
def test_null_devices_are_open_even_without_a_home(confined: Confined, world: World, name: str) -> None:
    def open_both() -> bool:
        with open(name, "rb+", buffering=0) as file:
            return file.readable() and file.writable()

    assert confined(world.narrowed(home=None), open_both).value is True


def test_machine_facts_are_readable_and_process_facts_are_not(
    confined: Confined, unconfined: Unconfined, world: World
) -> None:
    pid = os.getpid()

    def read(name: str) -> bool:
        with open(name, "rb") as file:
            return len(file.read(10)) > 0

    for name in ("/proc/meminfo", "/proc/cpuinfo", "/dev/urandom"):
        assert confined(world.policy, partial(read, name)).value is True
    for name in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline", "/proc/net/unix", "/proc/mounts"):
        assert unconfined(partial(read, name)).value is True
        assert confined(world.policy, partial(read, name)).errno == errno.EACCES
    assert confined(world.policy, lambda: os.listdir("/proc")).errno == errno.EACCES


def test_the_number_of_processors_is_known(confined: Confined, unconfined: Unconfined, world: World) -> None:
    assert confined(world.policy, os.cpu_count).value == unconfined(os.cpu_count).value


@pytest.mark.parametrize("as_zygote", [True, False])
def test_signals_do_not_reach_the_host(
    confined: Confined, unconfined: Unconfined, world: World, as_zygote: bool
) -> None:
    host = os.getpid()

    assert unconfined(lambda: os.kill(host, 0)).error is None
    assert confined(world.policy, lambda: os.kill(host, 0), as_zygote=as_zygote).errno == errno.EPERM
    open_to_all = confined(
        world.policy,
        lambda: os.kill(host, 0),
        as_zygote=as_zygote,
        without=frozenset({"landlock", "seccomp"}),
    )
    assert open_to_all.error is None


def test_a_worker_signals_its_children_and_not_its_zygote(confined: Confined, world: World) -> None:
    def work() -> list[int | None]:
        with subprocess.Popen(["/bin/sleep", "60"]) as child:
            child.send_signal(signal.SIGTERM)
            ended = child.wait(60)
        os.kill(os.getpid(), 0)
        try:
            os.kill(os.getppid(), 0)
        except PermissionError as error:
            return [ended, error.errno]
        return [ended, None]

    assert confined(world.policy, work).value == [-signal.SIGTERM, errno.EPERM]


def test_abstract_sockets_outside_are_not_reached(confined: Confined, world: World) -> None:
    name = f"\0test-landlock-{os.getpid()}-{time.monotonic_ns()}"
    no_seccomp = frozenset({"seccomp"})

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        listening.listen()

        def reach() -> None:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(name)

        assert confined(world.policy, reach, without=no_seccomp | {"landlock"}).error is None
        assert confined(world.policy, reach, without=no_seccomp).errno == errno.EPERM


def test_unforked_process_reads_only_its_own_proc_files(
    world: World,
) -> None:
    """Without namespaces: a server behind the proxy, or a file whose import starts threads."""
    other = os.getpid()
    names = ("cgroup", "status", "maps", "mounts", "limits", "statm")

    def look(own: bool, *, confined: bool) -> object:
        def work() -> list[str]:
            if confined:
                privileges.refuse_new_privileges()
                landlock.apply(zygote_ruleset(world.policy, home=None, own=own))
            return [_outcome(f"/proc/{whose}/{name}") for whose in ("self", other) for name in names]

        return run_in_child(work, lambda: None).value

    denied, read = ["PermissionError"] * len(names), ["read"] * len(names)
    assert look(own=True, confined=False) == read + read
    assert look(own=False, confined=True) == denied + denied
    assert look(own=True, confined=True) == read + denied


def test_no_landlock_rule_grants_forked_process_only_its_proc(world: World) -> None:
    """A kernel that changes this lets a forked worker without namespaces have its own files of proc."""
    looked_at = [*(("self", name) for name in ("cgroup", "status", "maps")), (os.getpid(), "cmdline")]

    def look_after_fork(granted: str) -> object:
        def work() -> list[object]:
            privileges.refuse_new_privileges()
            ruleset = zygote_ruleset(world.policy, home=None, own=granted == "its zygote's")
            if granted == "everybody's":
                proc = os.open("/proc", os.O_PATH)
                landlock_add_path_rule(
                    ruleset, parent=proc, access=AccessRight.READ_FILE | AccessRight.READ_DIR
                )
            landlock.apply(ruleset)
            return [of_parent(), run_in_child(after_fork, lambda: None).value]

        def after_fork() -> list[str]:
            if granted == "its own, later":
                handles = AccessRight.READ_FILE | AccessRight.READ_DIR
                ruleset = landlock_create_ruleset(filesystem=handles, network=0, scoped=0, abi=landlock_abi())
                folder = os.open(own_folder(), os.O_PATH)
                landlock_add_path_rule(ruleset, parent=folder, access=handles)
                landlock.apply(ruleset)
            return [_outcome(f"/proc/{who}/{name}") for who, name in looked_at]

        def of_parent() -> str:
            return _outcome("/proc/self/cgroup")

        return run_in_child(work, lambda: None).value

    nothing, everything = ["PermissionError"] * 4, ["read"] * 4
    assert look_after_fork("its zygote's") == ["read", nothing]
    assert look_after_fork("its own, later") == ["PermissionError", nothing]
    # And what would give it them gives it those of others.
    assert look_after_fork("everybody's") == ["read", everything]


def _outcome(path: str) -> str:
    try:
        return "read" if Path(path).read_bytes() else "empty"
    except OSError as error:
        return type(error).__name__


def test_rules_name_each_path_with_its_rights() -> None:
    policy = Policy(read=(Path("/usr"),), list_only=(Path("/opt"),))

    rules = zygote_rules(policy)

    assert rules[:2] == [
        LandlockRule(Path("/usr"), AccessRight.READ_FILE | AccessRight.READ_DIR | AccessRight.EXECUTE),
        LandlockRule(Path("/opt"), AccessRight.READ_DIR),
    ]
    writable = {str(rule.path) for rule in rules if rule.access & AccessRight.WRITE_FILE}
    assert writable == {"/dev/null", "/dev/zero", "/dev/full"}


def test_with_a_home_the_sources_of_chance_may_be_written_too() -> None:
    rules = zygote_rules(Policy(home=Path("/tmp/alice")))

    writable = {str(rule.path) for rule in rules if rule.access & AccessRight.WRITE_FILE}
    assert writable == {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}


def test_a_policy_without_programs_grants_no_execution_anywhere() -> None:
    rules = zygote_rules(Policy(read=(Path("/usr"),), programs=False))

    assert not any(rule.access & AccessRight.EXECUTE for rule in rules)


def test_a_home_never_carries_execution_or_special_files() -> None:
    forbidden = (
        AccessRight.EXECUTE
        | AccessRight.MAKE_SOCK
        | AccessRight.MAKE_FIFO
        | AccessRight.MAKE_CHAR
        | AccessRight.MAKE_BLOCK
        | AccessRight.IOCTL_DEV
    )

    assert not HOME & forbidden


def test_rights_unknown_to_the_kernel_are_dropped() -> None:
    everything = AccessRight((1 << 16) - 1)

    assert [everything & ~handled(abi) for abi in (1, 2, 3, 4, 5, 6, 7, 8)] == [
        AccessRight.REFER | AccessRight.TRUNCATE | AccessRight.IOCTL_DEV,
        AccessRight.TRUNCATE | AccessRight.IOCTL_DEV,
        AccessRight.IOCTL_DEV,
        AccessRight.IOCTL_DEV,
        AccessRight(0),
        AccessRight(0),
        AccessRight(0),
        AccessRight(0),
    ]


def test_this_kernel_offers_what_the_layer_needs() -> None:
    assert landlock_abi() >= MINIMUM_ABI, "this kernel has no Landlock, or one older than Linux 6.2"
