import os
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyfakefs.fake_filesystem import FakeFilesystem

from sandbox.denials.judge import name_of
from sandbox.denials.paths import (
    Act,
    PathRules,
    PathVerdict,
    act_of_flags,
    act_of_mode,
    base_of,
    decide,
    is_moot,
    locate,
)
from sandbox.policy import Policy

WRITING = (Act.WRITE, Act.UPDATE, Act.CREATE, Act.REPLACE, Act.REMOVE)


@pytest.fixture
def world(fs: FakeFilesystem) -> FakeFilesystem:
    fs.create_file("/tmp/alice/notes.txt")
    fs.create_dir("/tmp/alice/folder")
    fs.create_file("/tmp/alice2/notes.txt")
    fs.create_file("/tmp/bob/secret.txt")
    fs.create_file("/etc/hosts")
    fs.create_symlink("/tmp/alice/to_bob", "/tmp/bob/secret.txt")
    fs.create_symlink("/tmp/alice/to_bobs_folder", "/tmp/bob")
    fs.create_symlink("/tmp/alice/to_notes", "notes.txt")
    fs.create_symlink("/tmp/alice/dangling_in", "/tmp/alice/not_yet")
    fs.create_symlink("/tmp/alice/dangling_out", "/tmp/bob/not_yet")
    fs.create_symlink("/tmp/alice/circle", "/tmp/alice/circle")
    fs.create_symlink("/way_in", "/tmp/alice")
    fs.create_file("/tmp/tools/data.csv")
    return fs


def alice() -> PathRules:
    return PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),))


def verdict(act: Act, path: str, base: str = "/tmp/alice") -> PathVerdict:
    return decide(act, path, base=base, rules=alice())


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "path",
    [
        "/tmp/alice/new.txt",
        "/tmp/alice/notes.txt",
        "/tmp/alice/folder/../new.txt",
        "/tmp//alice/./folder//new.txt",
        "/tmp/bob/../alice/new.txt",
        "/way_in/new.txt",
        "new.txt",
        "folder/new.txt",
        "missing/folder/new.txt",
    ],
)
def test_everything_is_allowed_to_paths_that_lead_into_the_home(path: str) -> None:
    verdicts = {verdict(act, path) for act in Act}

    assert verdicts == {PathVerdict.ALLOWED}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "path",
    [
        "/etc/hosts",
        "/new.txt",
        "/tmp/new.txt",
        "/tmp/bob/secret.txt",
        "/tmp/alice2/notes.txt",
        "/tmp/alice2",
        "/tmp/alice/../bob/new.txt",
        "/tmp/alice/folder/../../new.txt",
        "/tmp/alice/to_bobs_folder/new.txt",
        "/tmp/alice/to_bobs_folder/../alice2/new.txt",
        "../bob/secret.txt",
        "to_bobs_folder/new.txt",
    ],
)
def test_no_change_is_allowed_to_paths_that_lead_out_of_the_home(path: str) -> None:
    verdicts = {verdict(act, path) for act in WRITING}

    assert verdicts == {PathVerdict.NOT_WRITABLE}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("act", [Act.WRITE, Act.UPDATE])
def test_a_link_in_the_home_is_followed_by_acts_that_open_it(act: Act) -> None:
    assert verdict(act, "to_notes") is PathVerdict.ALLOWED
    assert verdict(act, "dangling_in") is PathVerdict.ALLOWED
    assert verdict(act, "to_bob") is PathVerdict.NOT_WRITABLE
    assert verdict(act, "dangling_out") is PathVerdict.NOT_WRITABLE


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("act", [Act.CREATE, Act.REPLACE, Act.REMOVE])
def test_link_in_home_is_created_replaced_and_removed_itself(act: Act) -> None:
    assert verdict(act, "to_bob") is PathVerdict.ALLOWED
    assert verdict(act, "dangling_out") is PathVerdict.ALLOWED
    assert verdict(act, "circle") is PathVerdict.ALLOWED
    assert verdict(act, "to_bobs_folder/") is PathVerdict.NOT_WRITABLE


@pytest.mark.usefixtures("world")
def test_a_link_elsewhere_that_points_into_the_home_is_not_in_it() -> None:
    assert verdict(Act.WRITE, "/way_in/notes.txt") is PathVerdict.ALLOWED
    assert verdict(Act.REMOVE, "/way_in") is PathVerdict.NOT_WRITABLE


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("path", ["/tmp/alice", "/tmp/alice/", ".", "folder/..", "/tmp/alice/."])
def test_home_itself_may_be_opened_but_not_removed(path: str) -> None:
    assert verdict(Act.WRITE, path) is PathVerdict.ALLOWED
    assert verdict(Act.READ, path) is PathVerdict.ALLOWED
    assert verdict(Act.REMOVE, path) is PathVerdict.NOT_WRITABLE
    assert verdict(Act.REPLACE, path) is PathVerdict.NOT_WRITABLE


