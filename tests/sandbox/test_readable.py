"""Default readable paths: nothing denied is covered, whatever lies around it."""

import ast
import gc
import importlib
import inspect
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confined_world import Confined, World
from hypothesis import given
from hypothesis import strategies as st

from sandbox.readable import (
    MOST_ENTRIES,
    Readable,
    carve,
    default_read,
    sibling_modules,
)

pytestmark = [pytest.mark.needs_npm, pytest.mark.release]


def plant(top: Path, *names: str) -> None:
    for name in names:
        path = top / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)


def covered(path: Path, tops: tuple[Path, ...]) -> bool:
    return any(path == top or top in path.parents for top in tops)


def test_a_folder_without_anything_denied_stays_whole(tmp_path: Path) -> None:
    plant(tmp_path, "a/b")

    assert carve(tmp_path, [Path("/elsewhere")]) == Readable((tmp_path,), ())


def test_a_denied_folder_grants_nothing(tmp_path: Path) -> None:
    assert carve(tmp_path, [tmp_path]) == Readable((), ())


def test_folder_above_denied_file_is_split_and_listable(tmp_path: Path) -> None:
    plant(tmp_path, "keep", "sub/keep", "sub/secret", "other/keep")

    carved = carve(tmp_path, [tmp_path / "sub/secret"])

    assert carved == Readable((tmp_path / "keep", tmp_path / "other", tmp_path / "sub/keep"), (tmp_path,))


def test_a_folder_above_a_denied_folder_cannot_be_listed(tmp_path: Path) -> None:
    plant(tmp_path, "keep", "sub/secrets/name", "sub/keep")

    carved = carve(tmp_path, [tmp_path / "sub/secrets"])

    assert carved == Readable((tmp_path / "keep", tmp_path / "sub/keep"), ())


def test_path_denied_before_it_exists_is_not_covered(tmp_path: Path) -> None:
    plant(tmp_path, "keep", "sub/keep")

    carved = carve(tmp_path, [tmp_path / "sub/later"])

    assert carved == Readable((tmp_path / "keep", tmp_path / "sub/keep"), ())


def test_links_are_not_followed_out_of_a_carved_folder(tmp_path: Path) -> None:
    plant(tmp_path, "top/secret", "elsewhere/file")
    (tmp_path / "top/link").symlink_to(tmp_path / "elsewhere")

    carved = carve(tmp_path / "top", [tmp_path / "top/secret"])

    assert carved.read == ()


names = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@given(files=st.lists(names, max_size=8), denied=st.lists(names, min_size=1, max_size=3))
def test_nothing_denied_is_ever_covered_and_nothing_else_is_lost(
    tmp_path_factory: pytest.TempPathFactory, files: list[str], denied: list[str]
) -> None:
    top = tmp_path_factory.mktemp("carve")
    for name in files:
        path = top / name / "leaf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    deny = [top / name for name in denied]

    carved = carve(top, deny)

    for leaf in top.rglob("leaf"):
        assert covered(leaf, carved.read) is not covered(leaf, tuple(deny))
    for path in deny:
        assert not covered(path, carved.read)
        assert not any(covered(path, (listed,)) for listed in carved.list_only)


def test_system_is_readable_without_secrets_and_foreign_files(tmp_path: Path) -> None:
    """Source: S1-46 and S1-56."""
    plant(tmp_path, "tool.py")

    found = default_read(deny=[Path("/tmp")], beside=[tmp_path / "tool.py"])

    assert covered(Path(os.path.realpath("/bin/sh")), found.read)
    assert covered(Path("/etc/passwd"), found.read)
    assert covered(tmp_path / "tool.py", found.read)
    for name in ("/etc/shadow", "/root/.ssh/id_rsa", "/proc/1", "/sys/kernel", "/run/lock", "/tmp/alice/f"):
        assert not covered(Path(name), found.read + found.list_only)
    for top in ("/", "/root", "/home", "/tmp", "/proc", "/sys", "/dev", "/run"):
        assert Path(top) not in found.read + found.list_only


def test_the_interpreter_and_the_packages_asked_for_are_readable(tmp_path: Path) -> None:
    plant(tmp_path, "tool.py", "package/__init__.py")
    extra = tmp_path / "package"

    found = default_read(deny=[], beside=[tmp_path / "sub/tool.py"], extra=[extra])

    for needed in (sys.prefix, sys.base_prefix, os.__file__, str(extra), covered.__code__.co_filename):
        assert covered(Path(needed).resolve(), found.read), needed


