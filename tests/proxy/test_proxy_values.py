"""Targets, names and waiting, decided without any server."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.errors import UsageError
from runner.proxy.namespacing import Names
from runner.proxy.targets import Target, read_targets
from runner.system.backoff import BackOff

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,10}", fullmatch=True)
SEVERAL = st.lists(NAMES, min_size=2, max_size=4, unique=True)


def test_address_is_one_server() -> None:
    assert read_targets(["https://host.example/mcp"]) == (
        Target(name="host", url="https://host.example/mcp"),
    )


def test_command_is_one_server_named_after_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    (target,) = read_targets(["python", "my server.py", "--x"])

    assert target == Target(name="my_server", command=("python", "my server.py", "--x"), folder=tmp_path)


def test_file_has_several_servers(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    servers = {
        "a": {"url": "http://a/mcp", "headers": {"X": "1"}},
        "b": {"command": "b", "args": ["1"], "env": {"K": "v"}, "cwd": "sub"},
        "c": {"url": "http://c/mcp", "disabled": True},
    }
    file.write_text(json.dumps({"mcpServers": servers}))

    assert read_targets([str(file)]) == (
        Target(name="a", url="http://a/mcp", headers={"X": "1"}, source=file),
        Target(
            name="b",
            command=("b", "1"),
            env={"K": "v"},
            folder=tmp_path / "sub",
            runs_there=True,
            source=file,
        ),
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", r"line 1: this is not JSON"),
        ("[]", "names no server"),
        ("[" * 200_000, "nests too deep"),
        ('{"mcpServers": {}}', "names no server"),
        ('{"mcpServers": {"a": {}}}', r"mcp.json: a needs one of `url` and `command`"),
        ('{"mcpServers": {"a": {"url": "http://a", "command": "a"}}}', "needs one of"),
        ('{"mcpServers": {"a": {"url": "ftp://a"}}}', "is written http://host/mcp"),
        ('{"mcpServers": {"a": {"url": 3}}}', "`url`: .* a valid string"),
        ('{"mcpServers": {"a": {"command": ["a"]}}}', "`command`: .* a valid string"),
        ('{"mcpServers": {"a": {"command": "a", "args": "b"}}}', "`args`: .* a valid list"),
        ('{"mcpServers": {"a": {"command": "a", "env": {"K": 3}}}}', "`env.K`: .* a valid string"),
        ('{"mcpServers": {"a": {"urls": "http://a"}}}', "no key 'urls'"),
        ('{"mcpServers": {"a": 3}}', "is not an object"),
        (r'{"mcpServers": {"a": {"command": "a\u0000b"}}}', "a, `command`: there is a zero byte"),
        (
            r'{"mcpServers": {"a": {"command": "a", "args": ["b\u0000"]}}}',
            "a, `args.0`: there is a zero byte",
        ),
        (r'{"mcpServers": {"a": {"command": "a", "env": {"K": "\ud800"}}}}', "`env.K`: .* half of a"),
        (r'{"mcpServers": {"a": {"command": "a", "env": {"K=L": "v"}}}}', "`env.K=L.*is not the name of a"),
    ],
)
def test_fault_in_file_reported_with_place(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(content)

    with pytest.raises(UsageError, match=words):
        read_targets([str(file)])


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "name a server"),
        (["ftp://host/x"], "is written http://host/mcp"),
        (["https://a/mcp", "https://b/mcp"], "put several into a file"),
        (["gone.json"], "there is no file gone.json"),
        (["http://[::1/mcp"], "is written http://host/mcp"),
    ],
)
def test_wrong_arguments_are_explained(words: list[str], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        read_targets(words)


@given(SEVERAL, st.data(), st.text(min_size=1, max_size=20))
def test_prefixed_name_maps_to_its_server(servers: list[str], data: st.DataObject, name: str) -> None:
    names, server = Names(tuple(servers)), data.draw(st.sampled_from(servers))

    found = names.inside(names.outside(server, name))

    # A server `a` with the tool `b_c` cannot be told from the server `a_b` with `c`: the longer name wins.
    assert found is not None
    assert names.outside(*found) == names.outside(server, name)


@pytest.mark.parametrize("uri", ["file:///a/b", "note://x", "urn:isbn:1", "data:,x", "ui://widget/a.html"])
def test_prefixed_uri_maps_to_its_server_others_to_none(uri: str) -> None:
    names = Names(("one", "two", "two/more"))

    assert names.uri_inside(names.uri_outside("two", uri)) == ("two", uri)
    assert names.uri_inside(names.uri_outside("two/more", uri)) == ("two/more", uri)
    assert names.uri_inside(uri) is None


def test_item_of_two_pages_listed_once() -> None:
    tools = [{"name": "c"}, {"name": "d"}, {"name": "c"}]

    assert Names(("a", "b")).listed("a", "tools", tools) == [{"name": "a_c"}, {"name": "a_d"}]


def test_name_leading_to_another_server_not_listed() -> None:
    names = Names(("a", "a_b"))
    tools = [{"name": "b_c"}, {"name": "d"}]

    assert names.listed("a", "tools", tools) == [{"name": "a_d"}]
    # The control: of the other it is its own.
    assert names.listed("a_b", "tools", tools) == [{"name": "a_b_b_c"}, {"name": "a_b_d"}]


def test_tool_pages_belong_to_its_server() -> None:
    page = "ui://shop/pay.html"
    meta = {"ui": {"resourceUri": page, "visibility": ["app"]}, "openai/outputTemplate": page, "mine": page}
    tools = [{"name": "pay", "_meta": meta}]

    (tool,) = Names(("evil", "shop")).listed("shop", "tools", tools)

    outside = "ui://shop/shop/pay.html"
    changed = {"ui": {"resourceUri": outside, "visibility": ["app"]}, "openai/outputTemplate": outside}
    assert tool == {"name": "shop_pay", "_meta": {**meta, **changed}}
    assert Names(("shop",)).listed("shop", "tools", tools) == tools


def test_single_server_keeps_its_names() -> None:
    names = Names(("one",))

    assert (names.outside("one", "x"), names.uri_outside("one", "a://b")) == ("x", "a://b")
    assert (names.inside("x"), names.uri_inside("a://b")) == (("one", "x"), ("one", "a://b"))


def test_backoff_doubles_to_bound_and_success_resets() -> None:
    backoff = BackOff(first_s=1, most_s=5)
    waits = []

    for now in (0, 100, 200, 300, 400):
        backoff.failed(now)
        waits.append(backoff.wait_s(now))

    assert waits == [1, 2, 4, 5, 5]
    assert backoff.wait_s(403) == 2
    assert backoff.wait_s(500) == 0
    backoff.worked()
    assert backoff.wait_s(400) == 0
