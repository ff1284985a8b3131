"""The users file: what is refused, and the server of each user."""

import json
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.up.users_file import UserServer, planned, unit_of

USUAL = "ports = '9000-9001'\n[defaults]\ntools = ['tool.py']\n"


def plan(folder: Path, text: str, ports: dict[str, int] | None = None) -> dict[str, UserServer]:
    path = folder / "users.toml"
    path.write_text(text)
    (folder / "tool.py").touch()
    return {server.user: server for server in planned(path, ports or {})}


def problem(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as refused:
        plan(folder, text)
    return str(refused.value)


def test_keys_of_a_user_go_before_the_defaults(tmp_path: Path) -> None:
    text = f"{USUAL}memory_mb = 512\nenvironment = {{A = '1', B = '1'}}\n[users.ann]\nmemory_mb = 256\n"
    text += "environment = {B = '2'}\n[users.bob]\nproxy = ['https://example.com/mcp']"

    servers = plan(tmp_path, text)

    assert [one.options.memory_mb for one in servers.values()] == [256, 512]
    assert servers["ann"].options.environment == {"A": "1", "B": "2"}
    assert servers["ann"].words == (str(tmp_path / "tool.py"),)
    served = ["proxy", "--transport", "http", "--port", "1", "--user", "bob", "https://example.com/mcp"]
    assert servers["bob"].arguments("--port", "1") == served


def test_user_retains_a_free_port(tmp_path: Path) -> None:
    servers = plan(tmp_path, f"{USUAL}[users.ann]\n[users.bob]", {"bob": 9000, "gone": 9001})

    assert {name: one.port for name, one in servers.items()} == {"ann": 9001, "bob": 9000}


def test_json_file_is_read_like_toml(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"users": {"ann": {"port": 9000, "tools": ["json"]}}}))

    assert [one.port for one in planned(path, {})] == [9000]


def test_file_writable_by_others_is_refused(tmp_path: Path) -> None:
    plan(tmp_path, f"{USUAL}[users.ann]")
    (tmp_path / "users.toml").chmod(0o666)

    with pytest.raises(UsageError, match="is not read: it can be written by other users"):
        planned(tmp_path / "users.toml", {})


@pytest.mark.parametrize(
    "name", ["Ann", "a/../b", "a b", "-a", "%h", "$x", 'a"b', "a\nb", "é", "a" * 29, "u-" + "0" * 24]
)
def test_unit_of_odd_name_is_a_digest(name: str) -> None:
    assert unit_of("ann-1") == "ann-1"
    assert unit_of(name) != name
    assert set(unit_of(name)) <= set("u-0123456789abcdef")
    # The name of a system user has 32 characters at most, and begins with `tc-` here.
    assert len(unit_of(name)) <= 28


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{USUAL}[users.a]\n[users.b]\n[users.c]", "there is no port for 'c'"),
        ("[users.ann]\nport = 1\n", "neither `tools` nor `proxy`"),
        ("[users.ann]\ntools = ['tool.py']\n", "there is no port for 'ann'"),
        ("[users.a]\nport = 1\n[users.b]\nport = 1\n", "users.b.port 1 is already that of 'a'"),
        (f"{USUAL}[users.ann]\nmemory = 5", "users.ann.memory"),
        (f"{USUAL}[users.ann]\nenvironment = {{RUNNER_USER = 'bob'}}", "RUNNER_USER is set by `runner up`"),
        (f"{USUAL}[users.ann]\nenvironment = {{\"A\\nB\" = 'x'}}", "cannot be the name of a variable"),
        (f'{USUAL}[users.ann]\nenvironment = {{A = "x\\u0000"}}', "a NUL character"),
        (f'{USUAL}[users."a\\u0000"]', "a NUL character"),
        (f'{USUAL}[users.""]', "at least 1 item"),
        (f"{USUAL}[users.ann]\nenvironment_file = 'none.env'", "none.env does not exist"),
        (f"{USUAL}[users.ann]\ntools = ['sub/none.py']", "none.py does not exist"),
        (f"{USUAL}[users.ann]\ntools = ['sub/{'x' * 300}.py']", "does not exist"),
        (f"{USUAL}[users.ann]\nproxy = ['x']\ntools = ['tool.py']", "not both"),
        (f"{USUAL}port = 5\n[users.ann]", "defaults.port would be one port for all"),
        ("[users", "cannot be parsed"),
        ("", "users: "),
    ],
)
def test_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    assert message in problem(tmp_path, text)


def test_half_of_a_character_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text('{"users": {"a\\ud800": {"port": 9000, "tools": ["json"]}}}')

    with pytest.raises(UsageError, match="half of a character"):
        planned(path, {})


@pytest.mark.parametrize(
    ("name", "mode", "message"), [("a.env", 0o644, "is open to other users"), ("a*.env", 0o600, "rename it")]
)
def test_environment_file_is_private_with_a_plain_name(
    tmp_path: Path, name: str, mode: int, message: str
) -> None:
    for file, bits in (("good.env", 0o600), (name, mode)):
        (tmp_path / file).write_text("TOKEN=hunter2\n")
        (tmp_path / file).chmod(bits)
    good = plan(tmp_path, f"{USUAL}[users.ann]\nenvironment_file = 'good.env'")["ann"]

    assert good.options.environment_file == str(tmp_path / "good.env")
    assert message in problem(tmp_path, f"{USUAL}[users.ann]\nenvironment_file = '{name}'")