def test_tool_folder_is_readable_without_secrets(tmp_path: Path) -> None:
    plant(
        tmp_path,
        *("tool.py", "module.py", "data/one.csv", "data/deep/two.csv", "id_card.py", "mixed/fine"),
        *(".env", ".git/config", "runner.toml", "server.pem", "API.KEY", "id_rsa", "mixed/.hidden"),
    )

    found = default_read(deny=[], beside=[tmp_path / "tool.py"])

    for name in ("tool.py", "module.py", "data/one.csv", "data/deep/two.csv", "id_card.py", "mixed/fine"):
        assert covered(tmp_path / name, found.read), name
    for name in (".env", ".git/config", "runner.toml", "server.pem", "API.KEY", "id_rsa", "mixed/.hidden"):
        assert not covered(tmp_path / name, found.read), name
    assert tmp_path in found.list_only
    assert tmp_path / "data" in found.read


def test_denied_paths_beside_tool_file_stay_denied_and_unlisted(tmp_path: Path) -> None:
    plant(tmp_path, "tool.py", "state/homes/alice.json", "token.txt", "data/one.csv")

    found = default_read(deny=[tmp_path / "state", tmp_path / "token.txt"], beside=[tmp_path / "tool.py"])

    assert covered(tmp_path / "data/one.csv", found.read)
    assert not covered(tmp_path / "token.txt", found.read)
    assert not covered(tmp_path / "state", found.read + found.list_only)


def test_secrets_beside_tool_file_are_cut_from_system_list() -> None:
    # The folder of this checkout may itself lie in a readable hierarchy of the system. With all that is
    # installed in it, it may be too large to be looked through; a folder in it is not.
    with tempfile.TemporaryDirectory(dir=Path(__file__).resolve().parents[2], prefix="small-") as made:
        folder = Path(made)
        plant(folder, "tool.py", "pyproject.toml", ".git/config")

        found = default_read(deny=[], beside=[folder / "tool.py"])

    assert covered(folder / "pyproject.toml", found.read)
    assert not covered(folder / ".git" / "config", found.read)


def test_a_tool_file_in_a_home_is_readable_with_its_modules_only(tmp_path: Path) -> None:
    plant(tmp_path, "alice/tool.py", "alice/letter.txt", "alice/package/__init__.py", "alice/other.py")
    (tmp_path / "alice/tool.py").write_text("import helper, package.sub, json, missing\n")
    (tmp_path / "alice/helper.py").write_text("def f():\n    from more import x\n")
    (tmp_path / "alice/more.py").write_text("x = 1\n")
    alice = tmp_path / "alice"

    for homes, tool in (([alice], alice / "tool.py"), ([tmp_path], alice / "tool.py")):
        found = default_read(deny=[], beside=[tool], homes=homes)

        for name in ("tool.py", "helper.py", "more.py", "package/__init__.py"):
            assert covered(alice / name, found.read), name
        for name in ("letter.txt", "other.py"):
            assert not covered(alice / name, found.read), name
        assert not covered(alice, found.read + found.list_only)


def test_folder_too_large_to_scan_grants_only_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "tool.py", *(f"many/{n}" for n in range(20)))
    monkeypatch.setattr("sandbox.readable.MOST_ENTRIES", 10)

    found = default_read(deny=[], beside=[tmp_path / "tool.py"])

    assert covered(tmp_path / "tool.py", found.read)
    assert not covered(tmp_path / "many/1", found.read)
    assert MOST_ENTRIES == 20_000


