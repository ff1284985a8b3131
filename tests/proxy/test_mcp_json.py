"""An `mcp.json` as other clients write it: variables, foreign keys, comments, a program that is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from far import far_server, plain, tool
from proxying import BARE, proxied
from support import settings_in

from runner.errors import UsageError
from runner.proxy.targets import expanded, read_targets
from runner.proxy.upstreams import ways_to
from runner.settings.trust import read_judged, trust

VARIABLES = {"API_KEY": "sk-real", "MODE": "", "RUNNER_TOKEN": "ours"}
HIDDEN = ["sk-real", "ours"]


@pytest.fixture
def config(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that may be trusted, without any record of it."""
    monkeypatch.setenv("RUNNER_STATE_DIR", str(folder / "state"))
    return folder / "mcp.json"


def written(config: Path, *entries: dict[str, Any], trusted: bool = False) -> Any:
    """Return the servers of a file with these entries, named `a`, `b` and so on."""
    config.write_text(json.dumps({"mcpServers": dict(zip("abc", entries, strict=False))}))
    if trusted:
        trust([read_judged(config)])
    return read_targets([str(config)])


COMMAND = {
    "command": "server",
    "args": ["--key=${API_KEY}"],
    "env": {"KEY": "${env:API_KEY}", "M": "${MODE:-prod}"},
}
ADDRESS = {"url": "https://host/${API_KEY}", "headers": {"Authorization": "Bearer ${API_KEY}"}}


@pytest.mark.parametrize(("trusted", "allowed"), [(True, ()), (False, ("API_KEY", "MODE"))])
def test_variables_reach_a_command_if_allowed(config: Path, trusted: bool, allowed: tuple[str, ...]) -> None:
    (target,) = written(config, COMMAND, trusted=trusted)

    made = expanded(target, VARIABLES, allowed=allowed)

    assert made.command == ("server", "--key=sk-real")
    assert made.env == {"KEY": "sk-real", "M": "prod"}


def test_variables_reach_an_address_from_a_trusted_file(config: Path) -> None:
    (target,) = written(config, ADDRESS, trusted=True)

    made = expanded(target, VARIABLES, allowed=())

    assert (made.url, made.headers) == ("https://host/sk-real", {"Authorization": "Bearer sk-real"})


@pytest.mark.parametrize("place", ["url", "headers"])
@pytest.mark.parametrize("reference", ["${API_KEY}", "${API_KEY:-none}", "${env:API_KEY}", "x${API_KEY}y"])
def test_untrusted_file_expands_no_variable_in_address(config: Path, place: str, reference: str) -> None:
    entry: dict[str, Any] = {"url": "https://host/mcp"}
    entry[place] = f"https://evil/{reference}" if place == "url" else {"X": reference}
    (target,) = written(config, entry)

    with pytest.raises(UsageError, match=r"API_KEY.* in `" + place + ".*runner trust") as refused:
        expanded(target, VARIABLES, allowed=("API_KEY",))

    assert not any(secret in str(refused.value) for secret in HIDDEN)


def test_changed_file_is_not_trusted(config: Path) -> None:
    written(config, ADDRESS, trusted=True)
    (target,) = written(config, {**ADDRESS, "url": "https://evil/${API_KEY}"})

    with pytest.raises(UsageError, match="runner trust"):
        expanded(target, VARIABLES, allowed=("API_KEY",))


@pytest.mark.parametrize(
    ("value", "trusted", "words"),
    [
        ("${API_KEY}", False, r"\$\{API_KEY\} in `args`.*--allow-env API_KEY.*runner trust"),
        ("${UNSET}", True, r"\$\{UNSET\} in `args` is not set"),
        ("${RUNNER_TOKEN}", True, "setting of the runner"),
        ("${input:key}", True, r"\$\{input:key\} in `args` is known to editors"),
    ],
)
def test_refused_variable_is_named(config: Path, value: str, trusted: bool, words: str) -> None:
    (target,) = written(config, {"command": "server", "args": [value]}, trusted=trusted)

    with pytest.raises(UsageError, match=words) as refused:
        expanded(target, VARIABLES, allowed=())

    assert not any(secret in str(refused.value) for secret in HIDDEN)


@pytest.mark.parametrize("value", ["$API_KEY", "${a.b}", "${}", "{API_KEY}", "%API_KEY%"])
def test_other_words_stay_unchanged(config: Path, value: str) -> None:
    (target,) = written(config, {"command": "server", "args": [value]})

    assert expanded(target, VARIABLES, allowed=()).command == ("server", value)


def test_value_with_a_line_break_refused_as_header(config: Path) -> None:
    (target,) = written(config, ADDRESS, trusted=True)

    with pytest.raises(UsageError, match="control character in `url`") as refused:
        expanded(target, {"API_KEY": "secret\r\nHost: evil"}, allowed=())

    assert "secret" not in str(refused.value)


