"""Homes: ours only, shared by sessions, empty when the last one has gone."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from other_processes import Start

from runner.errors import Code
from runner.home_records import HomeError
from runner.homes import Homes

HOLD = """
    import sys
    from pathlib import Path
    from runner.homes import Homes
    with Homes(Path(sys.argv[1]) / "homes", Path(sys.argv[1]) / "state").lease("alice") as home:
        (home.path / "of-the-other").write_text("x")
        print("leased", flush=True)
        sys.stdin.readline()
    print("over", flush=True)
"""


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


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


def test_the_folder_of_a_user_with_an_unsafe_name_lies_where_all_homes_lie(homes: Homes) -> None:
    with homes.lease("../bob") as home:
        assert home.path.parent == homes.root
        assert [path.name for path in homes.root.iterdir()] == [home.segment]


def test_records_and_locks_are_private(homes: Homes) -> None:
    with homes.lease("alice"):
        records = homes.state / "homes"

        assert mode(records) == 0o700
        assert {path.name: mode(path) for path in records.iterdir()} == {
            "alice.json": 0o600,
            "alice.lock": 0o600,
        }


def test_a_home_is_gone_when_its_lease_ends(homes: Homes) -> None:
    with homes.lease("alice") as home:
        (home.path / "a/b").mkdir(parents=True)
        (home.path / "a/b/file").write_text("x")

    assert list(homes.root.iterdir()) == []
    assert homes.recorded() == ()


def test_a_home_that_is_kept_is_there_for_the_next_lease_and_no_longer(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        (home.path / "file").write_text("x")
        inode = home.path.stat().st_ino

    assert homes.sweep() == {}
    with homes.lease("alice") as again:
        assert (again.path / "file").read_text() == "x"
        assert again.path.stat().st_ino == inode
    os.utime(homes.state / "homes/alice.kept", (0, 0))
    assert homes.sweep()["alice"].removed == 2
    assert not home.path.exists()


def test_two_runners_with_state_of_their_own_take_turns(homes: Homes, place: Path) -> None:
    other = Homes(homes.root, place / "other-state")

    with homes.lease("alice") as home, pytest.raises(HomeError, match="was not made by this runner"):
        other.lease("alice").__enter__()
    with other.lease("alice") as again:
        assert again.path == home.path


def test_a_home_is_emptied_even_if_its_session_fails(homes: Homes) -> None:
    def session() -> None:
        with homes.lease("alice") as home:
            (home.path / "file").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        session()

    assert not (homes.root / "alice").exists()


def test_two_leases_of_one_process_share_a_home_until_both_have_ended(homes: Homes) -> None:
    with homes.lease("alice") as first:
        with homes.lease("alice") as second:
            (second.path / "file").write_text("x")

        assert (first.path / "file").read_text() == "x"

    assert not first.path.exists()


def test_a_home_is_emptied_by_whichever_process_is_the_last(homes: Homes, place: Path, start: Start) -> None:
    other = start(HOLD, place)
    assert said(other) == "leased"

    with homes.lease("alice") as home:
        assert (home.path / "of-the-other").exists()
        (home.path / "ours").write_text("x")
    assert {path.name for path in home.path.iterdir()} == {"input_files", "of-the-other", "ours"}
    tell(other)

    assert said(other) == "over"
    assert not home.path.exists()


def test_what_a_killed_host_left_is_swept(homes: Homes, place: Path, start: Start) -> None:
    other = start(HOLD, place)
    assert said(other) == "leased"

    assert homes.sweep() == {}
    assert (homes.root / "alice/of-the-other").exists()
    other.send_signal(signal.SIGKILL)
    other.wait()

    assert homes.sweep()["alice"].removed == 2
    assert not (homes.root / "alice").exists()


def test_what_a_killed_host_left_is_gone_when_the_next_session_begins(
    homes: Homes, place: Path, start: Start
) -> None:
    other = start(HOLD, place)
    assert said(other) == "leased"
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert (homes.root / "alice/of-the-other").exists()

    with homes.lease("alice") as home:
        assert [path.name for path in home.path.iterdir()] == ["input_files"]


def test_a_sweep_of_nothing_does_nothing(homes: Homes) -> None:
    assert homes.sweep() == {}


def test_a_home_that_was_removed_is_made_anew(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        pass
    (home.path / "input_files").rmdir()
    home.path.rmdir()

    with homes.lease("alice") as again:
        assert again.path.is_dir()


def test_a_home_removed_under_a_lease_is_named_to_the_next(homes: Homes, place: Path, start: Start) -> None:
    other = start(HOLD, place)
    assert said(other) == "leased"
    (homes.root / "alice").rename(place / "elsewhere")

    with pytest.raises(HomeError, match="was removed while another session uses it"), homes.lease("alice"):
        pass


@pytest.mark.parametrize("recorded", [False, True])
def test_a_foreign_folder_is_neither_used_nor_emptied(homes: Homes, *, recorded: bool) -> None:
    if recorded:
        with homes.lease("alice", keep_s=60) as home:
            pass
        home.path.rename(homes.root / "was-alice")
    foreign = homes.root / "alice"
    foreign.mkdir()
    (foreign / "precious").write_text("x")

    with pytest.raises(HomeError, match=r"was not made by this runner.*move it away") as refused:
        homes.lease("alice").__enter__()

    assert refused.value.code is Code.E_ISOLATION
    assert homes.sweep() == {}
    assert (foreign / "precious").exists()


def test_a_folder_with_the_inode_number_of_a_home_but_another_birth_is_foreign(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        pass
    record = homes.state / "homes/alice.json"
    facts = json.loads(record.read_text())
    record.write_text(json.dumps({**facts, "device": facts["device"] + 1}))
    with homes.lease("alice"):
        pass
    record.write_text(json.dumps({**facts, "born_ns": facts["born_ns"] + 1}))
    (home.path / "precious").write_text("x")

    with pytest.raises(HomeError, match="was not made by this runner"):
        homes.lease("alice").__enter__()

    assert (home.path / "precious").exists()


def test_a_link_or_a_file_in_the_place_of_a_home_is_refused(homes: Homes, tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    (precious / "file").write_text("x")
    (homes.root / "alice").symlink_to(precious)
    (homes.root / "bob").write_text("x")

    for user in ("alice", "bob"):
        with pytest.raises(HomeError, match="is a link or a file"):
            homes.lease(user).__enter__()

    assert (precious / "file").exists()


def test_an_own_home_gets_its_mode_back(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60) as home:
        pass
    home.path.chmod(0o755)

    with homes.lease("alice"):
        assert mode(home.path) == 0o700


def test_a_damaged_record_is_named(homes: Homes) -> None:
    with homes.lease("alice", keep_s=60):
        pass
    record = homes.state / "homes/alice.json"
    record.write_text("{")

    with pytest.raises(HomeError, match=f"{record} cannot be read; remove it"):
        homes.lease("alice").__enter__()


def test_a_folder_for_homes_that_others_can_write_needs_the_sticky_bit(homes: Homes) -> None:
    homes.root.chmod(0o1777)
    with homes.lease("alice"):
        pass
    homes.root.chmod(0o777)

    with pytest.raises(HomeError, match="no sticky bit"):
        homes.lease("alice").__enter__()


def test_a_folder_for_homes_must_exist(tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="cannot be opened: No such file or directory; create it"):
        Homes(tmp_path / "nowhere", tmp_path / "state").lease("alice").__enter__()


def test_a_state_folder_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")

    with pytest.raises(HomeError, match=r"the state folder .* cannot be used"):
        Homes(tmp_path, tmp_path / "state").lease("alice").__enter__()


def test_users_of_two_names_have_two_homes(homes: Homes) -> None:
    with homes.lease("a@b.com") as one, homes.lease("a_b.com") as other:
        (one.path / "mine").write_text("x")

        assert not (other.path / "mine").exists()


def test_many_processes_that_come_and_go_never_lose_a_file_of_a_session(place: Path, start: Start) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from runner.homes import Homes
        homes = Homes(Path(sys.argv[1]) / "homes", Path(sys.argv[1]) / "state")
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

    assert [host.communicate(timeout=60)[0] for host in hosts] == ["good\n"] * 5
    assert list((place / "homes").iterdir()) == []
