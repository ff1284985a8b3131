"""Policies that `runner learn` prints: exact, never of closed places, and always whole TOML."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Ran, settings_in

from runner.check.learning import Grant, Learned, grant_of, policy_text
from runner.settings.settings import Settings
from sandbox.outcome import Denial

TOOLS = '''
from pathlib import Path
from fastmcp import FastMCP
mcp = FastMCP("t")

@mcp.tool
def report(folder: str) -> str:
    """Read a file, and another one if that may be read."""
    try:
        optional = Path(folder, "optional.txt").read_text()
    except OSError:
        optional = ""
    return Path(folder, "needed.txt").read_text() + optional

@mcp.tool
def broken() -> str:
    Path("/srv/\\x1b[2J\\nallow_net = ['*']").read_text()
'''


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "tool.py").write_text(TOOLS)
    (tmp_path / "homes" / "ann").mkdir(parents=True)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "key").write_text("k")
    (tmp_path / "data" / ".ssh").mkdir(parents=True)
    (tmp_path / "data" / ".ssh" / "id").write_text("k")
    (tmp_path / "data" / "a.txt").write_text("a")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "state" / "key")
    return settings_in(tmp_path, homes=tmp_path / "homes", metrics_address="127.0.0.1:9999")


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "tools" / "tool.py")


@pytest.mark.parametrize(
    ("operation", "path", "wants", "setting", "value"),
    [
        ("open", "data/a.txt", "read", "allow_read", "data/a.txt"),
        ("open", "data/../data/a.txt", "read", "allow_read", "data/a.txt"),
        ("os.listdir", "data", "read", "allow_read", "data"),
        ("open", "data/a.txt", "write", "allow_write", "data/a.txt"),
        ("open", "data/new.txt", "write", "allow_write", "data"),
        ("os.remove", "data/a.txt", "write", "allow_write", "data"),
    ],
)
def test_grant_is_the_path_itself(
    settings: Settings,
    target: str,
    tmp_path: Path,
    operation: str,
    path: str,
    wants: str,
    setting: str,
    value: str,
) -> None:
    denial = Denial(operation=operation, path=f"{tmp_path}/{path}", wants=wants)

    assert grant_of(denial, settings, target) == Grant(setting, str(tmp_path / value))


@pytest.mark.parametrize(
    ("path", "wants"),
    [
        ("state/key", "read"),
        ("state", "read"),
        ("store", "read"),
        ("homes/ann", "read"),
        ("data/.ssh/id", "read"),
        ("data/link", "read"),
        ("data/absent", "read"),
        ("absent/new.txt", "write"),
        ("tools/tool.py", "write"),
        ("", "read"),
        *(
            (path, "read")
            for path in ("/", "/root", "/root/.bashrc", "/home/x", "/etc/shadow", "/proc/1/mem")
        ),
        ("/usr/local/x", "write"),
        ("data\0", "read"),
    ],
)
def test_closed_path_is_not_granted(
    settings: Settings, target: str, tmp_path: Path, path: str, wants: str
) -> None:
    whole = path if path.startswith("/") else f"{tmp_path}/{path}"

    found = grant_of(Denial(operation="open", path=whole, wants=wants), settings, target)

    assert isinstance(found, str)
    assert "not granted" in found


def test_listening_is_not_granted(settings: Settings, target: str) -> None:
    found = grant_of(Denial(operation="socket.bind", path="127.0.0.1:8080"), settings, target)

    assert found == "socket.bind 127.0.0.1:8080: not granted, since no tool may listen"


@pytest.mark.parametrize("place", ["example.com:443", "10.0.0.5:5432", "[fd00::5]:1", "localhost:8080"])
def test_grant_is_one_host_and_one_port(settings: Settings, target: str, place: str) -> None:
    denial = Denial(operation="socket.connect", path=place)

    assert grant_of(denial, settings, target) == Grant("allow_net", place)


@pytest.mark.parametrize(
    "place",
    [
        *("*", "*:443", ":443", "*.com:443", "example.com"),
        *("0.0.0.0/0:443", "10.0.0.0/8:1", "::/0", "a b:1", ""),
        *("example.com:0", "example.com:99999", 'x"]\nallow_run = ["*:443', "x,*:443", "169.254.169.254:80"),
        *("127.0.0.1:9999", "AF_INET SOCK_STREAM protocol 0", "\x1b[2J:1"),
    ],
)
def test_wider_or_closed_place_is_not_granted(settings: Settings, target: str, place: str) -> None:
    assert isinstance(grant_of(Denial(operation="lookup", path=place), settings, target), str)


def test_program_is_granted_by_its_whole_path(settings: Settings, target: str, tmp_path: Path) -> None:
    own = tmp_path / "homes" / "ann" / "evil"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    (tmp_path / "link").symlink_to(own)
    outside = tmp_path / "good"
    outside.write_text("#!/bin/sh\n")
    outside.chmod(0o755)

    def found(path: str) -> Any:
        return grant_of(Denial(operation="run", path=path), settings, target)

    assert found("sh").setting == "allow_run"
    assert found("sh").value.endswith("/sh")
    assert found(str(outside)).value == str(outside)
    hidden = (str(own), str(tmp_path / "link"), f"/usr/..{own}")
    assert all(isinstance(found(path), str) for path in ("no-such-program", *hidden, "*", ""))


def test_policy_is_whole_toml_whatever_its_names_are(settings: Settings) -> None:
    names = ['a"]\n[tools."*"]\nallow_net = ["*"]#', "\x1b[2J", "\u202e\U000e0041", "back\\slash", "plain"]
    path = '/srv/"]\nallow_run = ["*"] \x1b]0;x\x07 \\'
    grant = Grant("allow_read", path, "open\n[tools.evil]\nallow_net = ['*']")
    learned = [Learned(tool=name, grants=(grant,), notes=("a\nb = 1",)) for name in names]
    failed = Learned(tool="failed", grants=(grant,), error="x\n[tools.failed]\nallow_net = ['*']")

    text = policy_text([*learned, failed], settings, [])

    assert tomllib.loads(text)["tools"] == {name: {"allow_read": [path], "allow_run": []} for name in names}
    assert all(line.isprintable() for line in text.splitlines())


def test_value_of_the_file_is_replaced_by_an_empty_list(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, allow_net=["*"])

    text = policy_text([Learned(tool="t")], settings, [Grant("allow_env", "KEY", "read on line 1")])

    assert tomllib.loads(text) == {"allow_env": ["KEY"], "tools": {"t": {"allow_net": [], "allow_run": []}}}


@pytest.mark.release
@pytest.mark.kernel
def test_only_what_a_call_needs_is_learned(run: Callable[..., Ran], folder: Path) -> None:
    (folder / "tool.py").write_text(TOOLS)
    data = Path("/srv") / folder.name
    data.mkdir()
    try:
        for name in ("needed.txt", "optional.txt"):
            (data / name).write_text(name)
        data.chmod(0o755)
        learned = run("learn", "tool.py", "report", f"folder={data}", "broken")
    finally:
        for file in data.iterdir():
            file.unlink()
        data.rmdir()

    assert learned.status == 1
    assert tomllib.loads(learned.out) == {
        "tools": {"report": {"allow_read": [f"{data}/needed.txt"], "allow_run": []}}
    }
    assert "# report: passes with this" in learned.out
    assert "# broken: fails, so this is a comment:" in learned.out
    assert "each call is made for real" in learned.err
    assert "\x1b" not in learned.out + learned.err