def listed_folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which folders are listed from now on."""
    found: list[str] = []
    scandir = os.scandir

    def noting(folder: str) -> object:
        found.append(str(folder))
        return scandir(folder)

    monkeypatch.setattr("os.scandir", noting)
    return found


def test_node_modules_of_20000_entries_are_not_scanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    plant(checkout, "package/__init__.py", "web/node_modules/.env", "web/page.html", "tool/tool.py")
    for number in range(200):
        (checkout / f"web/node_modules/m{number}").mkdir()
        for entry in range(100):
            os.mknod(checkout / f"web/node_modules/m{number}/{entry}")
    monkeypatch.setattr(sys, "path", [str(checkout), str(checkout), *sys.path])
    listed = listed_folders(monkeypatch)

    found = default_read(deny=[], beside=[checkout / "tool/tool.py"])

    assert sorted(name for name in listed if name.startswith(str(checkout))) == [
        str(checkout / name) for name in ("", "package", "tool", "tool", "web")
    ]
    assert covered(checkout / "package/__init__.py", found.read)
    assert covered(checkout / "web/page.html", found.read)
    assert not covered(checkout / "web/node_modules/m1/1", found.read)
    assert not covered(checkout / "web/node_modules/.env", found.read)


def test_node_modules_of_tool_are_readable_except_secrets(tmp_path: Path) -> None:
    plant(tmp_path, "tool.py", "node_modules/left/index.js", "node_modules/left/.env")

    found = default_read(deny=[], beside=[tmp_path / "tool.py"])

    assert covered(tmp_path / "node_modules/left/index.js", found.read)
    assert not covered(tmp_path / "node_modules/left/.env", found.read)


def test_deep_secret_in_import_folder_is_cut_and_link_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "lib/a/b/module.py", "lib/a/b/.env", "lib/c/d/e.py", "elsewhere/file", "tool/tool.py")
    (tmp_path / "lib/a/link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "lib")])

    found = default_read(deny=[tmp_path / "lib/c/later"], beside=[tmp_path / "tool/tool.py"])

    assert covered(tmp_path / "lib/a/b/module.py", found.read)
    assert covered(tmp_path / "lib/c/d/e.py", found.read)
    for name in ("lib/a/b/.env", "lib/a/link", "lib/c/later", "elsewhere/file"):
        assert not covered(tmp_path / name, found.read), name


@pytest.mark.parametrize("name", ["tool.py", "__init__.py", "data/one.csv", "package"])
def test_link_beside_tool_opens_nothing_and_is_named(tmp_path: Path, name: str) -> None:
    plant(tmp_path, "pk/server.py", "pk/data/.env", "elsewhere/secret/file")
    target = tmp_path / "elsewhere/secret/file"
    link = tmp_path / "pk" / name
    link.symlink_to(target.parent if name == "package" else target)

    found = default_read(deny=[], beside=[tmp_path / "pk/server.py", link], files=[link])
    plain = default_read(deny=[], beside=[tmp_path / "pk/server.py"], files=[target])

    assert not covered(target, found.read + found.list_only)
    assert covered(target, plain.read)
    assert link in found.names


def test_nothing_of_never_is_granted_for_any_reason(tmp_path: Path) -> None:
    plant(tmp_path, "state/tool.py", "state/keys.json", "packages/keys/one", "packages/code.py")
    state, keys = tmp_path / "state", tmp_path / "packages/keys"
    wanted = {
        "beside": [state / "tool.py"],
        "files": [state / "keys.json", state],
        "extra": [tmp_path / "packages"],
    }

    plain = default_read(deny=[state, keys], **wanted)
    found = default_read(deny=[], never=[state, keys], **wanted)

    assert covered(state / "keys.json", plain.read)
    assert covered(tmp_path / "packages/code.py", found.read)
    for path in (state, state / "keys.json", state / "tool.py", keys / "one"):
        assert not covered(path, found.read + found.list_only), path


def test_further_name_of_a_denied_file_is_denied(tmp_path: Path) -> None:
    plant(tmp_path, "keys/id", "tool/tool.py", "tool/data/plain.csv")
    linked = tmp_path / "tool/data/linked.csv"
    linked.hardlink_to(tmp_path / "keys/id")

    plain = default_read(deny=[], beside=[tmp_path / "tool/tool.py"], files=[linked])
    found = default_read(
        deny=[], never=[tmp_path / "keys"], beside=[tmp_path / "tool/tool.py"], files=[linked]
    )

    assert covered(linked, plain.read)
    assert not covered(linked, found.read)
    assert covered(tmp_path / "tool/data/plain.csv", found.read)


def test_bytecode_is_readable_of_installed_packages_only(tmp_path: Path) -> None:
    cache = "__pycache__/mod.cpython-311.pyc"
    own = [f"tool/{cache}", f"tool/pk/{cache}", f"tool/space/deep/{cache}", "tool/legacy.pyc"]
    installed = [f"tool/venv/lib/python3.11/site-packages/a/{cache}", f"library/{cache}"]
    plant(tmp_path, "tool/tool.py", "tool/pk/mod.py", "tool/space/deep/mod.py", *own, *installed)

    found = default_read(deny=[], beside=[tmp_path / "tool/tool.py"], extra=[tmp_path / "library"])

    for name in own:
        assert not covered(tmp_path / name, found.read), name
    for name in (*installed, "tool/pk/mod.py", "tool/space/deep/mod.py"):
        assert covered(tmp_path / name, found.read), name


def test_imports_of_a_pipe_or_a_link_are_not_waited_for(tmp_path: Path) -> None:
    plant(tmp_path, "module.py", "package/__init__.py")
    (tmp_path / "module.py").write_text("import package\n")
    os.mkfifo(tmp_path / "package/pipe.py")
    (tmp_path / "package/zero.py").symlink_to("/dev/zero")
    (tmp_path / "tool.py").symlink_to("module.py")

    assert sibling_modules(tmp_path / "module.py") == (tmp_path / "package",)
    assert sibling_modules(tmp_path / "tool.py") == ()


@pytest.mark.parametrize("text", ["import (", "\0", "from . import module\nfrom .module import x\n"])
def test_non_python_imports_nothing_and_relative_import_counts(tmp_path: Path, text: str) -> None:
    plant(tmp_path, "module.py")
    (tmp_path / "tool.py").write_text(text)

    found = sibling_modules(tmp_path / "tool.py")

    assert found == ((tmp_path / "module.py",) if "from" in text else ())


def test_default_readable_paths_let_worker_import_and_read(confined: Confined, world: World) -> None:
    plant(world.outside, "tool.py", "sibling.py", ".env", "data/one.csv")
    (world.outside / "sibling.py").write_text("VALUE = 42\n")
    found = default_read(
        deny=[Path("/tmp")], beside=[world.outside / "tool.py"], extra=[Path(__file__).parent]
    )
    policy = world.narrowed(read=found.read, list_only=found.list_only)

    def work() -> list[object]:
        import colorsys  # noqa: F401 - any module that nobody has imported yet

        sys.path.insert(0, str(world.outside))
        sibling = importlib.import_module("sibling")

        return [
            sibling.VALUE,
            (world.outside / "data/one.csv").read_text(),
            os.listdir(world.outside / "data"),
        ]

    assert confined(policy, work).value == [42, "data/one.csv", ["one.csv"]]
    assert confined(policy, lambda: (world.outside / ".env").read_text()).errno == 13


class Cycle:
    """Rubbish whose end gives the interpreter's lock away, as any finalizer may."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


