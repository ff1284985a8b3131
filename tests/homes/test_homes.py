"""Homes: ours only, shared by sessions, empty when the last one has gone."""

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_processes import Start

from runner.errors import Code
from runner.homes.homes import Homes
from runner.homes.notes import HomeNote, HomeNotes
from runner.system import locks
from runner.system.own_folders import HomeError, made_folder, open_homes

HOLD = """
    import sys
    from pathlib import Path
    from runner.homes.homes import Homes
    with Homes(Path(sys.argv[1]) / "homes", Path(sys.argv[1]) / "state").lease("alice") as home:
        (home.path / "of-the-other").write_text("x")
        print("leased", flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""


def last_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def note(home: Path, segment: str, *, expires_at: float = 0) -> None:
    """Note of a folder that it is the home of a user."""
    fd = os.open(home, os.O_RDONLY)
    HomeNotes(home.parent.parent / "state").write(fd, HomeNote(segment=segment, kept_until=expires_at))
    os.close(fd)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def homes(place: Path) -> Homes:
    return Homes(place / "homes", place / "state")


def test_a_lease_makes_a_private_home_with_a_folder_for_inputs(homes: Homes) -> None:
    with homes.lease("alice") as home:
        assert home.path == homes.root / "alice"
        assert (home.user, home.segment) == ("alice", "alice")
        assert os.path.samestat(os.fstat(home.fd), home.path.lstat())
        assert mode(home.path) == mode(home.path / "input_files") == 0o700
        assert not os.get_inheritable(home.fd)


def test_home_of_unsafe_user_name_lies_in_homes_root(homes: Homes) -> None:
    with homes.lease("../bob") as home:
        assert home.path.parent == homes.root
        assert [path.name for path in homes.root.iterdir()] == [home.segment]


def test_nothing_but_the_home_itself_is_needed(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        pass

    assert list(homes.root.iterdir()) == [home.path]
    assert list(homes.state.iterdir()) == []


def test_home_is_removed_at_lease_end(homes: Homes) -> None:
    """Source: S1-103."""
    with homes.lease("alice") as home:
        (home.path / "a/b").mkdir(parents=True)
        (home.path / "a/b/file").write_text("x")

    assert list(homes.root.iterdir()) == []
    assert homes.made() == ()


def test_kept_home_is_reused_by_next_lease_then_swept(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        (home.path / "file").write_text("x")
        inode = home.path.stat().st_ino

    assert homes.sweep() == {}
    with homes.lease("alice") as again:
        assert (again.path / "file").read_text() == "x"
        assert again.path.stat().st_ino == inode
    note(home.path, "alice")
    assert homes.sweep()["alice"].removed == 2
    assert not home.path.exists()


def test_two_runners_with_state_of_their_own_share_a_home(homes: Homes, place: Path) -> None:
    other = Homes(homes.root, place / "other-state")

    with homes.lease("alice") as home:
        (home.path / "file").write_text("x")
        with other.lease("alice") as shared:
            assert os.path.samestat(os.fstat(home.fd), os.fstat(shared.fd))
        assert other.sweep() == {}
        assert not other.end("alice")
        assert (home.path / "file").read_text() == "x"

    assert not home.path.exists()


def test_home_kept_by_one_runner_is_kept_by_all(homes: Homes, place: Path) -> None:
    other = Homes(homes.root, place / "other-state")
    with homes.lease("alice", keep_s=60) as home:
        (home.path / "file").write_text("x")

    assert other.sweep() == {}
    with other.lease("alice"):
        assert (home.path / "file").read_text() == "x"
    assert (home.path / "file").read_text() == "x"
    assert other.end("alice")

    assert not home.path.exists()


def test_missing_state_folder_is_tolerated(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        (home.path / "file").write_text("x")
    homes.state.rmdir()

    with homes.lease("alice") as again:
        assert (again.path / "file").read_text() == "x"
    assert homes.end("alice")

    assert not home.path.exists()


def test_a_home_is_emptied_even_if_its_session_fails(homes: Homes) -> None:
    def session() -> None:
        with homes.lease("alice") as home:
            (home.path / "file").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        session()

    assert not (homes.root / "alice").exists()


def test_two_leases_of_one_process_share_home_until_both_end(homes: Homes) -> None:
    with homes.lease("alice") as first:
        with homes.lease("alice") as second:
            (second.path / "file").write_text("x")

        assert (first.path / "file").read_text() == "x"

    assert not first.path.exists()


def test_home_is_emptied_by_the_last_process(homes: Homes, place: Path, start: Start) -> None:
    other = start(HOLD, place)
    assert last_line(other) == "leased"

    with homes.lease("alice") as home:
        assert (home.path / "of-the-other").exists()
        (home.path / "ours").write_text("x")
    assert {path.name for path in home.path.iterdir()} == {"input_files", "of-the-other", "ours"}
    tell(other)

    assert last_line(other) == "over"
    assert not home.path.exists()


def test_files_of_killed_host_are_swept(homes: Homes, place: Path, start: Start) -> None:
    other = start(HOLD, place)
    assert last_line(other) == "leased"

    assert homes.sweep() == {}
    assert (homes.root / "alice/of-the-other").exists()
    other.send_signal(signal.SIGKILL)
    other.wait()

    assert homes.sweep()["alice"].removed == 2
    assert not (homes.root / "alice").exists()


def test_files_of_killed_host_are_gone_in_next_session(homes: Homes, place: Path, start: Start) -> None:
    other = start(HOLD, place)
    assert last_line(other) == "leased"
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (homes.root / "alice/of-the-other").exists()

    with homes.lease("alice") as home:
        assert [path.name for path in home.path.iterdir()] == ["input_files"]


def test_a_sweep_of_nothing_does_nothing(homes: Homes) -> None:
    assert homes.sweep() == {}


def test_removed_home_is_recreated(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        pass
    (home.path / "input_files").rmdir()
    home.path.rmdir()

    with homes.lease("alice") as again:
        assert again.path.is_dir()


def test_home_removed_under_lease_is_recreated_and_survives_it(
    homes: Homes, place: Path, start: Start
) -> None:
    other = start(HOLD, place)
    assert last_line(other) == "leased"
    (homes.root / "alice").rename(place / "elsewhere")

    with homes.lease("alice") as home:
        (home.path / "file").write_text("x")
        tell(other)
        assert last_line(other) == "over"

        assert (home.path / "file").read_text() == "x"


@pytest.mark.parametrize("noted", [False, True])
def test_a_foreign_folder_is_neither_used_nor_emptied(homes: Homes, *, noted: bool) -> None:
    foreign = homes.root / "alice"
    foreign.mkdir(mode=0o700)
    (foreign / "precious").write_text("x")
    if noted:
        # The home of somebody else, put where this one was.
        note(foreign, "bob")

    with pytest.raises(
        HomeError, match=r"was not made by a runner .*0700.*not empty.*move it away"
    ) as refused:
        homes.lease("alice").__enter__()

    assert refused.value.code is Code.E_ISOLATION
    assert homes.sweep() == {}
    assert homes.end("alice")
    assert (foreign / "precious").exists()
    # The control: with a note of its own it would have been used, and emptied.
    note(foreign, "alice")
    with homes.lease("alice"):
        assert not (foreign / "precious").exists()


def test_empty_folder_is_adopted_if_closed_and_owned_by_us(homes: Homes) -> None:
    (homes.root / "alice").mkdir(mode=0o700)
    (homes.root / "bob").mkdir()
    (homes.root / "bob").chmod(0o770)

    with homes.lease("alice") as home:
        assert home.path.is_dir()
    with pytest.raises(HomeError, match=r"was not made by a runner .it has mode 0770 and is empty"):
        homes.lease("bob").__enter__()

    assert [path.name for path in homes.root.iterdir()] == ["bob"]
    assert mode(homes.root / "bob") == 0o770


def test_a_folder_of_another_user_is_refused(homes: Homes) -> None:
    (homes.root / "alice").mkdir(mode=0o700)
    os.chown(homes.root / "alice", 65534, 65534)

    with pytest.raises(HomeError, match="belongs to the user with id 65534, so it is neither used nor"):
        homes.lease("alice").__enter__()
    # The control: in a range that is given to users alone, it can only be of a user.
    with Homes(homes.root, homes.state, ids=range(65534, 65535)).lease("alice") as home:
        assert home.path.stat().st_uid == os.geteuid()


def test_mount_point_in_place_of_home_is_refused(homes: Homes) -> None:
    (homes.root / "alice").mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "none", homes.root / "alice"], check=True)
    try:
        (homes.root / "alice/precious").write_text("x")
        with pytest.raises(HomeError, match="is a mount point"):
            homes.lease("alice").__enter__()
        assert homes.sweep() == {}
        assert (homes.root / "alice/precious").exists()
    finally:
        subprocess.run(["umount", homes.root / "alice"], check=True)


def test_pipe_in_place_of_home_is_refused_at_once(homes: Homes) -> None:
    os.mkfifo(homes.root / "alice")

    with pytest.raises(HomeError, match="is a link or a file"):
        homes.lease("alice").__enter__()


def test_sweep_removes_aborted_home_and_skips_home_in_use(homes: Homes) -> None:
    left, precious = homes.root / ".toolcell-new-left", homes.root / ".toolcell-new-full"
    left.mkdir(mode=0o700)
    precious.mkdir(mode=0o700)
    (precious / "file").touch()
    with open_homes(homes.root) as root_fd:
        name, fd = made_folder(root_fd)
        try:
            homes.sweep()

            assert sorted(path.name for path in homes.root.iterdir()) == sorted([name, precious.name])
        finally:
            locks.let_go(fd)


def test_folders_other_than_homes_are_left_untouched(homes: Homes) -> None:
    foreign = homes.root / "work"
    foreign.mkdir()
    foreign.chmod(0o555)

    assert homes.made() == ()
    homes.sweep()

    assert mode(foreign) == 0o555


@pytest.fixture
def without_attributes(place: Path) -> Iterator[Homes]:
    """A folder of homes on a file system that keeps no extended attributes."""
    subprocess.run(["mount", "-t", "ramfs", "none", place / "homes"], check=True)
    yield Homes(place / "homes", place / "state")
    subprocess.run(["umount", place / "homes"], check=True)


def test_home_notes_go_to_state_folder_without_xattrs(without_attributes: Homes) -> None:
    homes, record = without_attributes, without_attributes.state / "homes/alice.json"
    with pytest.raises(OSError, match="not supported"):
        os.setxattr(homes.root, "user.word", b"x")

    with homes.lease("alice", keep_s=60) as home:
        (home.path / "file").write_text("x")
    assert (mode(record), mode(record.parent)) == (0o600, 0o700)
    with homes.lease("alice"):
        assert (home.path / "file").read_text() == "x"
    record.write_text(json.dumps({**json.loads(record.read_text()), "inode": 1}))
    with pytest.raises(HomeError, match="was not made by a runner"):
        homes.lease("alice").__enter__()
    record.write_text("{")
    with pytest.raises(HomeError, match="was not made by a runner"):
        homes.lease("alice").__enter__()

    assert (home.path / "file").read_text() == "x"


def test_home_without_a_place_for_notes_is_refused(without_attributes: Homes) -> None:
    without_attributes.state.rmdir()
    without_attributes.state.write_text("x")

    with pytest.raises(HomeError, match=r"nowhere can be noted .*setting `homes`.*setting `state_dir`"):
        without_attributes.lease("alice").__enter__()

    assert list(without_attributes.root.iterdir()) == []


def test_link_or_file_in_place_of_home_is_refused(homes: Homes, tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    (precious / "file").write_text("x")
    (homes.root / "alice").symlink_to(precious)
    (homes.root / "bob").write_text("x")

    for user in ("alice", "bob"):
        with pytest.raises(HomeError, match="is a link or a file"):
            homes.lease(user).__enter__()

    assert (precious / "file").exists()


def test_own_home_mode_is_restored(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        pass
    home.path.chmod(0o755)

    with homes.lease("alice"):
        assert mode(home.path) == 0o700


def test_homes_root_writable_by_others_needs_sticky_bit(homes: Homes) -> None:
    homes.root.chmod(0o1777)
    with homes.lease("alice"):
        pass
    homes.root.chmod(0o777)

    with pytest.raises(HomeError, match="no sticky bit"):
        homes.lease("alice").__enter__()


def test_a_folder_for_homes_must_exist(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="cannot be opened: No such file or directory; create it"):
        Homes(tmp_path / "nowhere", tmp_path / "state").lease("alice").__enter__()


def test_users_of_two_names_have_two_homes(homes: Homes) -> None:
    with homes.lease("a@b.com") as one, homes.lease("a_b.com") as other:
        (one.path / "mine").write_text("x")

        assert not (other.path / "mine").exists()


def test_many_short_lived_processes_lose_no_session_file(place: Path, start: Start) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from runner.homes.homes import Homes
        homes = Homes(Path(sys.argv[1]) / "homes", Path(sys.argv[1]) / f"state-{os.getpid()}")
        sys.stdin.readline()
        for round in range(60):
            with homes.lease("alice") as home:
                mine = home.path / f"{os.getpid()}-{round}"
                mine.write_text("x")
                homes.sweep()
                assert mine.read_text() == "x"
                assert (home.path / "input_files").is_dir()
        print("good")
    """
    hosts = [start(code, place) for _ in range(5)]

    for host in hosts:
        tell(host)

    assert [host.communicate(timeout=180)[0] for host in hosts] == ["good\n"] * 5
    assert list((place / "homes").iterdir()) == []