@pytest.mark.usefixtures("world")
def test_read_is_allowed_except_in_other_homes() -> None:
    """Source: S1-56."""
    assert verdict(Act.READ, "/etc/hosts") is PathVerdict.ALLOWED
    assert verdict(Act.READ, "/tmp/alice/notes.txt") is PathVerdict.ALLOWED
    assert verdict(Act.READ, "/tmp/bob/secret.txt") is PathVerdict.NOT_READABLE
    assert verdict(Act.READ, "/tmp/alice2/notes.txt") is PathVerdict.NOT_READABLE
    assert verdict(Act.READ, "/tmp") is PathVerdict.NOT_READABLE
    assert verdict(Act.READ, "to_bob") is PathVerdict.NOT_READABLE


@pytest.mark.usefixtures("world")
def test_readable_path_below_homes_is_readable_not_writable() -> None:
    rules = PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),), readable=(Path("/tmp/tools"),))

    assert decide(Act.READ, "/tmp/tools/data.csv", base="/", rules=rules) is PathVerdict.ALLOWED
    assert decide(Act.WRITE, "/tmp/tools/data.csv", base="/", rules=rules) is PathVerdict.NOT_WRITABLE
    assert verdict(Act.READ, "/tmp/tools/data.csv") is PathVerdict.NOT_READABLE


@pytest.mark.usefixtures("world")
def test_a_worker_without_a_home_may_write_devices_only() -> None:
    rules = PathRules(homes=(Path("/tmp"),))

    assert decide(Act.WRITE, "/dev/null", base="/", rules=rules) is PathVerdict.ALLOWED
    assert decide(Act.WRITE, "/tmp/alice/new.txt", base="/", rules=rules) is PathVerdict.NOT_WRITABLE
    assert decide(Act.READ, "/tmp/alice/notes.txt", base="/", rules=rules) is PathVerdict.NOT_READABLE


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("path", ["", "a\0b", "/tmp/bob/\ud800"])
def test_non_path_is_left_to_the_kernel(path: str) -> None:
    assert verdict(Act.WRITE, path) is PathVerdict.UNKNOWN


@pytest.mark.parametrize("path", ["/proc/7/fd/pipe:[12]", "/proc/7/fd/socket:[12]"])
def test_a_pipe_reached_through_proc_is_left_to_the_kernel(path: str) -> None:
    assert verdict(Act.WRITE, path) is PathVerdict.UNKNOWN


@pytest.mark.usefixtures("world")
def test_a_relative_path_starts_at_the_folder_of_its_descriptor() -> None:
    folders = {7: "/tmp/bob", 8: "/tmp/alice/folder"}

    bobs = base_of("secret.txt", 7, folder_of=folders.get)
    alices = base_of("secret.txt", 8, folder_of=folders.get)

    assert (bobs, alices) == ("/tmp/bob", "/tmp/alice/folder")
    assert verdict(Act.WRITE, "secret.txt", "/tmp/bob") is PathVerdict.NOT_WRITABLE
    assert verdict(Act.WRITE, "secret.txt", "/tmp/alice/folder") is PathVerdict.ALLOWED


def test_an_absolute_path_ignores_its_descriptor() -> None:
    assert base_of("/etc/hosts", 7, folder_of={7: "/tmp/alice"}.get) == "/"


def test_descriptor_of_non_folder_gives_no_base() -> None:
    read, write = os.pipe()

    base = base_of("name", read)

    os.close(read)
    os.close(write)
    assert base is None


def test_a_descriptor_of_a_folder_gives_that_folder(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)

    base = base_of("name", descriptor)

    os.close(descriptor)
    assert base == os.path.realpath(tmp_path)


@pytest.mark.parametrize(
    ("value", "name"),
    [(b"/tmp/a\xff", "/tmp/a\udcff"), (Path("a"), "a"), ("a", "a"), (3, None), (None, None), (1.5, None)],
)
def test_path_name_accepts_bytes_and_paths_but_not_descriptors(value: object, name: str | None) -> None:
    assert name_of(value) == name


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("act", "path", "moot"),
    [
        (Act.CREATE, "/etc/hosts", True),
        (Act.CREATE, "/tmp/alice/dangling_out", True),
        (Act.CREATE, "/etc/new", False),
        (Act.REMOVE, "/etc/new", True),
        (Act.REMOVE, "/etc/hosts/new", True),
        (Act.REMOVE, "/tmp/alice/dangling_out", False),
        (Act.READ, "/tmp/bob/new", True),
        (Act.READ, "/tmp/alice/dangling_out", True),
        (Act.READ, "/tmp/bob/secret.txt", False),
        (Act.UPDATE, "/etc/new", True),
        (Act.UPDATE, "/etc/hosts", False),
        (Act.WRITE, "/etc/new", False),
        (Act.REPLACE, "/etc/new", False),
    ],
)
def test_denial_is_moot_when_kernel_answers_by_existence(act: Act, path: str, moot: bool) -> None:
    assert is_moot(act, path, base="/") is moot


