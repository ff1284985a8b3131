"""The layers of the tiers `user` and `namespace`, each by itself, and how the file system is to look."""

import errno
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from confined_world import World
from forked import NOBODY, READ, Function, Report, run_in_child

from sandbox.errors import ConfinementError
from sandbox.inside.confine import confine_zygote
from sandbox.layers import cgroup, identity, landlock, namespaces
from sandbox.layers import mounts as mounting
from sandbox.layers.mounts import view_of
from sandbox.layers.privileges import adopt_orphans
from sandbox.policy import Limits, Policy
from sandbox.probe.machine import TRIAL_UID, unreadable
from sandbox.syscalls import PR_SET_DUMPABLE, mount, mount_setattr, prctl

pytestmark = [pytest.mark.kernel, pytest.mark.needs_root]

ROOT_NEEDED = "these layers need a privilege: run the tests as root"


@pytest.fixture
def top() -> Iterator[Path]:
    """A folder with two homes, that every user id can enter."""
    assert os.geteuid() == 0, ROOT_NEEDED
    made = Path(tempfile.mkdtemp(prefix="tiers-"))
    made.chmod(0o755)
    for name in ("home", "other", "state"):
        (made / name).mkdir(mode=0o700)
        (made / name / "file.txt").write_text(name)
    yield made
    shutil.rmtree(made)


def policy_of(top: Path, uid: int | None = None) -> Policy:
    return Policy(home=top / "home", read=READ, homes=(top,), namespaces=True, uid=uid)


