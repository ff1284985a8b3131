"""Denials that an error names in words only, or that only the kernel finds: told of with the right path."""

import itertools
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cpu_time import cpu_s
from guard_world import World

from sandbox.denials.paths import PathRules
from sandbox.denials.paths_in_errors import named_paths, wants_socket
from sandbox.denials.recognise import explain
from sandbox.outcome import Denial

RULES = PathRules(home=Path("/tmp/alice"), homes=(Path("/tmp"),))
TARGET = "/etc/new file.txt"


def kernel(path: str) -> Denial:
    return Denial(operation="file operation", path=path, layer="kernel")


def _numbered() -> Callable[[object], str]:
    numbers = itertools.count(1)
    return lambda error: f"{type(error).__name__} {next(numbers)}"


def ended(stderr: str | bytes, output: str | bytes | None = None) -> subprocess.CalledProcessError:
    return subprocess.CalledProcessError(1, ["x"], output=output, stderr=stderr)


@pytest.mark.parametrize(
    "error",
    [
        PermissionError(13, f"Failed to open local file '{TARGET}'. Detail: [errno 13] Permission denied"),
        OSError(f"[Errno 13] Cannot create directory '{TARGET}'. Detail: [errno 13] Permission denied"),
        OSError(f"[Errno 30] Failed to open '{TARGET}'"),
        PermissionError(f"Permission denied (os error 13): {TARGET}"),
        sqlite3.OperationalError(f"unable to open database: {TARGET}"),
        ended(f"touch: cannot touch '{TARGET}': Permission denied\n"),
        ended(f"touch: cannot touch \u2018{TARGET}\u2019: Permission denied\n"),
        ended(f"cp: cannot create regular file '{TARGET}': Read-only file system\n".encode()),
        ended(b"", f"bash: line 1: {TARGET}: Permission denied".encode()),
        ended(f"File '/usr/x.py', line 1\nPermissionError: [Errno 13] Permission denied: '{TARGET}'"),
    ],
    ids=_numbered(),
)
def test_denied_path_in_error_text_is_named(error: Exception) -> None:
    assert explain(error, RULES) == kernel(TARGET)


def test_shell_name_is_not_taken_for_unwritable_path() -> None:
    error = ended("/bin/sh: 1: cannot create /etc/new: Permission denied\n")

    assert explain(error, RULES) == kernel("/etc/new")


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"Permission denied: '{TARGET}'"),
        FileNotFoundError(2, "No such file or directory", TARGET),
        FileNotFoundError(f"No such file or directory (os error 2): {TARGET}"),
        OSError(f"[Errno 5] Input/output error: '{TARGET}'"),
        OSError("[Errno 13] Permission denied: '/tmp/alice/own'"),
        sqlite3.OperationalError("database is locked"),
        sqlite3.OperationalError("unable to open database: /tmp/alice/none/x.db"),
        ended(f"wc: '{TARGET}': No such file or directory\n"),
        ended("Permission denied (publickey)."),
        ended("bash: /of-another/machine/deploy.sh: Permission denied"),
        ended("/of-another/machine/\0: Permission denied"),
        subprocess.TimeoutExpired(["x"], 1, output=f"'{TARGET}': Permission denied"),
    ],
    ids=_numbered(),
)
def test_other_error_texts_are_not_denials(error: Exception) -> None:
    assert explain(error, RULES) is None


def test_large_output_is_searched_from_its_end_only() -> None:
    first, last = f"'{TARGET}': Permission denied\n", f"\n{TARGET}: Permission denied"
    flood = first + "Permission denied /x\n" * 100_000 + last

    assert TARGET.split()[0] in list(named_paths(ended(flood)))
    assert len(list(named_paths(ended(flood)))) < 5000


def test_program_denial_is_read_from_its_output(world: World) -> None:
    report = world.run("""
        import os, subprocess
        subprocess.run(["touch", home / "mine"], check=True, capture_output=True)
        value = "written at home"
        if os.getuid() == 0:
            os.setuid(65534)
        subprocess.run(["touch", "/etc/new"], check=True, capture_output=True)
    """)

    assert report.value == "written at home"
    assert report.error is not None
    assert report.error.explained == kernel("/etc/new")


