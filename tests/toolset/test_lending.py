"""Checks of granted folders at start: their place, their owner, and folders that are never granted."""

import os
import pwd
from pathlib import Path

import pytest
from support import settings_in

from runner.errors import UsageError
from runner.proxy.targets import read_targets
from runner.settings.execution import ToolSettings
from runner.settings.lendable import flag_for
from runner.settings.settings import Settings
from runner.settings.sources import load
from runner.settings.trust import read_judged, trust
from runner.toolset.lending import lend

pytestmark = pytest.mark.needs_root

TOOL = "from fastmcp import FastMCP\nimport beside\nmcp = FastMCP('t')\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("data/sub", "more", "program", "state", "store", "homes"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "program/tool.py").write_text(TOOL)
    (tmp_path / "program/beside.py").write_text("")
    (tmp_path / "led").symlink_to("data")
    return tmp_path


def lent(folder: Path, **settings: object) -> Settings:
    effective = settings_in(folder, homes=folder / "homes", **settings)
    return lend(effective, [folder / "program/tool.py"])


def why(folder: Path, **settings: object) -> str:
    with pytest.raises(UsageError) as refused:
        lent(folder, **settings)
    return str(refused.value)


def test_links_followed_once_and_name_kept(folder: Path) -> None:
    rights = lent(folder, allow_write=(folder / "led" / "sub",)).rights()

    assert rights.write == (folder / "data/sub",)
    assert rights.lent.names == (folder / "led/sub",)


def test_grant_inside_another_grant_listed_once(folder: Path) -> None:
    rights = lent(
        folder, allow_read=(folder / "data/sub", folder / "more"), allow_write=(folder / "data",)
    ).rights()

    assert (rights.read, rights.write) == ((folder / "more",), (folder / "data",))


def test_tool_grants_replace_general_ones(folder: Path) -> None:
    tools = {"one": ToolSettings(allow_write=(folder / "more",)), "none": ToolSettings(allow_read=())}
    settings = lent(folder, allow_read=(folder / "data",), tools=tools)

    assert (settings.rights("one").read, settings.rights("one").write) == (
        (folder / "data",),
        (folder / "more",),
    )
    assert settings.rights("none").read == ()
    assert settings.rights().read == (folder / "data",)


def test_no_grants_change_nothing(folder: Path) -> None:
    settings = settings_in(folder)

    assert lend(settings, []) is settings


@pytest.mark.parametrize("option", ["allow_read", "allow_write"])
def test_missing_grant_named_with_option(folder: Path, option: str) -> None:
    reason = why(folder, **{option: (folder / "not-there",)})

    assert f"--{option.replace('_', '-')}: there is no file or folder {folder}/not-there" in reason


def test_tool_of_missing_folder_is_named(folder: Path) -> None:
    reason = why(folder, tools={"one": ToolSettings(allow_read=(folder / "not-there",))})

    assert reason.startswith("[tools.one] allow_read: there is no file or folder")


@pytest.mark.parametrize("option", ["allow_read", "allow_write"])
@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("/", "as a whole cannot be granted"),
        ("/home", "as a whole cannot be granted"),
        ("/tmp", "as a whole cannot be granted"),
        ("/proc", "holds processes, devices or sockets"),
        ("/proc/self/fd", "holds processes, devices or sockets"),
        ("/sys/kernel", "holds processes, devices or sockets"),
        ("/dev/shm", "holds processes, devices or sockets"),
        ("/dev/null", "neither a folder nor a regular file"),
        ("/run", "holds processes, devices or sockets"),
        ("/etc", "keys are kept|belongs to the system"),
        (".", "where the runner keeps its state"),
        ("state", "where the runner keeps its state"),
        ("store", "where the runner keeps its state"),
        ("homes", "holds the homes of all users"),
    ],
)
def test_overbroad_grant_refused(folder: Path, option: str, place: str, reason: str) -> None:
    message = why(folder, **{option: (folder / place,)})

    assert message.startswith(f"--{option.replace('_', '-')}: ")
    assert any(part in message for part in reason.split("|")), message


@pytest.mark.parametrize("place", ["/usr/local", "program", "program/beside.py"])
def test_folders_others_run_from_granted_read_only(folder: Path, place: str) -> None:
    assert lent(folder, allow_read=(folder / place,)).rights().read == (folder / place,)

    assert "is not lent to write" in (reason := why(folder, allow_write=(folder / place,))) or (
        "which tools run from" in reason
    )


def test_runner_folder_never_writable(folder: Path) -> None:
    import runner

    reason = why(folder, allow_write=(Path(runner.__file__).parents[1],))

    assert "the runner itself is loaded, unconfined" in reason