def test_address_is_checked_with_its_variables(config: Path) -> None:
    (target,) = written(config, {"url": "${BASE}/mcp"}, trusted=True)

    assert expanded(target, {"BASE": "https://host"}, allowed=()).url == "https://host/mcp"
    with pytest.raises(UsageError, match="is written http://host/mcp"):
        expanded(target, {"BASE": "file:///etc"}, allowed=())


FOREIGN = """\ufeff{
  // Of an editor.
  "inputs": [],
  "mcpServers": {
    /* "gone": {}, */
    "a": {"command": "server", "args": ["// no comment", "/* none */", ",]", "\\\\"], "alwaysAllow": ["x"],},
    "b": {"httpUrl": "https://host/mcp", "timeout": 5},
    "c": {"command": "server", "enabled": false}, // The last.
  },
}
"""


def test_comments_and_foreign_keys_are_ignored(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    config.write_text(FOREIGN, encoding="utf-8")

    a, b = read_targets([str(config)])

    assert (a.command, b.url) == (("server", "// no comment", "/* none */", ",]", "\\"), "https://host/mcp")
    logged = [str(vars(record)) for record in caplog.records if record.levelname == "WARNING"]
    assert [any(word in line for line in logged) for word in ("alwaysAllow", "timeout", "comments")] == [
        True
    ] * 3


@pytest.mark.parametrize("content", ['{"a": 1,,}', '{"a": "b', "{/*", "/" * 100_000, '"\\' * 100_000])
def test_invalid_json_is_refused(config: Path, content: str) -> None:
    config.write_text(content)

    with pytest.raises(UsageError, match="this is not JSON"):
        read_targets([str(config)])


@pytest.mark.anyio
async def test_missing_program_stops_no_other_server(folder: Path, user: str, config: Path) -> None:
    fine = {"command": sys.executable, "args": [str(BARE)]}
    missing, unset = {"command": "not-there-at-all"}, {**fine, "args": ["${API_KEY}"]}
    (alone,) = written(config, missing)
    with pytest.raises(UsageError, match="there is no program not-there-at-all"):
        ways_to(settings_in(folder), [alone])
    with pytest.raises(UsageError, match=r"not-there-at-all.*API_KEY"):
        ways_to(settings_in(folder), written(config, missing, unset))

    async with proxied(folder, user, *written(config, missing, fine, unset)) as client:
        names = {each.name for each in await client.list_tools()}
        refused = await client.call_tool_mcp("a_any", {})
        unnamed = await client.call_tool_mcp("c_any", {})

    assert "b_pid" in names
    assert "there is no program not-there-at-all" in refused.content[0].text
    assert "${API_KEY}" in unnamed.content[0].text


@pytest.mark.anyio
async def test_header_of_a_trusted_file_is_sent(
    folder: Path, user: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "sk-real")
    received = set[str]()

    def form(request: Any, headers: Any, body: bytes) -> Any:
        received.add(headers["authorization"])
        return plain(request, headers, body)

    with far_server([tool("run")], lambda _method, _params: {"content": []}, form) as url:
        entry = {"url": url, "headers": {"Authorization": "Bearer ${API_KEY}"}}
        with pytest.raises(UsageError, match="API_KEY"):
            async with proxied(folder, user, *written(config, entry)):
                pass
        assert not received
        async with proxied(folder, user, *written(config, entry, trusted=True)) as client:
            await client.call_tool("run")

    assert received == {"Bearer sk-real"}


def test_any_server_name_gives_its_own_prefix(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["docs", "My Docs", "my/docs", "io.github.owner/server", "Docs!", "\u6587\u6863", "\u6587"]
    config.write_text(json.dumps({"mcpServers": {name: {"command": "cat"} for name in names}}))

    with caplog.at_level("INFO"):
        targets = read_targets([str(config)])

    assert [target.name for target in targets] == [
        "docs",
        "My_Docs",
        "my_docs_2",
        "io_github_owner_server",
        "Docs_2",
        "server",
        "server_2",
    ]
    derived = {vars(record)["prefix"] for record in caplog.records if record.message == "server name derived"}
    assert derived == {target.name for target in targets} - {"docs"}


@pytest.mark.anyio
@pytest.mark.kernel
async def test_cwd_of_entry_is_working_folder_if_lent(
    folder: Path, user: str, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    work = folder / "work"
    work.mkdir()
    entry = {"command": sys.executable, "args": [str(BARE)], "cwd": "work"}
    seen = []
    settings: list[dict[str, Any]] = [{"allow_read": [str(work)]}, {}, {}]
    for lent in settings:
        async with proxied(folder, user, *written(config, entry), **lent) as client:
            seen.append(json.loads((await client.call_tool("cwd")).content[0].text))

    assert seen[0] == str(work)
    assert str(folder) not in seen[1]
    warnings = [vars(record) for record in caplog.records if record.message == "command runs in its home"]
    assert [each["cwd"] for each in warnings] == [str(work)] * 2
    assert "is not open to the command" in warnings[0]["problem"]
