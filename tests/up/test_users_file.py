"""The file of users, and what each server is to be by it."""

import json
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.up.keeping import pause_s
from runner.up.plan import Server, planned
from runner.up.users_file import read_users_file


def plan(folder: Path, text: str, ports: dict[str, int] | None = None) -> dict[str, Server]:
    path = folder / "users.toml"
    path.write_text(text)
    (folder / "tool.py").touch()
    return planned(read_users_file(path), path, folder / "users", ports=ports or {}, uid_of=lambda _: None)


def problem(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as refused:
        plan(folder, text)
    return str(refused.value)


USUAL = "ports = '9000-9001'\n[defaults]\ntools = ['tool.py']\n"


def test_what_is_said_of_a_user_goes_before_the_defaults(tmp_path: Path) -> None:
    text = f"{USUAL}memory_mb = 512\nenvironment = {{A = '1', B = '1'}}\n[users.ann]\nmemory_mb = 256\n"
    text += "environment = {B = '2'}\n[users.bob]\nproxy = ['https://example.com/mcp']"

    servers = plan(tmp_path, text)

    assert [one.bounds.memory_mb for one in servers.values()] == [256, 512]
    assert [servers["ann"].environment[name] for name in "AB"] == ["1", "2"]
    assert servers["ann"].command[-1] == str(tmp_path / "tool.py")
    assert servers["bob"].command[-1] == "https://example.com/mcp"


def test_a_user_keeps_a_port_and_gets_one_that_is_free(tmp_path: Path) -> None:
    servers = plan(tmp_path, f"{USUAL}[users.ann]\n[users.bob]", {"bob": 9000, "gone": 9001})

    assert {name: one.port for name, one in servers.items()} == {"ann": 9001, "bob": 9000}


def test_json_says_the_same(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"users": {"ann": {"port": 9000, "tools": ["tool.py"]}}}))

    assert read_users_file(path).given("ann").port == 9000


def test_users_file_that_others_can_write_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "users.json"
    path.write_text(json.dumps({"users": {"ann": {"port": 9000, "tools": ["tool.py"]}}}))
    assert read_users_file(path).users

    path.chmod(0o666)

    with pytest.raises(UsageError, match="is not read: it can be written by other users"):
        read_users_file(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{USUAL}[users.a]\n[users.b]\n[users.c]", "no port left for 'c'"),
        ("[users.ann]\nport = 1\n", "neither tools nor proxy"),
        ("[users.ann]\ntools = ['tool.py']\n", "users.ann has no port"),
        ("[users.a]\nport = 1\n[users.b]\nport = 1\n", "users.b.port 1 is that of 'a' already"),
        (f"{USUAL}[users.ann]\nmemory = 5", "users.ann.memory"),
        (f"{USUAL}[users.ann]\nenvironment = {{RUNNER_USER = 'bob'}}", "RUNNER_USER is set by `runner up`"),
        (f"{USUAL}[users.ann]\nenvironment_file = 'none.env'", "none.env does not exist"),
        (f"{USUAL}[users.ann]\ntools = ['sub/none.py']", "none.py does not exist"),
        (f"{USUAL}[users.ann]\nproxy = ['x']\ntools = ['tool.py']", "give one of them"),
        (f"{USUAL}port = 5\n[users.ann]", "defaults.port would be everybody's"),
        ("[users", "cannot be understood"),
        ("", "users: "),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    assert said in problem(tmp_path, text)


@pytest.mark.parametrize(
    ("content", "said"), [("RUNNER_PORT=1", "RUNNER_PORT is set"), ("hunter2", "line 1")]
)
def test_a_wrong_line_of_an_environment_file_is_named_and_not_shown(
    tmp_path: Path, content: str, said: str
) -> None:
    secret = tmp_path / "ann.env"
    secret.write_text(content)
    secret.chmod(0o600)

    text = problem(tmp_path, f"{USUAL}[users.ann]\nenvironment_file = 'ann.env'")

    assert said in text
    assert "hunter2" not in text


def test_secrets_are_in_the_environment_and_on_no_command_line(tmp_path: Path) -> None:
    secret = tmp_path / "ann.env"
    secret.write_text("# a key\nKEY=hunter2 = x\n")
    secret.chmod(0o600)

    server = plan(tmp_path, f"{USUAL}[users.ann]\nenvironment_file = 'ann.env'")["ann"]

    assert server.environment["KEY"] == "hunter2 = x"
    assert not any("hunter2" in word for word in server.command)


@pytest.mark.parametrize("place", ["config", "environment"])
def test_a_server_with_tls_is_refused_since_nobody_could_ask_whether_it_is_ready(
    tmp_path: Path, place: str
) -> None:
    config = tmp_path / "user.toml"
    config.write_text('[auth]\nkind = "gateway"\ngateway_addresses = ["127.0.0.1"]\n')
    text = f"{USUAL}config = 'user.toml'\n[users.ann]\n"

    plain = plan(tmp_path, text)
    if place == "config":
        config.write_text('[auth]\nkind = "gateway"\ngateway_certificate = "c.pem"\n')
    else:
        text += "environment = {RUNNER_AUTH__GATEWAY_CERTIFICATE = 'c.pem'}\n"

    assert list(plain) == ["ann"]
    assert "users.ann has auth.gateway_certificate" in problem(tmp_path, text)


def test_a_changed_configuration_file_is_a_change(tmp_path: Path) -> None:
    (tmp_path / "ann.toml").write_text("max_calls = 1")
    text = f"{USUAL}[users.ann]\nconfig = 'ann.toml'"
    before = plan(tmp_path, text)["ann"].digest
    same = plan(tmp_path, text)["ann"].digest
    (tmp_path / "ann.toml").write_text("max_calls = 2")

    assert same == before != plan(tmp_path, text)["ann"].digest


def test_pauses_double_up_to_a_minute() -> None:
    assert [pause_s(failures) for failures in (1, 2, 3, 6, 7, 1000)] == [1, 2, 4, 32, 60, 60]
