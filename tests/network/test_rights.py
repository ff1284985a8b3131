"""Configured rights of tools, and the tool that each right belongs to."""

from pathlib import Path

import pytest
from support import trusted_config

from runner.cli.options import spell_out
from runner.errors import UsageError
from runner.settings.execution import ToolSettings
from runner.settings.rights import Rights
from runner.settings.settings import Settings
from runner.settings.sources import load
from runner.toolset.programs import program_files

pytestmark = pytest.mark.needs_npm


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"allow_net": "https://a.example"}, "write HOST, HOST:PORT"),
        ({"allow_net": "a.example:0"}, "a port is a number from 1 to 65535"),
        ({"allow_net": "a.example,10.0.0"}, "'10.0.0' is not an address"),
        ({"allow_env": "A=B"}, "give names alone"),
        ({"allow_env": "1A"}, "is not a variable name"),
        ({"allow_env": "RUNNER_REDIS_URL"}, "tools never see these"),
        ({"allow_run": "bin/git"}, "a name such as git, or a whole path"),
    ],
)
def test_invalid_rights_are_refused_with_a_sentence(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load(flags)


def test_rights_are_equal_in_environment_and_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_ALLOW_NET", "a.example:443, :80")
    trusted_config(
        'allow_env = ["HF_TOKEN"]\nallow_run = ["git"]\n[tools.one]\nallow_net = []\nallow_run = []\n'
    )

    settings = load({})

    assert settings.rights() == Rights(
        network=("a.example:443", ":80"), variables=("HF_TOKEN",), programs=("git",)
    )
    assert settings.rights("one") == Rights(variables=("HF_TOKEN",), may_run=False)


def test_invalid_rights_of_one_tool_are_refused() -> None:
    trusted_config('[tools.one]\nallow_net = ["a b"]\n')

    with pytest.raises(UsageError, match="is not a destination"):
        load({})


def test_a_tool_has_its_own_rights_instead_of_those_of_all() -> None:
    settings = Settings(
        allow_run=(),
        allow_net=("*",),
        tools={
            "runs": ToolSettings(allow_run=("git",)),
            "free": ToolSettings(allow_run=("*",)),
            "sees": ToolSettings(allow_env=("A",)),
        },
    )

    assert settings.rights("any") == settings.rights() == Rights(network=("*",), may_run=False)
    assert settings.rights("runs") == Rights(network=("*",), programs=("git",))
    assert settings.rights("free") == Rights(network=("*",))
    assert settings.rights("sees") == Rights(network=("*",), variables=("A",), may_run=False)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["call", "f.py", "t", "--allow-net"], ["call", "f.py", "t", "--allow-net=*"]),
        (["serve", "--allow-net", "f.py"], ["serve", "--allow-net=*", "f.py"]),
        (["serve", "--allow-net", "f.py:mcp"], ["serve", "--allow-net=*", "f.py:mcp"]),
        (["call", "f.py", "t", "--allow-net", "n:=5"], ["call", "f.py", "t", "--allow-net=*", "n:=5"]),
        (["call", "f.py", "t", "--allow-net=a:1"], ["call", "f.py", "t", "--allow-net=a:1"]),
        (["proxy", "--", "npx", "--allow-net"], ["proxy", "--", "npx", "--allow-net"]),
        (["proxy", "--allow-net", "--", "npx"], ["proxy", "--allow-net=*", "--", "npx"]),
    ],
)
def test_the_flag_without_a_value_means_every_public_address(flags: list[str], expected: list[str]) -> None:
    assert spell_out(flags) == expected


@pytest.mark.parametrize(
    "value", ["a.example", "a.example:443", ":443", "a.example:443,b.example", "*.a.example", "localhost"]
)
def test_host_after_a_space_is_the_flag_value(value: str) -> None:
    assert spell_out(["call", "f.py", "t", "--allow-net", value]) == [
        "call",
        "f.py",
        "t",
        f"--allow-net={value}",
    ]
    assert spell_out(["serve", "--allow-net", value, "f.py"]) == ["serve", f"--allow-net={value}", "f.py"]


@pytest.mark.parametrize("word", ["tool", "n=a.example", "https://a.example/mcp", "there.txt", "f.py"])
def test_ambiguous_word_is_not_the_flag_value(word: str) -> None:
    Path("there.txt").touch()

    assert spell_out(["proxy", "--allow-net", word, "x"]) == ["proxy", "--allow-net=*", word, "x"]


def test_only_word_is_the_served_file() -> None:
    assert spell_out(["serve", "--allow-net", "a.module"]) == ["serve", "--allow-net=*", "a.module"]


def test_a_program_needs_its_loader() -> None:
    git, *others = program_files(["git"], path="/usr/bin")

    assert git.name == "git"
    assert any(path.name.startswith("ld") for path in others), others
    assert all(path.is_file() and not path.is_symlink() for path in (git, *others))


def test_script_needs_its_interpreter(tmp_path: Path) -> None:
    real = Path("/bin/sh").resolve()
    direct, by_env = tmp_path / "direct", tmp_path / "by-env"
    direct.write_text("#!/bin/sh\n")
    by_env.write_text("#!/usr/bin/env -S LANG=C sh -e\n")
    for script in (direct, by_env):
        script.chmod(0o755)

    assert real in program_files(["direct"], path=f"{tmp_path}:/usr/bin")
    found = program_files(["by-env"], path=f"{tmp_path}:/usr/bin")

    assert {Path("/usr/bin/env").resolve(), real} <= set(found)


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no program git in {tmp_path}"):
        program_files(["git"], path=str(tmp_path))
