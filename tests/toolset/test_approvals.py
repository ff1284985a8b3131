"""Requests for approvals in files: bound to one call, used once, and void in every damaged form."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from disks import fill, small_disk

from runner.errors import CallError, Code
from runner.settings.approvals import ApprovalSettings, rule_for
from runner.toolset.approvals import ApprovalFiles, Approvals, PendingApproval, key_of

KEY = key_of("file.py", "ann", "delete", {"path": "/a"})
PENDING = PendingApproval(
    id="0badcafe",
    key=KEY,
    user="ann",
    tool="delete",
    server="file.py",
    rule="deletions",
    arguments=('path = "/a"',),
    expires_s=600,
)


@pytest.fixture
def files(tmp_path: Path) -> ApprovalFiles:
    return ApprovalFiles(tmp_path / "state")


def approved(files: ApprovalFiles, pending: PendingApproval = PENDING) -> Path:
    """Approve a request; return the file of the answer."""
    assert files.request(pending) == pending
    assert files.answer(pending.id, approve=True) == pending
    return files.state / "approvals" / f"{pending.key}.yes"


def test_approval_passes_one_call_only(files: ApprovalFiles) -> None:
    approved(files)

    assert [files.use(KEY), files.use(KEY)] == [True, None]
    assert files.answer(PENDING.id, approve=True) is None


def test_approval_used_once_by_many_at_once(files: ApprovalFiles) -> None:
    approved(files)
    used: list[bool | None] = []
    together = threading.Barrier(8)

    def use() -> None:
        together.wait()
        used.append(files.use(KEY))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(used, key=str) == [None] * 7 + [True]


@pytest.mark.parametrize(
    "other",
    [
        key_of("other.py", "ann", "delete", {"path": "/a"}),
        key_of("file.py", "bob", "delete", {"path": "/a"}),
        key_of("file.py", "ann", "delete_all", {"path": "/a"}),
        key_of("file.py", "ann", "delete", {"path": "/b"}),
        key_of("file.py", "ann", "delete", {"path": "/a", "times": 1}),
    ],
)
def test_approval_is_void_for_another_call(files: ApprovalFiles, other: str) -> None:
    approved(files)

    assert files.use(other) is None
    assert files.use(KEY) is True


def test_key_is_that_of_equal_json_only() -> None:
    assert key_of("", "u", "t", {"a": 1, "b": [2]}) == key_of(
        "", "u", "t", json.loads('{"b":[2],"a":0,"a":1}')
    )
    keys = [1, 1.0, True, "1", None, 2**64, 2**64 + 1, [1], {"1": 1}, "\ud800", "é", "e\u0301"]
    assert len({key_of("", "u", "t", {"a": value}) for value in keys}) == len(keys)
    assert key_of("", "a", "b", {}) != key_of("a", "", "b", {})
    with pytest.raises(ValueError, match="Out of range"):
        key_of("", "u", "t", {"a": float("nan")})


def test_refusal_counts_before_approval_and_once(files: ApprovalFiles) -> None:
    approved(files)
    assert files.answer(PENDING.id, approve=False) == PENDING

    assert [files.use(KEY), files.use(KEY)] == [False, None]


def test_identical_call_gets_the_request_of_the_first(files: ApprovalFiles) -> None:
    files.request(PENDING)

    assert files.request(replace(PENDING, id="11111111")).id == PENDING.id
    assert [state for _, state, _ in files.listed()] == ["waiting"]


def test_expired_approval_passes_no_call(files: ApprovalFiles) -> None:
    path = approved(files)
    then = time.time() - 601
    os.utime(path, (then, then))

    assert files.use(KEY) is None
    assert files.listed() == []


def test_approval_of_another_time_passes_no_call(files: ApprovalFiles) -> None:
    path = approved(files)
    then = time.time() + 3600
    os.utime(path, (then, then))

    assert files.use(KEY) is None


def linked(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def moved(path: Path) -> None:
    """Rename the approval of another call."""
    other = key_of("file.py", "ann", "delete", {"path": "/etc"})
    path.with_stem(other).write_bytes(path.read_bytes())
    path.with_stem(other).replace(path)
    path.write_text(path.read_text().replace(KEY, other))


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a link": linked,
    "of another call": moved,
    "empty": lambda path: path.write_bytes(b""),
    "cut off": lambda path: path.write_bytes(b"{"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "null": lambda path: path.write_text("null"),
    "without a time": lambda path: path.write_text(path.read_text().replace("600", '"soon"')),
    "of others": lambda path: path.chmod(0o666),
    "in a folder of others": lambda path: path.parent.chmod(0o777),
    "a folder": folder_instead,
    "a pipe": pipe_instead,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_approval_passes_no_call(files: ApprovalFiles, damage: Callable[[Path], object]) -> None:
    damage(approved(files))

    assert files.use(KEY) is None


def test_folder_that_others_can_change_takes_no_request(files: ApprovalFiles) -> None:
    files.request(PENDING)
    (files.state / "approvals").chmod(0o777)

    with pytest.raises(CallError, match="can change it") as refused:
        files.request(replace(PENDING, key="0" * 64))
    assert refused.value.code is Code.E_STORE
    assert files.listed() == []


def test_request_is_refused_where_state_is_gone(files: ApprovalFiles) -> None:
    (files.state / "approvals").parent.mkdir()
    (files.state / "approvals").symlink_to("nowhere")

    with pytest.raises(CallError, match="approvals cannot be used"):
        files.request(PENDING)


def test_requests_of_one_user_are_bounded(files: ApprovalFiles) -> None:
    for number in range(16):
        files.request(replace(PENDING, id=f"{number}", key=f"{number:064}"))

    with pytest.raises(CallError) as refused:
        files.request(replace(PENDING, key="f" * 64))
    assert refused.value.code is Code.E_BUSY
    files.request(replace(PENDING, key="e" * 64, user="bob"))


@pytest.mark.release
def test_full_disk_neither_loses_nor_repeats_an_answer(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        files = ApprovalFiles(disk / "state")
        files.request(PENDING)
        fill(disk)

        with pytest.raises(CallError, match="No space left"):
            files.request(replace(PENDING, key="f" * 64))
        assert files.answer(PENDING.id, approve=True) == PENDING
        assert [files.use(KEY), files.use(KEY)] == [True, None]


def test_state_of_a_question_counts_once_and_for_its_call(files: ApprovalFiles) -> None:
    approvals = Approvals(files=files)
    state = approvals.wait("k", "ann", is_approved=False, expires_s=60)

    assert approvals.resume(state, "other") is None
    assert approvals.resume(state, "k") is False
    assert approvals.resume(state, "k") is None
    assert approvals.resume(approvals.wait("k", "ann", is_approved=True, expires_s=0), "k") is None
    assert approvals.resume(None, "k") is None


def test_approved_call_goes_on_with_what_its_tool_asked_for(files: ApprovalFiles) -> None:
    approvals = Approvals(files=files)
    state = approvals.wait("k", "ann", is_approved=True, expires_s=60, rest="asked")

    assert approvals.resume(state, "k") is None
    assert approvals.resume(state, "k", "other") is None
    assert approvals.resume(state, "k", "asked") is True
    assert approvals.resume(state, "k", "asked") is None


@pytest.mark.anyio
async def test_oldest_open_question_of_user_gives_way(files: ApprovalFiles) -> None:
    approvals = Approvals(files=files)
    ended: list[str] = []

    async def ask(name: str, user: str) -> None:
        try:
            async with asyncio.timeout(60) as limit:
                with approvals.question(user, limit):
                    await asyncio.sleep(60)
        except TimeoutError:
            ended.append(name)

    questions = [asyncio.create_task(ask("bob's", "bob"))]
    questions += [asyncio.create_task(ask(str(number), "ann")) for number in range(18)]
    await asyncio.wait(questions, timeout=0.1)
    for task in questions:
        task.cancel()
    await asyncio.wait(questions)

    assert ended == ["0", "1"]
    for _ in range(16):
        approvals.wait("k", "ann", is_approved=True, expires_s=60)


def test_oldest_abandoned_question_of_user_gives_way(files: ApprovalFiles) -> None:
    approvals = Approvals(files=files)
    others = approvals.wait("b", "bob", is_approved=False, expires_s=60)
    approved = approvals.wait("a", "ann", is_approved=True, expires_s=60)
    states = [approvals.wait(str(n), "ann", is_approved=False, expires_s=60) for n in range(17)]

    found = [approvals.resume(state, str(n)) for n, state in enumerate(states)]

    assert found == [None, None, *[False] * 15]
    assert approvals.resume(others, "b") is False
    assert approvals.resume(approved, "a") is True


def test_approved_calls_of_one_user_give_no_way(files: ApprovalFiles) -> None:
    approvals = Approvals(files=files)
    for number in range(16):
        approvals.wait(str(number), "ann", is_approved=True, expires_s=60)

    with pytest.raises(CallError):
        approvals.wait("k", "ann", is_approved=False, expires_s=60)


def test_tool_stays_destructive_once_it_was(files: ApprovalFiles) -> None:
    approvals = Approvals(files=files)

    assert approvals.is_destructive("s", "look", now=False) is False
    assert approvals.is_destructive("s", "drop", now=True) is True
    assert approvals.is_destructive("s", "drop", now=False) is True
    assert approvals.is_destructive("other", "drop", now=False) is False


RULES = {
    "any": ApprovalSettings(tools=["delete_*"], expires_s=60),
    "destructive": ApprovalSettings(destructive=True, users=["ann*"]),
    "paths": ApprovalSettings(arguments=["path=/etc/*", "*=*DROP TABLE*", "count=1e3"]),
    "operator": ApprovalSettings(tools=["wipe", "delete_all"], by="operator"),
}


@pytest.mark.parametrize(
    ("tool", "user", "is_destructive", "arguments", "rule"),
    [
        ("look", "bob", False, {}, None),
        ("look", "bob", True, {}, None),
        ("look", "ann@x", True, {}, "destructive"),
        ("delete_one", "bob", False, {}, "any"),
        ("delete_all", "bob", False, {}, "operator"),
        ("look", "bob", False, {"path": "/etc/passwd"}, "paths"),
        ("look", "bob", False, {"path": ["/a", {"deep": "/etc/passwd"}]}, "paths"),
        ("look", "bob", False, {"path": {"/etc/x": 1}}, "paths"),
        ("look", "bob", False, {"other": "/etc/passwd"}, None),
        ("look", "bob", False, {"sql": ["x; DROP TABLE y"]}, "paths"),
        ("look", "bob", False, {"count": 1000}, None),
        ("look", "bob", False, {"count": None}, None),
        (None, "bob", False, {}, "operator"),
    ],
)
def test_rule_holds_calls_that_it_names(
    tool: str | None, user: str, is_destructive: bool, arguments: dict[str, object], rule: str | None
) -> None:
    found = rule_for(RULES, tool=tool, user=user, is_destructive=is_destructive, arguments=arguments)

    assert (None if found is None else found[0]) == rule


def test_argument_without_a_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="not written as NAME=PATTERN"):
        ApprovalSettings(arguments=["path"])
