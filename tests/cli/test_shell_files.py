import os
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import Ran, settings_in

from runner.cli.app import app
from runner.homes.homes import Homes

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]

Run = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, private, with state and store in it."""
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def files(folder: Path, user: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `runner files ACTION WORD...` in this process, in the session `s`."""

    def run(action: str, *words: str | Path, of: str = user, persist: bool = True, **options: Any) -> Ran:
        settings = settings_in(folder, persist_files_across_sessions=persist)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("RUNNER_STATE_DIR", str(settings.state_dir))
            environment.setenv("RUNNER_STORE", settings.store)
            environment.setenv("RUNNER_PERSIST_FILES_ACROSS_SESSIONS", str(persist))
            flags = [
                f"--{'json' if name == 'as_json' else name}"
                for name, value in options.items()
                if value is True
            ]
            flags += [f"--{name}={value}" for name, value in options.items() if value is not True]
            arguments = ["files", action, *map(str, words), *flags, f"--user={of}", "--session=s"]
            with pytest.raises(SystemExit) as ended:
                app(arguments)
        return Ran(int(ended.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def table(folder: Path) -> Path:
    path = folder / "sales.csv"
    path.write_bytes(b"a,b\n" + b"1,2\n" * 511)
    return path


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def test_file_that_was_put_is_listed_and_read_back(files: Run, table: Path, folder: Path) -> None:
    before = today()
    put = files("put", table)
    days = {before, today()}
    listed = files("ls")
    got = files("get", "sales.csv", out=Path("copy.csv"))

    assert (put.status, put.out) == (0, "sales.csv\n")
    name, size, kind, day, *facts = listed.out.split()
    assert [name, size, kind, *facts] == ["sales.csv", "2KB", "uploaded", "511", "rows"]
    assert day in days
    assert (got.status, got.out) == (0, "copy.csv\n")
    assert (folder / "copy.csv").read_bytes() == table.read_bytes()
    assert {path.name for path in folder.iterdir()} <= {"copy.csv", "sales.csv", "state", "store"}


def test_put_prints_the_name_each_file_got(files: Run, table: Path, folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    (other / "sales.csv").write_text("something else\n")

    assert files("put", table, other / "sales.csv").out == "sales.csv\nsales_2.csv\n"
    assert files("put", table, name="../../etc/passwd").out == "passwd\n"


def test_json_is_one_document_and_tells_nothing_of_the_store(files: Run, table: Path, user: str) -> None:
    before = today()
    assert files("put", table).status == 0

    documents = [files(*words, as_json=True) for words in (["ls"], ["put", table], ["context"])]

    file = {
        "name": "sales.csv",
        "size": 2048,
        "mime": "text/csv",
        "source": "uploaded",
    }
    for document in documents:
        (found,) = document.json["files"]
        assert {key: found[key] for key in file} == file
        assert before <= found["date"] <= today()
        assert set(found) - set(file) == {"facts", "date"}
        assert user not in document.out


def test_context_is_empty_without_files(files: Run, table: Path) -> None:
    before = files("context")
    files("put", table)
    after = files("context")

    assert (before.status, before.out) == (0, "")
    assert after.out.startswith("[SYSTEM: Available files in current session:\n- sales.csv (uploaded ")
    assert after.out.endswith(")\nEnd available files]\n")
    assert files("context", as_json=True).json["context"] + "\n" == after.out


def test_get_overwrites_nothing_unless_it_is_told_to(files: Run, table: Path) -> None:
    content = table.read_bytes()
    files("put", table)
    table.write_text("mine")

    refused = files("get", "sales.csv")
    assert refused.status == 2
    assert "sales.csv exists; --force overwrites it" in refused.err
    assert table.read_text() == "mine"

    assert files("get", "sales.csv", force=True).status == 0
    assert table.read_bytes() == content


def test_get_follows_no_link_that_lies_where_it_would_write(files: Run, table: Path, folder: Path) -> None:
    files("put", table)
    victim = folder / "victim"
    (folder / "link").symlink_to(victim)

    refused = files("get", "sales.csv", out=Path("link"))
    replaced = files("get", "sales.csv", out=Path("link"), force=True)

    assert (refused.status, replaced.status) == (2, 0)
    assert not victim.exists()
    assert (folder / "link").read_bytes() == table.read_bytes()


def test_get_writes_into_a_folder_under_the_name_of_the_file(files: Run, table: Path, folder: Path) -> None:
    (folder / "sub").mkdir()
    files("put", table)

    got = files("get", "sales.csv", out=Path("sub"), as_json=True)

    assert got.json == {"name": "sales.csv", "path": "sub/sales.csv", "size": 2048}
    assert [path.name for path in (folder / "sub").iterdir()] == ["sales.csv"]


@pytest.mark.parametrize("action", ["get", "rm"])
def test_an_unknown_name_ends_with_the_nearest_ones(files: Run, table: Path, action: str) -> None:
    files("put", table)

    failed = files(action, "sale.csv", as_json=True)

    assert failed.status == 2
    assert failed.err == (
        "runner: There is no file named 'sale.csv' among the user's files. Did you mean 'sales.csv'?\n"
    )
    assert failed.json["meta_data"]["error_code"] == "E_FILE_NOT_FOUND"
    assert failed.json["meta_data"]["details"]["nearest"] == ["sales.csv"]


def test_rm_removes_the_files_it_names_or_none(files: Run, table: Path) -> None:
    files("put", table)
    files("put", table, name="second.csv")

    wrong = files("rm", "sales.csv", "third.csv")
    assert wrong.status == 2
    assert len(files("ls").out.splitlines()) == 2

    removed = files("rm", "sales.csv", "second.csv", "sales.csv", as_json=True)
    assert removed.json == {"removed": ["sales.csv", "second.csv"]}
    assert files("ls", as_json=True).json == {"files": []}
    assert files("ls").out == ""


def test_put_keeps_all_files_or_says_which_is_none(files: Run, table: Path, folder: Path) -> None:
    os.mkfifo(folder / "pipe")

    missing = files("put", table, "missing.csv")
    pipe = files("put", "pipe")
    directory = files("put", folder)

    assert [ran.status for ran in (missing, pipe, directory)] == [2, 2, 2]
    assert "missing.csv cannot be put into My Files: No such file or directory" in missing.err
    assert "pipe cannot be put into My Files: not a regular file" in pipe.err
    assert files("ls").out == ""


def test_a_long_list_is_read_page_by_page(files: Run, folder: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(name)
    files("put", "a.txt", "b.txt", "c.txt")

    first = files("ls", limit=2, as_json=True)
    second = files("ls", limit=2, cursor=first.json["next"], as_json=True)
    wrong = files("ls", cursor="nowhere")

    assert [file["name"] for file in first.json["files"]] == ["a.txt", "b.txt"]
    assert [file["name"] for file in second.json["files"]] == ["c.txt"]
    assert second.json["next"] is None
    assert wrong.status == 2
    assert "leave it out for the first page" in wrong.err


def test_users_do_not_see_each_other(files: Run, table: Path) -> None:
    files("put", table)

    other = f"t-{uuid.uuid4().hex[:12]}"

    assert files("ls").out != ""
    assert files("ls", of=other).out == ""
    assert files("get", "sales.csv", of=other).status == 2


def test_end_of_session_empties_home_and_keeps_persistent_files(
    files: Run, table: Path, user: str, folder: Path
) -> None:
    homes = Homes(Path("/tmp"), folder / "state")
    files("put", table)
    with homes.lease(user, keep_s=1800) as home:
        (home.path / "left.txt").write_text("left")
        held = files("end-session", as_json=True)
    with homes.lease(user, keep_s=1800) as home:
        (home.path / "left.txt").write_text("left")
    assert (home.path / "left.txt").exists()

    ended = files("end-session", as_json=True)

    assert held.json == {"session": "s", "files_removed": 0, "home_emptied": False}
    assert ended.json == {"session": "s", "files_removed": 0, "home_emptied": True}
    assert not home.path.exists()
    assert files("ls").out != ""


def test_the_end_of_a_session_removes_files_that_do_not_persist(files: Run, table: Path) -> None:
    files("put", table, persist=False)
    assert files("ls", persist=False).out != ""

    ended = files("end-session", as_json=True, persist=False)

    assert ended.json["files_removed"] == 1
    assert files("ls", persist=False).out == ""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["lst"], "there is no `runner files lst`; it is one of ls, put, get"),
        (["ls", "a"], "`runner files ls` takes no names, and was given: a"),
        (["put"], "takes one or more paths of local files, and was given: nothing"),
        (["get", "a", "b"], "takes the name of one file, and was given: a b"),
        (["put", "a", "b", "--name=c"], "--name belongs to"),
        (["rm", "a", "--force"], "--out and --force belong to"),
    ],
)
def test_wrong_use_of_files_names_the_right_use(files: Run, words: list[str], error: str) -> None:
    refused = files(*words)

    assert refused.status == 2
    assert error in refused.err


def test_the_page_on_files_shows_every_command() -> None:
    page = (ROOT / "docs" / "guide.md").read_text()

    actions = ("ls", "put", "get", "rm", "context", "end-session")
    assert [action for action in actions if f"runner files {action}" not in page] == []