def test_keys_in_home_folder_never_granted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data/.ssh").mkdir()
    assert lent(folder, allow_read=(folder / "data",)).rights().read == (folder / "data",)

    monkeypatch.setenv("HOME", str(folder / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setenv("RUNNER_STATE_DIR", str(folder / "state"))

    assert "/.ssh, where keys are kept" in why(folder, allow_read=(folder / "data",))
    assert "/.ssh, where keys are kept" in why(folder, allow_read=(folder / "data/.ssh",))


def test_link_to_refused_path_refused_with_target(folder: Path) -> None:
    (folder / "innocent").symlink_to("state")

    assert f"{folder}/innocent ({folder}/state) would open" in why(folder, allow_read=(folder / "innocent",))


def test_configuration_file_never_granted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "data/runner.toml").write_text('allow_write = ["."]\n')
    monkeypatch.chdir(folder / "data")
    monkeypatch.setenv("RUNNER_STATE_DIR", str(folder / "state"))
    trust([read_judged(folder / "data/runner.toml")])

    settings = load({})

    # From where the file lies.
    assert settings.allow_write == (folder / "data",)
    with pytest.raises(UsageError, match=r"would open .*runner.toml"):
        lend(settings, [])


def test_root_works_as_owner_and_refuses_several_owners(folder: Path) -> None:
    assert os.geteuid() == 0, "only root gives others' user ids; run these tests as root"
    other = pwd.getpwnam("nobody").pw_uid
    os.chown(folder / "data", other, other)

    assert lent(folder, allow_write=(folder / "data",)).rights().lent.owner == (other, other)
    # Of what anybody may read, nobody needs to be the owner.
    assert lent(folder, allow_read=(Path("/usr/share"),)).lender is None
    reason = why(folder, allow_write=(folder / "data", folder / "more"))
    assert "belongs to several users" in reason
    assert f"{folder}/data of nobody" in reason


@pytest.mark.parametrize(
    ("path", "wants", "flag"),
    [
        ("/srv/a/b.txt", "read", "--allow-read=/srv/a"),
        ("/srv/a/b.txt", "write", "--allow-write=/srv/a"),
        ("/srv/a/b.txt", "", "--allow-read=/srv/a or --allow-write=/srv/a"),
        ("/srv/a/../c/b.txt", "write", "--allow-write=/srv/c"),
        ("/etc/passwd", "write", None),
        ("/proc/1/mem", "read", None),
        ("/home/al/x", "read", "--allow-read=/home/al/x"),
        ("/home/al", "read", None),
        ("/srv/notes", "write", "--allow-write=/srv/notes"),
        ("/srv", "read", None),
        ("/home/al/notes/x", "read", "--allow-read=/home/al/notes"),
        ("/tmp/bob/x", "read", None),
        ("/x", "read", None),
        ("relative/x", "write", None),
        ("/run/media/al/disk/x", "read", "--allow-read=/run/media/al/disk"),
        ("/root/.ssh/id", "read", None),
        ("/home/al/.config/gh/hosts.yml", "read", None),
        ("/home/al/.config/other/x", "read", "--allow-read=/home/al/.config/other"),
        ("/root/.local/state/toolcell/tokens.json", "read", None),
        ("/var/lib/toolcell/x", "write", None),
    ],
)
def test_option_named_where_it_would_help(path: str, wants: str, flag: str | None) -> None:
    assert flag_for(path, wants, homes=Path("/tmp")) == flag


def test_server_config_entry_has_own_folders(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = folder / "mcp.json"
    config.write_text(
        '{"mcpServers": {"a": {"command": "cat", "allow_write": ["data"], "allow_read": ["/srv"]},'
        ' "b": {"command": "cat"}}}'
    )
    monkeypatch.setenv("RUNNER_STATE_DIR", str(folder / "state"))
    trust([read_judged(config)])

    a, b = read_targets([str(config)])

    assert (a.allow_write, a.allow_read) == ((folder / "data",), (Path("/srv"),))
    assert (b.allow_write, b.allow_read) == (None, None)


@pytest.mark.parametrize("value", ['"data"', "[1]", '[""]', "{}"])
def test_entry_folders_not_a_list_refused(folder: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = folder / "mcp.json"
    config.write_text('{"mcpServers": {"a": {"command": "cat", "allow_write": ' + value + "}}}")
    monkeypatch.setenv("RUNNER_STATE_DIR", str(folder / "state"))
    trust([read_judged(config)])

    with pytest.raises(UsageError, match="`allow_write"):
        read_targets([str(config)])