@pytest.mark.parametrize(
    ("name", "is_uri"),
    [
        ("{outside}/new.db", False),
        ("file:{outside}/new%2edb", True),
        ("file:{outside}/new.db?mode=rwc&cache=shared", True),
    ],
)
def test_database_outside_home_is_denied_for_every_name_form(name: str, is_uri: bool, world: World) -> None:
    report = world.run(f"""
        import sqlite3
        sqlite3.connect(f"file:{{home}}/own.db?mode=rwc", uri=True).execute("create table t (a)")
        sqlite3.connect("file::memory:?cache=shared", uri=True).execute("create table t (a)")
        sqlite3.connect("file:x?mode=memory", uri=True).execute("create table t (a)")
        value = "made at home and in memory"
        sqlite3.connect(f"{name}", uri={is_uri})
    """)

    assert report.value == "made at home and in memory"
    assert report.error is not None
    assert (report.error.kind, report.error.filename) == ("DatabaseDenied", f"{world.outside}/new.db")
    assert report.denials == (Denial(operation="sqlite3.connect", path=f"{world.outside}/new.db"),)


def test_write_to_read_only_database_names_its_path(world: World) -> None:
    with sqlite3.connect(world.outside / "theirs.db") as theirs:
        theirs.execute("create table t (a)")
    theirs.close()

    report = world.run("""
        import sqlite3
        database = sqlite3.connect(f"file:{outside / 'theirs.db'}?mode=ro", uri=True)
        value = database.execute("select count(*) from t").fetchone()
        database.execute("insert into t values (1)")
    """)

    assert report.value == [0]
    assert report.error is not None
    assert report.error.kind == "OperationalError"
    assert report.error.explained == kernel(f"{world.outside}/theirs.db")


@pytest.mark.parametrize(
    ("operation", "act"),
    [
        ("open", "open('/etc/shadow')"),
        ("os.open", "os.open('/etc/shadow', os.O_RDONLY)"),
        ("os.listdir", "os.listdir('/etc/shut')"),
        ("os.chown", "shutil.chown('/etc/shut', 0)"),
        ("os.setxattr", "os.setxattr('/etc/shut', 'trusted.x', b'1')"),
    ],
)
def test_kernel_denial_is_recorded_if_tool_swallows_error(operation: str, act: str, world: World) -> None:
    (world.outside / "shadow").write_text("x")
    (world.outside / "shut").mkdir()

    report = world.run(f"""
        import os, shutil
        open(outside / "shadow").close()
        os.listdir(outside / "shut")
        for name in ("shadow", "shut"):
            os.chmod(outside / name, 0)
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            {act.replace("'/etc/", "f'{outside}/")}
        except PermissionError:
            value = "swallowed"
    """)

    assert report.value == "swallowed"
    assert [(denial.operation, denial.layer) for denial in report.denials] == [(operation, "kernel")]


def test_machine_facts_are_readable_without_denial(world: World) -> None:
    report = world.run("""
        import os
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            open("/sys/kernel/slab")
        except OSError:
            value = "no answer"
        try:
            open("/sys/kernel/notes", "rb+")
        except OSError:
            value = "no answer"
    """)

    assert report.value == "no answer"
    assert [denial for denial in report.denials if denial.layer == "kernel"] == []


@pytest.mark.parametrize(
    "text",
    [
        "permission denied" + " /" * 8000,
        " /" * 8000 + ": permission denied",
        ": permission denied" * 900,
        "permission denied" + "'/" * 8000,
        "listen EPERM " * 1300,
        "process_singleton " * 900,
    ],
)
def test_hostile_words_are_searched_in_linear_time(text: str) -> None:
    # 0.01 s on a quiet machine; some took seconds.
    assert cpu_s(lambda: (list(named_paths(OSError(text))), wants_socket(text))) < 0.2


def test_each_path_before_words_of_a_denial_is_named() -> None:
    text = "cp: /a b: Permission denied, mv: /c: Read-only file system"

    assert list(named_paths(OSError(text)))[:2] == ["/a b", "/c"]