def in_namespaces(
    policy: Policy, act: Function, before: Callable[[], None] = lambda: None, keep: Iterable[int] = ()
) -> Report:
    """Run `act` in the first process of namespaces of its own, behind every layer."""

    def work() -> str:
        adopt_orphans()
        assert policy.home is not None
        home = os.open(policy.home, os.O_PATH | os.O_DIRECTORY)
        answer, writer = os.pipe()
        pid = namespaces.fork_first_process()
        if pid == 0:
            try:
                confine_zygote(policy, home_fd=home, keep={0, 1, 2, writer, *keep}, parent=0)
                os.write(writer, repr(act()).encode())
            except (OSError, ConfinementError) as error:
                os.write(writer, f"{type(error).__name__}: {error}".encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(answer) as file:
            text = file.read()
        os.waitpid(pid, 0)
        return text

    return run_in_child(work, before)


# The world of namespaces.


def test_the_own_home_can_be_written_and_no_other_is_there(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)

    def act() -> tuple[list[bool], int]:
        (top / "home" / "new.txt").write_text("new")
        return [(top / name).exists() for name in ("home", "other", "state")], os.getpid()

    report = in_namespaces(policy_of(top, uid=TRIAL_UID), act)

    assert report.value == "([True, False, False], 1)"
    assert (top / "home" / "new.txt").stat().st_uid == TRIAL_UID


def test_times_in_a_view_are_set_in_the_home_alone(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)
    readable = top / "readable.txt"
    readable.write_text("r")
    os.chown(readable, TRIAL_UID, TRIAL_UID)

    def act() -> tuple[float, object]:
        made = top / "home" / "new.txt"
        made.touch()
        os.utime(made, (1, 1))
        try:
            # By a descriptor: Landlock lets it be opened to read.
            with open(readable) as file:
                os.utime(file.fileno(), (1, 1))
        except OSError as error:
            return made.stat().st_mtime, error.errno
        return made.stat().st_mtime, "set"

    policy = replace(policy_of(top, uid=TRIAL_UID), read=(*READ, readable))
    before = readable.stat().st_mtime_ns

    assert in_namespaces(policy, act).value == f"(1.0, {errno.EROFS})"
    assert readable.stat().st_mtime_ns == before


def test_packages_are_written_and_executed_with_modes(top: Path) -> None:
    packages = top / "packages"
    packages.mkdir(mode=0o700)
    for name in ("home", "packages"):
        os.chown(top / name, TRIAL_UID, TRIAL_UID)

    def run(folder: Path) -> object:
        program = folder / "program"
        program.write_text("#!/bin/sh\nexit 7\n")
        try:
            program.chmod(0o700)
            return subprocess.run([program], check=False).returncode
        except OSError as error:
            return error.errno

    def act() -> list[object]:
        outcomes = [run(packages), run(top / "home")]
        try:
            (packages / "program").chmod(0o4755)
        except PermissionError as error:
            outcomes.append(error.errno)
        return outcomes

    policy = replace(policy_of(top, uid=TRIAL_UID), packages=packages)

    assert in_namespaces(policy, act).value == f"[7, {errno.EACCES}, {errno.EPERM}]"
    assert in_namespaces(replace(policy, programs=False), act).value.startswith(f"[{errno.EACCES}")


def test_the_way_up_from_the_home_does_not_lead_outside(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)

    def act() -> list[bool]:
        os.chdir(top / "home")
        return [os.path.exists(f"../{name}") for name in ("home", "other")]

    report = in_namespaces(policy_of(top, uid=TRIAL_UID), act)

    assert report.value == "[True, False]"


def test_processes_of_the_host_are_absent(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)
    host = os.getpid()
    os.kill(host, 0)

    def act() -> str:
        try:
            os.kill(host, 0)
        except ProcessLookupError:
            return "no such process"
        return "reached"

    assert in_namespaces(policy_of(top, uid=TRIAL_UID), act).value == "'no such process'"


OWN = ("cgroup", "io", "limits", "maps", "mountinfo", "mounts", "stat", "statm", "status")


def test_process_reads_its_own_proc_files_and_descriptors(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)

    def act() -> tuple[list[bool], bool, bool, bool]:
        whole = [len(Path("/proc/self", name).read_text()) > 0 for name in OWN]
        by_number = Path("/proc", str(os.getpid()), "status").read_text()
        started = subprocess.run(["/bin/cat", "/proc/self/maps"], capture_output=True, check=True)
        return (
            whole,
            f"Pid:\t{os.getpid()}" in by_number,
            "0" in os.listdir("/proc/self/fd"),
            b"cat" in started.stdout,
        )

    report = in_namespaces(policy_of(top, uid=TRIAL_UID), act)

    assert report.value == str(([True] * len(OWN), True, True, True))


def test_a_call_sees_no_other_process_of_its_user_in_proc(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)
    readers = ("cmdline", "status", "maps", "cgroup", "environ")

    def seen(other: int) -> list[bool] | bool:
        try:
            return [bool(Path("/proc", str(other), name).read_bytes()) for name in readers]
        except OSError:
            return str(other) in os.listdir("/proc")

    def from_sibling(zygote: int, *, confined: bool) -> str:
        answer, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            if confined:
                landlock.apply(domain)
            os.write(writer, repr(seen(zygote)).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        return os.read(answer, 1000).decode()

    def act() -> tuple[str, str]:
        me = os.getpid()
        return from_sibling(me, confined=False), from_sibling(me, confined=True)

    # Landlock's second domain is what tells the calls of one user apart. It is built before the filter.
    domain = landlock.narrowing_ruleset(Policy(), home=None)
    assert in_namespaces(policy_of(top, uid=TRIAL_UID), act, keep={domain}).value == str(
        ("[True, True, True, True, True]", "False")
    )


def test_machine_files_of_proc_are_empty_with_few_exceptions(top: Path) -> None:
    os.chown(top / "home", TRIAL_UID, TRIAL_UID)
    named = ("/proc/interrupts", "/proc/locks", "/proc/modules", "/proc/cmdline")
    there = [name for name in named if os.path.exists(name)]
    assert any(Path(name).read_bytes() for name in there)

    def act() -> tuple[bool, list[str], bool]:
        contents = [Path(name).read_bytes() for name in there]
        return any(contents), sorted(os.listdir("/proc/sys")), bool(Path("/proc/cpuinfo").read_bytes())

    report = in_namespaces(policy_of(top, uid=TRIAL_UID), act)

    assert report.value == str((False, ["kernel", "vm"], True))


def test_exchanged_home_is_refused(top: Path) -> None:
    policy = policy_of(top)
    (top / "twin").mkdir()

    def work() -> int:
        adopt_orphans()
        other = os.open(top / "twin", os.O_PATH | os.O_DIRECTORY)
        if namespaces.fork_first_process() == 0:
            try:
                confine_zygote(policy, home_fd=other, keep={0, 1, 2}, parent=0)
            except ConfinementError as error:
                os._exit(17 if "another folder" in str(error) else 18)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.wait()[1])

    assert run_in_child(work, lambda: None).value == 17


@pytest.fixture
def lent() -> Iterator[Path]:
    """A folder that somebody may write who has put a link to a victim beside what others are lent in it."""
    assert os.geteuid() == 0, ROOT_NEEDED
    # Where no empty folder lies over those above it: what is mounted is mounted into what others change.
    made = Path(tempfile.mkdtemp(prefix="toolcell-test-tiers-", dir="/var/lib"))
    made.chmod(0o755)
    for name in ("home", "data/out", "victim"):
        (made / name).mkdir(parents=True)
        (made / name / "file.txt").write_text(name)
    (made / "data/link").symlink_to(made / "victim")
    for name in ("home", "data/out"):
        os.chown(made / name, TRIAL_UID, TRIAL_UID)
    yield made
    shutil.rmtree(made)


@dataclass(frozen=True)
class Exchange:
    """Make a process outside exchange a folder, and wait until it is done."""

    ask: int
    done: int

    def __call__(self) -> None:
        os.write(self.ask, b"x")
        os.read(self.done, 1)

    @property
    def keep(self) -> tuple[int, int]:
        return self.ask, self.done


@pytest.fixture
def exchange(lent: Path) -> Iterator[Exchange]:
    """Replace what is lent by a link, from a process outside, as may happen at any moment."""
    requests, ask = os.pipe()
    done, tell = os.pipe()

    def wait() -> None:
        while os.read(requests, 1):
            (lent / "data/out").rename(lent / "data/away")
            (lent / "data/link").rename(lent / "data/out")
            os.write(tell, b"x")

    outside = threading.Thread(target=wait)
    outside.start()

    yield Exchange(ask, done)
    os.close(ask)
    outside.join()
    for fd in (requests, done, tell):
        os.close(fd)
    assert (lent / "data/out").is_symlink(), "nothing was exchanged"


def lending(lent: Path) -> Policy:
    # The victim is read from its own place, which no empty folder covers.
    return Policy(
        home=lent / "home",
        read=(*READ, lent / "victim"),
        lent_write=(lent / "data/out",),
        homes=(lent / "home",),
        namespaces=True,
        uid=TRIAL_UID,
    )


def seen(lent: Path) -> Function:
    def act() -> list[str]:
        contents = [(lent / "victim/file.txt").read_text()]
        for path in (lent / "victim/new.txt", lent / "data/out/new.txt"):
            try:
                path.write_text("new")
                contents.append("written")
            except OSError:
                contents.append("refused")
        return contents

    return act


def test_lent_folder_below_writable_path_is_mounted_in_place(lent: Path) -> None:
    report = in_namespaces(lending(lent), seen(lent))

    assert report.value == "['victim', 'refused', 'written']"
    assert (lent / "data/out/new.txt").read_text() == "new"


def test_link_placed_before_mount_does_not_redirect_it(
    lent: Path, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of one who writes would lie over that of somebody else, such as the tool file's."""
    left = [exchange]

    def late(source: str | None, target: str, **more: Any) -> None:
        # What is kept is open by now, and not mounted again.
        if source == "tmpfs" and left:
            left.pop()()
        mount(source, target, **more)

    monkeypatch.setattr(mounting, "mount", late)
    report = in_namespaces(lending(lent), seen(lent), keep=exchange.keep)

    assert report.value == "['victim', 'refused', 'refused']"
    assert sorted(os.listdir(lent / "victim")) == ["file.txt"]


def test_link_placed_after_mount_opens_nothing_else(
    lent: Path, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [exchange]

    def late(*args: Any, **more: Any) -> None:
        # All is mounted by now; what is the user's to write is opened.
        if "remove" in more and left:
            left.pop()()
        mount_setattr(*args, **more)

    monkeypatch.setattr(mounting, "mount_setattr", late)
    report = in_namespaces(lending(lent), seen(lent), keep=exchange.keep)

    assert report.value == "['victim', 'refused', 'refused']"


def test_unprivileged_host_builds_view_in_user_namespace(plain_world: World) -> None:
    policy = plain_world.narrowed(namespaces=True, homes=(plain_world.home.parent,), read=(Path("/usr"),))

    def act() -> tuple[bool, bool, int]:
        (plain_world.home / "new.txt").write_text("new")
        return plain_world.home.exists(), plain_world.other.exists(), os.getuid()

    def become_nobody() -> None:
        identity.apply(NOBODY)
        # As after an exec: until then /proc belongs to who this process was.
        prctl(PR_SET_DUMPABLE, 1)
        namespaces.enter_user_namespace()

    assert os.geteuid() == 0, ROOT_NEEDED
    # Fails where the system keeps user namespaces from users: sysctl user.max_user_namespaces and its kind.
    report = in_namespaces(policy, act, before=become_nobody)

    assert report.value == f"(True, False, {NOBODY})"


# How the file system is to look.


def test_readable_paths_reappear_in_place_and_nothing_else(tmp_path: Path) -> None:
    for name in ("home", "other", "tool", "state/scratch"):
        (tmp_path / name).mkdir(parents=True)
    policy = Policy(
        home=tmp_path / "home",
        scratch=tmp_path / "state" / "scratch",
        read=(tmp_path / "tool", Path("/usr")),
        list_only=(tmp_path,),
        homes=(tmp_path,),
        hidden=(tmp_path / "state",),
    )

    view = view_of(policy)

    assert Path("/tmp") in view.covered
    assert Path("/usr") not in view.mounted_back
    assert view.mounted_back == tuple(sorted(tmp_path / name for name in ("home", "state/scratch", "tool")))
    assert tmp_path in view.made


def test_links_beside_named_file_are_made_if_target_is_readable(tmp_path: Path) -> None:
    (tmp_path / "..2024").mkdir()
    for name in ("tool.py", "conf.json", "other.json"):
        (tmp_path / "..2024" / name).touch()
        (tmp_path / name).symlink_to(f"..data/{name}")
    (tmp_path / "..data").symlink_to("..2024")
    granted = tuple(tmp_path / "..2024" / name for name in ("tool.py", "conf.json"))

    view = view_of(Policy(read=granted, names=(tmp_path / "tool.py",)))

    assert {(path.name, text) for path, text in view.links if tmp_path in path.parents} == {
        ("tool.py", "..data/tool.py"),
        ("conf.json", "..data/conf.json"),
        ("..data", "..2024"),
    }


def test_link_to_readable_path_is_made_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "tool.py").touch()
    (tmp_path / "link").symlink_to("real")
    named = tmp_path / "link" / "tool.py"

    view = view_of(Policy(read=(tmp_path / "real" / "tool.py",), names=(named,)))
    through = view_of(Policy(read=(named,)))

    assert (tmp_path / "link", "real") in view.links
    assert view.mounted_back == (tmp_path / "real" / "tool.py",)
    assert tmp_path / "real" / "tool.py" not in through.mounted_back


def test_folder_lent_for_writing_is_mounted_once_and_writable(tmp_path: Path) -> None:
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "data.db").touch()

    view = view_of(Policy(lent_write=(lent,), read=(lent / "data.db",)))

    assert view.mounted_back == (lent,)


def test_link_to_lent_folder_is_made_and_grants_nothing(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    shown = view_of(Policy(lent_read=(tmp_path / "real",), names=(tmp_path / "link",)))
    named = view_of(Policy(names=(tmp_path / "link",)))

    assert (tmp_path / "link", "real") in shown.links
    assert shown.mounted_back == (tmp_path / "real",)
    assert named.mounted_back == ()


def test_home_elsewhere_has_a_link_at_its_expected_path(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    view = view_of(Policy(home=home, aliases=(Path("/tmp/ann"),)))

    assert (Path("/tmp/ann"), str(home)) in view.links


def test_closed_folder_above_readable_path_is_hidden_from_others(top: Path) -> None:
    closed = Path(tempfile.mkdtemp(dir="/usr/local"))
    (closed / "inside").mkdir()

    policies = [Policy(read=(closed / "inside",), uid=uid) for uid in (TRIAL_UID, None)]
    covered = [closed in view_of(policy).covered for policy in policies]
    shutil.rmtree(closed)

    assert covered == [True, False]


# User ids.


def test_another_user_id_is_one_without_groups_or_a_way_back() -> None:
    def act() -> object:
        identity.apply(TRIAL_UID)
        try:
            os.setresuid(0, 0, 0)
        except PermissionError:
            return [os.getresuid(), os.getresgid(), os.getgroups()]
        return "back"

    assert os.geteuid() == 0, ROOT_NEEDED
    report = run_in_child(act, lambda: None)

    assert report.value == [[TRIAL_UID] * 3, [TRIAL_UID] * 3, []]


def test_folder_closed_to_another_user_is_named(top: Path) -> None:
    (top / "open.txt").touch(mode=0o644)

    assert unreadable([top / "open.txt"], uid=TRIAL_UID) is None
    found = unreadable([top / "open.txt", top / "state" / "file.txt"], uid=TRIAL_UID)

    assert found is not None
    assert found.startswith(f"{top / 'state'} is closed to other users")


# Control groups.


def test_control_group_is_limited_and_removed_with_processes() -> None:
    assert cgroup.places(), "mount control groups with the controllers memory and pids"
    folders = cgroup.make(f"{os.getpid()}-1", Limits(processes=7))

    try:
        limits = [(folder / "pids.max").read_text() for folder in folders if (folder / "pids.max").exists()]

        def fork_many() -> int:
            cgroup.apply(folders)
            pids = []
            try:
                for _ in range(20):
                    pids.append(os.fork())
                    if pids[-1] == 0:
                        os._exit(0)
            except OSError:
                pass
            for pid in pids:
                os.waitpid(pid, 0)
            return len(pids)

        refused = run_in_child(fork_many, lambda: None)
    finally:
        cgroup.remove(folders)

    assert limits == ["7\n"]
    assert refused.value == 6
    assert [folder for folder in folders if folder.exists()] == []


def test_control_group_of_killed_creator_is_removed_by_next() -> None:
    assert cgroup.places(), "mount control groups with the controllers memory and pids"
    made = run_in_child(
        lambda: [str(folder) for folder in cgroup.make(f"{os.getpid()}-1", Limits())], lambda: None
    )
    left = [Path(name) for name in made.value]
    was_there = [folder.exists() for folder in left]

    cgroup.remove(cgroup.make(f"{os.getpid()}-2", Limits()))

    assert was_there == [True] * len(left)
    assert left
    assert [folder for folder in left if folder.exists()] == []


def test_groups_of_version_1_are_found_by_controller(tmp_path: Path) -> None:
    (tmp_path / "memory" / "own").mkdir(parents=True)
    (tmp_path / "pids").mkdir()
    groups = "8:pids:/\n4:memory:/own\n0::/\n"
    mounts = (
        f"30 20 0:1 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"31 20 0:2 / {tmp_path}/pids rw - cgroup cgroup rw,pids\n"
    )

    found = cgroup.find(groups, mounts)

    assert [(place.folder, bool(place.memory), bool(place.pids)) for place in found] == [
        (tmp_path / "pids", False, True),
        (tmp_path / "memory" / "own", True, False),
    ]


def test_cgroup_v2_is_used_only_with_delegated_controllers(tmp_path: Path) -> None:
    own = tmp_path / "service" / "runner"
    own.mkdir(parents=True)
    mounts = f"30 20 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n"
    groups = "0::/service/runner\n"
    (own / "cgroup.subtree_control").write_text("")
    (own.parent / "cgroup.subtree_control").write_text("memory pids\n")

    of_nobody = cgroup.find(groups, mounts)
    (own / "cgroup.subtree_control").write_text("cpu memory pids\n")
    of_its_own = cgroup.find(groups, mounts)

    assert of_nobody == ()
    assert [place.folder for place in of_its_own] == [own]


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """A unit's group as systemd 257 gives it away: marked, and with nothing handed on below it."""
    unit = tmp_path / "unit"
    own = unit / "runner"
    own.mkdir(parents=True)
    os.setxattr(unit, "user.delegate", b"1")
    (unit / "cgroup.controllers").write_text("memory pids\n")
    (unit / "cgroup.subtree_control").write_text("memory\n")
    (own / "cgroup.subtree_control").write_text("")
    (own / "memory.max").write_text("max\n")
    (own / "pids.max").write_text("max\n")
    return own


def as_proc_shows(own: Path) -> tuple[str, str]:
    return "0::/unit/runner\n", f"30 20 0:1 / {own.parent.parent} rw - cgroup2 cgroup2 rw\n"


def test_group_delegated_by_systemd_is_passed_on_and_used(delegated: Path) -> None:
    unit = delegated.parent

    before = cgroup.find(*as_proc_shows(delegated))
    cgroup.hand_on_of(*as_proc_shows(delegated), ("memory", "pids", "cpu"))
    controllers = (unit / "cgroup.subtree_control").read_text()
    # What the kernel would show then.
    (unit / "cgroup.subtree_control").write_text("memory pids\n")

    assert before == ()
    # Neither what is handed on already nor what the unit does not have.
    assert controllers == "+pids"
    assert [place.folder for place in cgroup.find(*as_proc_shows(delegated))] == [unit]


def test_undelegated_group_is_left_unchanged(delegated: Path) -> None:
    os.removexattr(delegated.parent, "user.delegate")

    cgroup.hand_on_of(*as_proc_shows(delegated), ("memory", "pids"))

    assert (delegated.parent / "cgroup.subtree_control").read_text() == "memory\n"


@pytest.mark.parametrize("bound", ["memory.max", "pids.max"])
def test_sibling_group_does_not_escape_bounds_of_own_group(delegated: Path, bound: str) -> None:
    (delegated.parent / "cgroup.subtree_control").write_text("memory pids\n")
    unbounded = cgroup.find(*as_proc_shows(delegated))
    (delegated / bound).write_text("1000\n")

    assert [place.folder for place in unbounded] == [delegated.parent]
    assert cgroup.find(*as_proc_shows(delegated)) == ()


def test_path_removed_during_view_setup_is_omitted(lent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in /var/tmp that a stranger removes just then must not keep a user from their call."""
    gone = Path(tempfile.mkdtemp(dir="/var/tmp"))
    policy = replace(lending(lent), read=(*lending(lent).read, gone))
    assert gone in view_of(policy).mounted_back

    def early(policy: Policy) -> mounting.MountView:
        view = view_of(policy)
        gone.rmdir()
        return view

    monkeypatch.setattr(mounting, "view_of", early)
    report = in_namespaces(policy, seen(lent))

    assert report.value == "['victim', 'refused', 'written']"
    assert not gone.exists()