def faults_in_threads(
    parse: Callable[[], object], *, enough: int | None = None, within_s: float
) -> tuple[list[str], int]:
    """Parse in many threads while rubbish is collected; return what went wrong, and how often it did not."""
    faults: list[str] = []
    done, end = [0], time.monotonic() + within_s

    def run() -> None:
        while time.monotonic() < end and not (enough and len(faults) >= enough):
            Cycle()
            try:
                parse()
                done[0] += 1
            except SystemError as fault:
                faults.append(str(fault))

    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
    return faults, done[0]


def test_module_search_is_thread_safe() -> None:
    file = Path(inspect.getfile(default_read))

    faults, done = faults_in_threads(lambda: sibling_modules(file), within_s=4)

    assert faults == []
    assert done
    if sys.version_info < (3, 12):
        # The control: without taking turns, CPython 3.11 fails.
        unguarded, _ = faults_in_threads(lambda: ast.parse(file.read_bytes()), enough=1, within_s=60)
        assert any("recursion depth mismatch" in fault for fault in unguarded)


@pytest.mark.parametrize("deny", [[], [Path("/var/lib/toolcell-of-a-test")]], ids=["nothing", "state"])
def test_temporary_folder_of_other_users_unreadable(tmp_path: Path, deny: list[Path]) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as others:
        plain = carve(Path("/var"), deny)
        found = default_read(deny=deny, beside=[tmp_path / "tool.py"])

        assert covered(Path(others), plain.read)
        assert not covered(Path(others), found.read)
        assert not covered(Path("/var/log"), found.read)
        assert covered(Path("/var/cache"), found.read)


def test_tool_file_and_packages_in_that_folder_readable() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        tool, packages = Path(folder) / "tool.py", Path(folder) / "packages"
        tool.write_text("")
        packages.mkdir()

        found = default_read(deny=[], beside=[tool], extra=[packages])

        # Each by itself: a view of the file system has an empty folder in place of the one above.
        assert covered(tool, found.read)
        assert packages in found.read


_OF_OTHER_SERVERS = """
import sys
from pathlib import Path
from sandbox.readable import carve, system_secrets

place = Path("/var/lib/toolcell")
kept, tools = place / sys.argv[1], place / "ann/tools"
kept.mkdir(parents=True)
tools.mkdir(parents=True)
secret = list(system_secrets())
read = carve(Path("/var/lib"), secret).read
for path in (kept, tools):
    covered = any(path.is_relative_to(folder) for folder in read)
    print(any(path.is_relative_to(one) for one in secret), covered)
"""


@pytest.mark.needs_root
@pytest.mark.parametrize("name", ["ann/state", "ann/store", "up/users/ann/store", "up/supervisor"])
def test_state_of_other_servers_is_never_readable(name: str) -> None:
    """A tool that works as root would read the files of any user."""
    in_own_folder = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /var/lib && exec "$@"', "sh"]
    command = [*in_own_folder, sys.executable, "-c", _OF_OTHER_SERVERS, name]

    completed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert completed.stdout.splitlines() == ["True False", "False True"]