@pytest.mark.parametrize(
    ("mode", "act"),
    [
        ("r", Act.READ),
        ("rb", Act.READ),
        ("r+", Act.UPDATE),
        ("rb+", Act.UPDATE),
        ("w", Act.WRITE),
        ("a+b", Act.WRITE),
        ("xt", Act.CREATE),
    ],
)
def test_open_mode_determines_the_act(mode: str, act: Act) -> None:
    assert act_of_mode(mode) is act


@pytest.mark.parametrize(
    ("flags", "act"),
    [
        (os.O_RDONLY, Act.READ),
        (os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, Act.READ),
        (os.O_RDONLY | os.O_TRUNC, Act.UPDATE),
        (os.O_RDONLY | os.O_CREAT, Act.CREATE),
        (os.O_RDWR, Act.UPDATE),
        (os.O_WRONLY | os.O_CREAT, Act.WRITE),
        (os.O_WRONLY | os.O_CREAT | os.O_EXCL, Act.CREATE),
        (os.O_PATH, None),
    ],
)
def test_open_flags_determine_the_act(flags: int, act: Act | None) -> None:
    assert act_of_flags(flags) is act


def test_rules_refuse_relative_paths() -> None:
    with pytest.raises(ValueError, match="absolute paths only, got 'alice'"):
        PathRules(home=Path("alice"))


def test_resolved_rules_follow_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")

    rules = PathRules(home=tmp_path / "link", homes=(tmp_path,), writable=()).resolved()

    real = Path(os.path.realpath(tmp_path))
    assert rules == PathRules(home=real / "real", homes=(real,), writable=(), is_resolved=True)
    assert rules.resolved() is rules


def test_policy_rules_leave_readable_and_listed_paths_to_kernel() -> None:
    policy = Policy(
        home=Path("/tmp/alice"),
        scratch=Path("/tmp/scratch"),
        homes=(Path("/tmp"),),
        read=(Path("/usr"),),
        list_only=(Path("/opt"),),
    )

    rules = PathRules.of(policy)

    readable = (Path("/usr"), Path("/opt"), Path("/tmp/scratch"))
    assert rules == PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),), readable=readable)


PARTS = (
    "alice",
    "alice2",
    "bob",
    "folder",
    "file",
    "missing",
    "..",
    ".",
    "",
    "up",
    "to_bob",
    "to_file",
    "gone",
    "circle",
)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = Path(os.path.realpath(tmp_path_factory.mktemp("maze")))
    for user in ("alice", "alice2", "bob"):
        (top / user / "folder").mkdir(parents=True)
        (top / user / "file").touch()
        (top / user / "up").symlink_to("..")
        (top / user / "to_bob").symlink_to(top / "bob")
        (top / user / "to_file").symlink_to(top / "bob" / "file")
        (top / user / "folder" / "up").symlink_to("../..")
        (top / user / "gone").symlink_to(top / "bob" / "missing")
        (top / user / "circle").symlink_to("circle")
    return top


def kernel_path(path: str) -> Path | None:
    """Resolve an existing path in the kernel."""
    try:
        descriptor = os.open(path, os.O_PATH)
    except OSError:
        return None
    try:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    finally:
        os.close(descriptor)


def touched_path(act: Act, path: str) -> Path | None:
    """Resolve the target of `act` in the kernel; None if it refuses the walk."""
    folder, name = os.path.split(path)
    if act.follows or name in ("", ".", ".."):
        existing = kernel_path(path)
        if existing is not None or os.path.lexists(path) or name in ("", ".", ".."):
            return existing
    parent = kernel_path(folder)
    return None if parent is None else parent / name


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=7), act=st.sampled_from(WRITING))
def test_no_path_that_leads_out_of_the_home_is_ever_allowed(maze: Path, parts: list[str], act: Act) -> None:
    rules = PathRules(home=maze / "alice", homes=(maze,), writable=())
    home = maze / "alice"
    path = "/".join(parts)
    touched = touched_path(act, os.path.join(home, path))
    assume(path and touched is not None)
    assert touched is not None

    allowed = decide(act, path, base=str(home), rules=rules) is PathVerdict.ALLOWED

    assert allowed is (home in touched.parents or (act.follows and touched == home))


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40), act=st.sampled_from(list(Act)))
def test_any_text_gets_a_verdict(maze: Path, text: str, act: Act) -> None:
    rules = PathRules(home=maze / "alice", homes=(maze,))

    decision = decide(act, text, base=str(maze / "alice"), rules=rules)

    assert (decision is PathVerdict.UNKNOWN) or locate(act, text, base=str(maze / "alice")) is not None
