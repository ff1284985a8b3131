"""Grants: paths that no tool file, command argument or link opens, for any user."""

import pwd
from pathlib import Path

import pytest
from support import settings_in

from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.toolset.grants import check_files, opened, readable, refused_word


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("state", "store", "homes", "tools", "op/.ssh", "other/.aws"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("state/tokens.json", "store/file", "op/.ssh/id_rsa", "other/.aws/tool.py", "tools/tool.py"):
        (tmp_path / name).write_text(name)
    monkeypatch.setenv("HOME", str(tmp_path / "op"))
    return tmp_path


@pytest.fixture
def settings(folder: Path) -> Settings:
    return settings_in(folder, homes=folder / "homes")


PRIVATE = ["state/tokens.json", "store/file", "op/.ssh/id_rsa", "other/.aws/tool.py"]


@pytest.mark.parametrize("name", PRIVATE)
def test_file_among_keys_or_state_named_by_what_it_opens(name: str, folder: Path, settings: Settings) -> None:
    why = opened(folder / name, settings)

    assert why is not None
    assert str((folder / name).parent) in why
    assert refused_word(folder / name, settings) == why
    with pytest.raises(UsageError, match="move the tool file"):
        check_files(settings, [folder / name])


@pytest.mark.parametrize("name", PRIVATE)
def test_file_among_keys_or_state_is_not_granted(name: str, folder: Path, settings: Settings) -> None:
    tool = folder / "tools/tool.py"

    found = readable(settings, beside=[tool, folder / name], files=[tool, folder / name])

    granted = {*found.read, *found.list_only}
    assert tool in granted
    assert not granted & {folder / name, *(folder / name).parents}


def test_tool_file_in_its_own_folder_passes(folder: Path, settings: Settings) -> None:
    check_files(settings, [folder / "tools/tool.py"])

    assert refused_word(folder / "tools/tool.py", settings) is None


@pytest.mark.parametrize("path", ["/proc/1/environ", "/dev/shm/x", "/run/secrets/x", "/etc/shadow"])
def test_system_path_argument_is_refused(path: str, settings: Settings) -> None:
    assert refused_word(Path(path), settings) is not None
    assert refused_word(Path("/etc/hosts"), settings) is None


def test_keys_of_a_service_in_any_home_are_not_granted(
    folder: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, tool = folder / "service", folder / "tools/tool.py"
    (home / ".docker").mkdir(parents=True)
    (home / "packages").mkdir()
    assert home in readable(settings, beside=[tool], extra=[home]).read

    entry = pwd.struct_passwd(("service", "x", 4242, 4242, "", str(home), "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwall", lambda: [entry])
    found = readable(settings, beside=[tool], extra=[home])

    assert home / "packages" in found.read
    assert not {home, home / ".docker"} & {*found.read, *found.list_only}
