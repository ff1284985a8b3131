"""Entries in the configurations of MCP clients: merged in, nothing else touched, nothing half written."""

import json
import os
from pathlib import Path

import pytest

from runner.cli.commands.install import CLIENTS, ClientEntry, config_path, install_entry
from runner.errors import UsageError

ENTRY = ClientEntry(
    name="tools", command="/usr/bin/runner", arguments=("serve", "/t/tools.py", "--transport", "stdio")
)
OURS = {"command": "/usr/bin/runner", "args": ["serve", "/t/tools.py", "--transport", "stdio"]}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("client", "system", "environment", "path"),
    [
        ("claude-desktop", "linux", {}, "/h/.config/Claude/claude_desktop_config.json"),
        ("claude-desktop", "linux", {"XDG_CONFIG_HOME": "/c"}, "/c/Claude/claude_desktop_config.json"),
        ("claude-desktop", "darwin", {}, "/h/Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", {"APPDATA": "/a"}, "/a/Claude/claude_desktop_config.json"),
        ("claude-code", "linux", {}, "/h/.claude.json"),
        ("claude-code", "darwin", {}, "/h/.claude.json"),
        ("cursor", "linux", {"XDG_CONFIG_HOME": "/c"}, "/h/.cursor/mcp.json"),
        ("cursor", "darwin", {}, "/h/.cursor/mcp.json"),
        ("vscode", "linux", {}, "/h/.config/Code/User/mcp.json"),
        ("vscode", "darwin", {}, "/h/Library/Application Support/Code/User/mcp.json"),
        ("vscode", "win32", {"APPDATA": "/a"}, "/a/Code/User/mcp.json"),
    ],
)
def test_client_config_path_matches_its_documentation(
    client: str, system: str, environment: dict[str, str], path: str
) -> None:
    found = config_path(CLIENTS[client], system=system, environment={"HOME": "/h", **environment})

    assert found == Path(path)


@pytest.mark.parametrize(
    ("client", "path", "key", "entry"),
    [
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", "mcpServers", OURS),
        ("claude-code", ".claude.json", "mcpServers", {"type": "stdio", **OURS}),
        ("cursor", ".cursor/mcp.json", "mcpServers", OURS),
        ("vscode", ".config/Code/User/mcp.json", "servers", {"type": "stdio", **OURS}),
    ],
)
def test_client_without_configuration_gets_one(
    home: Path, client: str, path: str, key: str, entry: dict[str, object]
) -> None:
    install_entry(client, ENTRY, only_print=False)

    assert json.loads((home / path).read_text()) == {key: {"tools": entry}}
    assert [item.name for item in (home / path).parent.iterdir()] == [Path(path).name]


def test_install_keeps_other_entries_order_and_indentation(home: Path) -> None:
    servers = '"mcpServers": {\n        "b": {\n            "command": "x"\n        }\n    }'
    before = f'{{\n    "theme": "dünkel",\n    {servers}\n}}\n'
    config = home / ".cursor" / "mcp.json"
    config.parent.mkdir()
    config.write_text(before, encoding="utf-8")
    config.chmod(0o600)

    message = install_entry("cursor", ENTRY, only_print=False)

    after = config.read_text(encoding="utf-8")
    assert json.loads(after) == {"theme": "dünkel", "mcpServers": {"b": {"command": "x"}, "tools": OURS}}
    assert after.startswith(before.rpartition("\n        }\n    }\n}\n")[0])
    assert config.with_name("mcp.json.bak").read_text(encoding="utf-8") == before
    assert config.stat().st_mode & 0o777 == 0o600
    assert "mcp.json.bak" in message


def test_install_same_file_again_updates_entry_once(home: Path) -> None:
    config = home / ".cursor" / "mcp.json"
    config.parent.mkdir()
    old = {"command": "/old/runner", "args": ["serve", "/t/tools.py"], "env": {"A": "1"}}
    config.write_text(json.dumps({"mcpServers": {"tools": old}}))

    first = install_entry("cursor", ENTRY, only_print=False)
    second = install_entry("cursor", ENTRY, only_print=False)

    assert json.loads(config.read_text()) == {"mcpServers": {"tools": {**old, **OURS}}}
    assert first.startswith("wrote 'tools'")
    assert second.endswith("has this entry already")
    assert sorted(item.name for item in config.parent.iterdir()) == ["mcp.json", "mcp.json.bak"]


def test_backup_never_replaces_older_one(home: Path) -> None:
    config = home / ".cursor" / "mcp.json"
    config.parent.mkdir()
    config.write_text("{}")
    config.with_name("mcp.json.bak").write_text("precious")

    install_entry("cursor", ENTRY, only_print=False)

    assert config.with_name("mcp.json.bak").read_text() == "precious"
    assert config.with_name("mcp.json.bak2").read_text() == "{}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n  // mine\n  "mcpServers": {}\n}', "is not plain JSON"),
        ("[]", "does not hold an object 'mcpServers'"),
        ('{"mcpServers": 3}', "does not hold an object 'mcpServers'"),
        ('{"mcpServers": {"tools": {"command": "other"}}}', "has another server named 'tools'"),
        ('{"mcpServers": {"tools": 7}}', "has another server named 'tools'"),
    ],
)
def test_unparsable_configuration_unchanged(home: Path, text: str, says: str) -> None:
    config = home / ".cursor" / "mcp.json"
    config.parent.mkdir()
    config.write_text(text)

    with pytest.raises(UsageError, match=says):
        install_entry("cursor", ENTRY, only_print=False)

    assert config.read_text() == text
    assert [item.name for item in config.parent.iterdir()] == ["mcp.json"]


def test_install_dry_run_prints_config_writes_nothing(home: Path) -> None:
    shown = install_entry("vscode", ENTRY, only_print=True)

    assert json.loads(shown) == {"servers": {"tools": {"type": "stdio", **OURS}}}
    assert list(home.iterdir()) == []


def test_symlinked_configuration_stays_a_link(home: Path) -> None:
    real = home / "dotfiles" / "mcp.json"
    real.parent.mkdir()
    real.write_text("{}")
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").symlink_to(real)

    install_entry("cursor", ENTRY, only_print=False)

    assert (home / ".cursor" / "mcp.json").is_symlink()
    assert json.loads(real.read_text()) == {"mcpServers": {"tools": OURS}}


def test_entry_names_this_runner_and_file_from_anywhere() -> None:
    entry = ClientEntry.of("/t/my_tools.py:server", name=None, user="alice")

    assert entry.name == "my_tools"
    assert os.path.isabs(entry.command)
    assert Path(entry.command).name == "runner"
    assert entry.arguments == ("serve", "/t/my_tools.py:server", "--transport", "stdio", "--user", "alice")
