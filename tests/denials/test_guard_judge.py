import os
from pathlib import Path

import pytest

from sandbox.denials.judge import GuardDenied, Judge, shown
from sandbox.denials.paths import Act, PathRules
from sandbox.outcome import Denial


def judge_of(home: Path, reported: list[Denial]) -> Judge:
    return Judge(PathRules(home=home, homes=(home.parent,)).resolved(), reported.append)


def unheard(_: Denial) -> None:
    """Keep no report."""


def test_a_denial_is_reported_and_raised(tmp_path: Path) -> None:
    reported: list[Denial] = []
    judge = judge_of(tmp_path / "alice", reported)

    judge.check("open", Act.WRITE, tmp_path / "alice" / "new")
    with pytest.raises(GuardDenied, match=r"allowed is /.+/alice/"):
        judge.check("open", Act.WRITE, tmp_path / "new")

    assert reported == [Denial(operation="open", path=str(tmp_path / "new"))]


def test_act_during_denial_report_is_not_judged(tmp_path: Path) -> None:
    reported: list[Denial] = []

    def report(denial: Denial) -> None:
        judge.check("open", Act.WRITE, "/etc/log")
        judge.report("open", "/etc/log")
        reported.append(denial)

    judge = Judge(PathRules(home=tmp_path), report)

    for _ in range(2):
        with pytest.raises(GuardDenied):
            judge.check("open", Act.WRITE, "/etc/new")

    assert reported == [Denial(operation="open", path="/etc/new")] * 2


def test_bytecode_cache_denial_is_silent(tmp_path: Path) -> None:
    reported: list[Denial] = []
    judge = judge_of(tmp_path / "alice", reported)

    with pytest.raises(GuardDenied):
        judge.check("os.mkdir", Act.CREATE, tmp_path / "__pycache__")

    assert reported == []


@pytest.mark.parametrize(
    ("path", "plain"),
    [
        ("/usr/lib/x", True),
        ("/tmp/alice/x", False),
        ("/tmp", False),
        ("/usr/../tmp/x", False),
        ("x", False),
        (b"/usr/lib/x", False),
        (3, False),
    ],
)
def test_only_absolute_text_outside_the_homes_is_a_plain_read(path: object, plain: bool) -> None:
    judge = Judge(PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),)), unheard)

    assert judge.is_plain_read(path) is plain


def test_without_homes_every_absolute_path_is_a_plain_read() -> None:
    assert Judge(PathRules(), unheard).is_plain_read("/tmp/alice/x")


def test_paths_have_passed_only_while_the_original_runs() -> None:
    judge = Judge(PathRules(), unheard)

    with judge.passing(Path("a"), b"b", 3):
        during = [judge.has_passed(path) for path in ("a", "b", Path("b"), "c", 3)]

    assert during == [True, True, True, False, False]
    assert not judge.has_passed("a")


def test_a_shown_path_is_printable_and_short() -> None:
    assert shown("/tmp/a\udcff") == "/tmp/a\\udcff"
    assert len(shown("x" * 10_000)) == 4096


def test_deleted_current_folder_leaves_decision_to_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    judge = Judge(PathRules(home=tmp_path), unheard)

    gone.rmdir()
    judge.check("open", Act.WRITE, "new")

    with pytest.raises(FileNotFoundError):
        os.getcwd()
