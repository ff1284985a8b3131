"""No path leads out of the home: what our decisions say is held against where the kernel really goes."""

import os
import stat
from pathlib import Path

import pytest
from fuzz_tree import SECRET, Tree, paths, plant, where
from hypothesis import assume, example, given
from hypothesis import strategies as st

from runner.artifacts.named_file import collect, relative_to_home
from runner.errors import CallError, Code
from runner.formats.database_logs import LogBudget
from runner.formats.filenames import MAX_BYTES, safe_name, unique_name
from runner.system.openat import CONFINED, open_folder, openat2
from runner.users.usernames import home_segment
from sandbox.denials.judge import GuardDenied, Judge
from sandbox.denials.paths import DEVICES, Act, PathRules, PathVerdict, act_of_flags, act_of_mode, decide
from sandbox.outcome import Denial

pytestmark = pytest.mark.release

TREE: Tree = plant()
RULES = PathRules(home=TREE.home.path, homes=(TREE.top,)).resolved()
FREE = {str(device) for device in DEVICES}
WRITES = tuple(act for act in Act if act is not Act.READ)

_bases = st.sampled_from((str(TREE.home.path), str(TREE.home.path / "sub"), str(TREE.top), "/"))
_names = st.text(st.characters(), max_size=40) | st.lists(
    st.sampled_from(
        (
            "..",
            "/",
            "\\",
            "%2f",
            "%255C",
            "C:",
            ".",
            "nul",
            ".tar.gz",
            "\u202e",
            "\u2044",
            "é",
            "e\u0301",
            " ",
            "a",
        )
    ),
    max_size=12,
).map("".join)


def below_home(real: str) -> bool:
    return real.startswith(f"{TREE.home.path}/")


@given(paths(TREE), _bases, st.sampled_from(WRITES))
def test_path_writable_by_guard_is_in_home_for_kernel(path: str, base: str, act: Act) -> None:
    verdict = decide(act, path, base=base, rules=RULES)

    real = where(os.path.join(base, path), follow=act.follows) if path else None
    assume(real is not None and not real.startswith("/proc/"))
    assert real is not None
    if verdict is PathVerdict.ALLOWED:
        # The home's own entry is not written by an act that follows; others than those never may touch it.
        assert below_home(real) or real in FREE or (act.follows and real == str(TREE.home.path))
    if below_home(real):
        assert verdict is not PathVerdict.NOT_WRITABLE


@given(paths(TREE), _bases)
def test_path_readable_by_guard_is_not_in_other_home_for_kernel(path: str, base: str) -> None:
    verdict = decide(Act.READ, path, base=base, rules=RULES)

    real = where(os.path.join(base, path), follow=True) if path else None
    assume(real is not None and not real.startswith("/proc/"))
    assert real is not None
    others = real.startswith(f"{TREE.top}/") and real != str(TREE.home.path) and not below_home(real)
    assert (verdict is PathVerdict.NOT_READABLE) == (others or real == str(TREE.top))


@given(paths(TREE), st.sampled_from(Act), st.none() | st.integers(-2, 400))
def test_judge_only_allows_or_denies(path: str, act: Act, dir_fd: int | None) -> None:
    denials: list[Denial] = []
    judge = Judge(RULES, denials.append)

    for named in (path, Path(path) if "\0" not in path else path, path.encode(errors="surrogatepass")):
        try:
            judge.check("open", act, named, dir_fd)
        except GuardDenied:
            assert [denial.path.encode() for denial in denials] != []


@given(paths(TREE))
@example("sparse")
@example("fifo")
@example("hard")
def test_collected_file_is_a_plain_file_of_the_home(path: str) -> None:
    refused: Code | None = None
    try:
        with collect(path, TREE.home, max_bytes=1 << 20, logs=LogBudget()) as found:
            judged, real = os.fstat(found.fd), os.readlink(f"/proc/self/fd/{found.fd}")
            content = os.read(found.fd, found.size + 1)
    except CallError as error:
        refused = error.code
    if refused is not None:
        assert refused in (Code.E_INVALID_PATH, Code.E_INVALID_RESULT, Code.E_FILE_TOO_LARGE)
        return

    assert stat.S_ISREG(judged.st_mode)
    assert judged.st_nlink == 1
    assert below_home(real)
    assert len(content) == found.size
    assert SECRET not in content


@given(paths(TREE))
def test_file_opened_for_staging_is_below_the_folder(path: str) -> None:
    relative = relative_to_home(path, TREE.home.path)

    for name in {path, relative or "."}:
        try:
            handle = openat2(TREE.home.fd, name, os.O_PATH, resolve=CONFINED)
        except (OSError, ValueError):
            continue
        real = os.readlink(f"/proc/self/fd/{handle}")
        os.close(handle)
        assert below_home(real) or real == str(TREE.home.path)


@given(st.sampled_from(sorted(os.listdir(TREE.home.path))))
def test_only_real_folders_are_opened_as_folders(name: str) -> None:
    try:
        folder = open_folder(TREE.home.fd, name)
    except OSError:
        assert not (TREE.home.path / name).is_dir() or (TREE.home.path / name).is_symlink()
        return
    real = os.readlink(f"/proc/self/fd/{folder}")
    os.close(folder)
    assert real == str(TREE.home.path / name)


@given(_names)
def test_safe_name_is_one_idempotent_folder_entry(name: str) -> None:
    safe = safe_name(name)

    assert safe_name(safe) == safe
    assert 0 < len(safe.encode()) <= MAX_BYTES
    assert safe not in (".", "..")
    place = TREE.bob / "sub" / safe
    before = set(os.listdir(place.parent))
    assume(safe not in before)
    os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    added = set(os.listdir(place.parent)) - before
    os.unlink(place)
    assert added == {safe}


@given(st.lists(_names, max_size=8))
def test_unique_names_are_safe_and_differ(names: list[str]) -> None:
    taken: list[str] = []

    for name in names:
        taken.append(unique_name(safe_name(name), taken))

    assert len(set(taken)) == len(taken)
    assert [name for name in taken if len(name.encode()) > MAX_BYTES or "/" in name] == []


@given(_names, _names)
def test_no_two_users_share_a_home_and_each_is_one_folder(one: str, other: str) -> None:
    segments = []
    for user in (one, other):
        try:
            segments.append(home_segment(user))
        except ValueError:
            assert not user.strip("\0") or max(user) >= "\ud800"
    for segment in segments:
        assert "/" not in segment
        assert segment not in ("", ".", "..")
        assert len(segment.encode()) <= 255
    assert len(segments) < 2 or (one == other) == (segments[0] == segments[1])


@given(st.integers(-(2**40), 2**40), st.text(max_size=5))
def test_any_flags_and_modes_are_some_act(flags: int, mode: str) -> None:
    act = act_of_flags(flags)
    assert act is None or act in Act
    assert act_of_mode(mode) in Act


PROPERTIES = tuple(value for name, value in list(globals().items()) if name.startswith("test_"))


def test_the_tree_holds_what_must_not_be_reached() -> None:
    """A control: a path that leads out does so where nobody looks."""
    assert where(str(TREE.home.path / "to_secret"), follow=True) == str(TREE.bob / "secret")
    assert Path(TREE.home.path / "to_bob" / "secret").read_bytes() == SECRET
    with pytest.raises(CallError), collect("to_bob/secret", TREE.home, max_bytes=100, logs=LogBudget()):
        pass
