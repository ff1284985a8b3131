import contextlib
import json
import os
import pwd
from pathlib import Path

import pytest
from pydantic import ValidationError

from runner.errors import CallError
from runner.settings.settings import Settings
from runner.system.uids import Uids

pytestmark = pytest.mark.needs_root

AMONG = range(1_900_000_000, 1_900_000_020)


def test_users_never_share_a_uid_in_a_small_range(tmp_path: Path) -> None:
    uids = Uids(tmp_path, AMONG)

    assigned = {uids.of(f"user-{number}") for number in range(len(AMONG))}

    assert assigned == set(AMONG)


def test_a_user_keeps_the_id_in_any_later_process(tmp_path: Path) -> None:
    first = [Uids(tmp_path, AMONG).of(name) for name in ("alice", "bob")]

    assert [Uids(tmp_path, AMONG).of(name) for name in ("alice", "bob")] == first


def test_two_state_folders_give_a_user_the_same_free_uid(tmp_path: Path) -> None:
    wide = range(1_900_000_000, 1_900_065_536)

    assert Uids(tmp_path / "a", wide).of("alice") == Uids(tmp_path / "b", wide).of("alice")
    assert Uids(tmp_path / "a", wide).of("alice") != Uids(tmp_path / "b", wide).of("bob")


def test_uids_of_anonymous_processes_are_distinct_and_unused(tmp_path: Path) -> None:
    uids, same = Uids(tmp_path, AMONG), Uids(tmp_path, AMONG)

    with uids.of_nobody() as first, same.of_nobody() as second:
        users = {uids.of(f"user-{number}") for number in range(len(AMONG) - 2)}

    assert users == set(AMONG) - {first, second}
    assert first != second


def test_released_anonymous_uid_is_reused_before_a_further_one(tmp_path: Path) -> None:
    uids = Uids(tmp_path, AMONG)
    with uids.of_nobody() as first:
        pass

    with uids.of_nobody() as again, uids.of_nobody() as another:
        pass

    assert again == first
    assert set(json.loads((tmp_path / "uids.json").read_text()).values()) == {first, another}


def test_nobody_gets_another_uid_in_another_state_folder(tmp_path: Path) -> None:
    wide = range(1_900_000_000, 1_900_065_536)

    with contextlib.ExitStack() as stack:
        # Four, since two may be the same by chance once in 65,536 times.
        ids = {stack.enter_context(Uids(tmp_path / name, wide).of_nobody()) for name in "abcd"}

    assert len(ids) > 1


def test_anonymous_uid_that_cannot_be_set_is_not_held(tmp_path: Path) -> None:
    uids = Uids(tmp_path, AMONG[:1])
    uids.of("alice")

    for _ in range(2):
        with pytest.raises(CallError, match="all 1 user ids are given"), uids.of_nobody():
            pass

    assert [path.name for path in tmp_path.glob("nobody-*")] == ["nobody-0.lock"]


def test_uid_known_to_the_system_is_skipped(tmp_path: Path) -> None:
    known = max(entry.pw_uid for entry in pwd.getpwall())

    assigned = Uids(tmp_path, range(known, known + 2)).of("alice")

    assert assigned == known + 1


def test_exhausted_uid_range_names_the_setting(tmp_path: Path) -> None:
    uids = Uids(tmp_path, AMONG[:1])
    uids.of("alice")

    with pytest.raises(CallError, match="all 1 user ids are given; widen the setting `uid_range`"):
        uids.of("bob")


def test_unreadable_uid_record_is_set_apart_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "uids.json").write_text("[1")

    uid = Uids(tmp_path, AMONG).of("alice")

    assert json.loads((tmp_path / "uids.json").read_text()) == {"alice": uid}
    assert [path.read_text() for path in tmp_path.glob("uids.json.damaged-*")] == ["[1"]
    assert "set aside" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"[1", None])
def test_damaged_uid_record_is_restored_from_its_copy(tmp_path: Path, damage: bytes | None) -> None:
    # In a small range ids follow from names for few: who comes first after a loss would get another's.
    names = [f"user-{number}" for number in range(12)]
    before = {name: Uids(tmp_path, AMONG).of(name) for name in names}
    record, copy = tmp_path / "uids.json", tmp_path / "uids-copy.json"

    record.unlink() if damage is None else record.write_bytes(damage)
    after = {name: Uids(tmp_path, AMONG).of(name) for name in reversed(names)}
    both = json.loads(record.read_text()), json.loads(copy.read_text())
    # The control: without the copy they are assigned again, in another order.
    record.unlink()
    copy.unlink()
    reassigned = {name: Uids(tmp_path, AMONG).of(name) for name in reversed(names)}

    assert after == before
    assert both == (before, before)
    assert reassigned != before


def test_home_uids_survive_loss_of_record_and_copy(tmp_path: Path) -> None:
    assert os.geteuid() == 0, "only root gives homes away; run these tests as root"
    homes = tmp_path / "homes"
    homes.mkdir(mode=0o700)
    before = {}
    for name in ("alice", "bob", "carol"):
        before[name] = Uids(tmp_path / "state", AMONG, homes).of(name)
        (homes / name).mkdir()
        os.chown(homes / name, before[name], before[name])
    for path in (tmp_path / "state").glob("uids*.json"):
        path.unlink()
    later = Uids(tmp_path / "state", AMONG, homes)

    others = {later.of(f"user-{number}") for number in range(len(AMONG) - 3)}

    assert not others & set(before.values())
    assert {name: later.of(name) for name in before} == before


@pytest.mark.parametrize("text", ["0-10", "900-2000", "5000-4000", "1000", "1000-4294967295", "a-b"])
def test_uid_range_invalid_or_with_real_users_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="FIRST-LAST"):
        Settings(uid_range=text)


def test_home_owner_retains_uid_after_record_loss(tmp_path: Path) -> None:
    homes, wide = tmp_path / "homes", range(1_900_100_000, 1_900_101_000)
    homes.mkdir(mode=0o700)
    usual = Uids(tmp_path / "a", wide).of("alice")
    for name, uid in (("bob", usual), ("alice", wide[7])):
        (homes / name).mkdir()
        os.chown(homes / name, uid, uid)
    uids = Uids(tmp_path / "lost", wide, homes)

    assert uids.of("carol") not in {usual, wide[7]}
    assert uids.of("alice") == wide[7]
    assert uids.of("bob") == usual
    # The control: without a look at the homes, alice would get the id that bob's files belong to.
    assert Uids(tmp_path / "blind", wide).of("alice") == usual


def test_two_homes_with_one_uid_leave_it_to_one_user(tmp_path: Path) -> None:
    homes, wide = tmp_path / "homes", range(1_900_100_000, 1_900_101_000)
    homes.mkdir(mode=0o700)
    for name in ("alice", "bob"):
        (homes / name).mkdir()
        os.chown(homes / name, wide[3], wide[3])
    uids = Uids(tmp_path / "state", wide, homes)

    assert uids.of("alice") == wide[3]
    assert uids.of("bob") != wide[3]
