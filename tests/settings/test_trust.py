"""Files that others can change, files without trust, and empty lists."""

import json
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel, Field
from support import trusted_config

from runner.errors import UsageError
from runner.settings.approvals import ApprovalSettings
from runner.settings.auth import Auth
from runner.settings.execution import ToolSettings
from runner.settings.named_limits import LimitSettings, counted
from runner.settings.secrets import SecretSettings
from runner.settings.settings import Settings
from runner.settings.sources import load, variables, widening
from runner.settings.trust import (
    UnsafeFile,
    distrust,
    is_trusted,
    read_judged,
    read_trusted,
    trust,
    trust_record,
    trusted_files,
)
from runner.settings.values import NARROWS, widens_rights
from runner.users.tool_secrets import Secrets

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"
# Each can be given in a file that nobody has trusted. Before a name is added: which of its values give more?
NARROWING = {
    *("port", "log_level", "worker_reuse", "identity_pattern"),
    *("playground", "log_level", "log_format"),
    "tools.NAME.scopes",
    *(f"call_limits.NAME.{name}" for name in LimitSettings.model_fields),
    *(f"approvals.NAME.{name}" for name in ApprovalSettings.model_fields),
}
MODELS: Mapping[str, type[BaseModel]] = {
    "": Settings,
    "auth.": Auth,
    "tools.NAME.": ToolSettings,
    "secrets.NAME.": SecretSettings,
    "call_limits.NAME.": LimitSettings,
    "approvals.NAME.": ApprovalSettings,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter an empty folder, with state and configuration of the caller beside it."""
    for name in (*variables(), "RUNNER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    here = tmp_path / "cloned"
    here.mkdir(mode=0o755)
    monkeypatch.chdir(here)
    return here


def written(path: Path, text: str = "", mode: int = 0o644) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_file_nobody_trusts_gives_only_what_narrows() -> None:
    text = 'isolation = "guard"\nallow_env = ["KEY"]\nallow_run = []\n'
    text += '[secrets.A]\ncommand = ["x"]\ntools = ["t"]\n'
    written(Path("runner.toml"), text)

    settings = load({})

    assert (settings.isolation, settings.allow_env, settings.secrets) == ("auto", (), {})
    assert settings.allow_run == ()
    (sentence,) = settings.ignored
    assert f"{Path.cwd()}/runner.toml is not trusted" in sentence
    assert "isolation, allow_env, secrets.A.command, secrets.A.tools are ignored" in sentence
    assert sentence.endswith(f"run `runner trust {Path.cwd()}`")

    trusted_config(text)
    assert (load({}).isolation, load({}).ignored) == ("guard", ())


def test_trusted_file_that_changes_is_trusted_no_longer() -> None:
    trusted_config('allow_env = ["A"]\n')
    assert load({}).allow_env == ("A",)

    written(Path("runner.toml"), 'allow_env = ["A", "B"]\n')

    assert load({}).allow_env == ()
    assert "allow_env is ignored" in load({}).ignored[0]


def test_trust_removed_is_gone_and_copies_have_none(folder: Path) -> None:
    trusted_config('allow_env = ["A"]\n')
    other = folder.with_name("other")
    other.mkdir()
    copy = read_judged(written(other / "runner.toml", 'allow_env = ["A"]\n'))
    assert is_trusted(read_judged(Path("runner.toml")))

    assert not is_trusted(copy)
    assert distrust(Path("runner.toml"))
    assert load({}).allow_env == ()
    assert not distrust(Path("runner.toml"))


@pytest.mark.parametrize("how", ["option", "variable", "own folder"])
def test_named_file_counts_in_full(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config/toolcell").mkdir(parents=True)
    file = written(tmp_path / "config/toolcell/runner.toml", 'allow_env = ["A"]\n')
    if how != "own folder":
        file = file.rename(tmp_path / "named.toml")
    if how == "variable":
        monkeypatch.setenv("RUNNER_CONFIG", str(file))

    settings = load({}, config=file if how == "option" else None)

    assert (settings.allow_env, settings.config_file) == (("A",), file)


def test_relative_path_in_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    written(Path("runner.toml"))
    monkeypatch.setenv("RUNNER_CONFIG", "runner.toml")

    with pytest.raises(UsageError, match=r"'runner.toml' is relative; give the whole path"):
        load({})


def test_file_nobody_trusts_does_not_replace_the_own_one(tmp_path: Path) -> None:
    (tmp_path / "config/toolcell").mkdir(parents=True)
    own = written(tmp_path / "config/toolcell/runner.toml", 'user = "ann"\n')
    written(Path("runner.toml"), "port = 1\n")

    settings = load({})

    assert (settings.user, settings.port, settings.config_file) == ("ann", 8000, own)
    assert "runner.toml is not trusted and is ignored" in settings.ignored[0]


def test_value_that_is_the_default_needs_no_trust() -> None:
    written(Path("runner.toml"), 'idle_timeout_s = 30\nisolation = "auto"\n')

    assert load({}).ignored == ()


def test_names_of_a_file_nobody_trusts_control_no_terminal() -> None:
    written(Path("runner.toml"), '"\\u001b[2J" = 1\n')

    (sentence,) = load({}).ignored

    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "it nests too deep"),
        (".".join(["a"] * 20_000) + " = 1", "line 1: a key has more than 100 parts"),
        ("port = 1\n" + ".".join(['"a"'] * 20_000) + " = 1", "line 2: a key has more than 100 parts"),
        ("a = { " + ".".join(["a"] * 20_000) + " = 1 }", "line 1: a key has more than 100 parts"),
        ('"' + "\\" * 500_001, "cannot be read"),
    ],
)
def test_nested_file_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    written(Path("runner.toml"), text + "\n")
    began = time.process_time()

    with pytest.raises(UsageError, match=sentence):
        load({})

    assert time.process_time() - began < 1


def test_many_dots_in_a_text_are_not_a_key() -> None:
    written(Path("runner.toml"), 'user = "' + "a." * 200 + 'b"\n')

    load({})


def _by_others(file: Path) -> None:
    file.chmod(0o666)


def _of_another(file: Path) -> None:
    os.chown(file, 12345, 12345)


def _in_a_folder_of_others(file: Path) -> None:
    file.parent.chmod(0o777)


def _below_a_folder_of_another(file: Path) -> None:
    os.chown(file.parent.parent, 12345, 12345)


def _by_a_group(file: Path) -> None:
    os.chown(file, -1, 12345)
    file.chmod(0o664)


def _in_a_home(file: Path) -> None:
    os.setxattr(file.parent, "user.toolcell.home", b"{}")


@pytest.mark.needs_root
@pytest.mark.parametrize(
    "change",
    [_by_others, _of_another, _in_a_folder_of_others, _below_a_folder_of_another, _by_a_group, _in_a_home],
)
def test_file_that_others_can_change_is_never_read(change: Any, folder: Path) -> None:
    trusted_config('allow_env = ["A"]\n')
    file = folder / "runner.toml"
    assert load({}).allow_env == load({}, config=file).allow_env == ("A",)

    change(file)

    assert load({}).allow_env == ()
    assert f"{file} is not read: " in load({}).ignored[0]
    with pytest.raises(UsageError, match="is not read: "):
        load({}, config=file)
    with pytest.raises(UnsafeFile):
        read_judged(file)


def test_sticky_folder_holds_a_file_of_the_caller(folder: Path) -> None:
    folder.chmod(0o1777)
    trusted_config('allow_env = ["A"]\n')

    assert load({}).allow_env == ("A",)


@pytest.mark.needs_root
def test_link_is_judged_by_what_it_leads_to(tmp_path: Path) -> None:
    theirs = written(tmp_path / "theirs.toml", 'allow_env = ["A"]\n')
    Path("runner.toml").symlink_to(theirs)
    trust([read_judged(Path("runner.toml"))])
    assert load({}).allow_env == ("A",)

    os.chown(theirs, 12345, 12345)

    assert load({}).allow_env == ()
    assert "belongs to user id 12345" in load({}).ignored[0]


def test_each_folder_of_a_chain_of_links_is_judged(tmp_path: Path) -> None:
    real = written(tmp_path / "real.toml", 'allow_env = ["A"]\n')
    first, middle = tmp_path / "first", tmp_path / "middle"
    for folder in (first, middle):
        folder.mkdir(mode=0o755)
    (middle / "link").symlink_to(Path("..", real.name))
    (first / "link").symlink_to(middle / "link")
    assert load({}, config=first / "link").allow_env == ("A",)

    middle.chmod(0o777)

    with pytest.raises(UsageError, match="middle can be written by other users"):
        load({}, config=first / "link")


@pytest.mark.needs_root
def test_a_link_that_another_user_has_made_is_not_followed(tmp_path: Path) -> None:
    real = written(tmp_path / "real.toml", 'allow_env = ["A"]\n')
    link = tmp_path / "link"
    link.symlink_to(real)
    assert load({}, config=link).allow_env == ("A",)

    os.lchown(link, 12345, 12345)

    with pytest.raises(UsageError, match="belongs to user id 12345"):
        load({}, config=link)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _too_long(path: Path) -> None:
    path.write_bytes(b"#" * (5 << 20))


def _to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def _dangling(path: Path) -> None:
    path.symlink_to("gone")


@pytest.mark.parametrize("make", [_fifo, _too_long, _to_itself, _dangling, Path.mkdir])
def test_a_file_of_the_folder_that_cannot_be_read_ends_nothing(
    make: Callable[[Path], None], folder: Path
) -> None:
    make(folder / "runner.toml")

    assert load({}).port == 8000
    (note,) = load({}).ignored
    assert note.startswith(f"{folder}/runner.toml is not read: ")


def test_link_to_a_trusted_file_is_not_trusted(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "own").mkdir(mode=0o755)
    theirs = written(tmp_path / "own/runner.toml", 'allow_read = ["data"]\n')
    trust([read_judged(theirs)])
    Path("runner.toml").symlink_to(theirs)
    assert load({}).allow_read == ()
    assert f"{folder}/runner.toml is not trusted" in load({}).ignored[0]

    trust([read_judged(Path("runner.toml"))])

    assert load({}).allow_read == (folder / "data",)
    assert distrust(Path("runner.toml"))
    assert is_trusted(read_judged(theirs))
    assert load({}).allow_read == ()


def test_link_to_the_users_configuration_is_not_trusted(tmp_path: Path) -> None:
    (tmp_path / "config/toolcell").mkdir(mode=0o755, parents=True)
    usual = written(tmp_path / "config/toolcell/runner.toml", 'allow_read = ["data"]\n')
    assert load({}).allow_read == (usual.parent / "data",)

    Path("runner.toml").symlink_to(usual)

    assert load({}).allow_read == (usual.parent / "data",)
    assert not is_trusted(read_judged(Path("runner.toml")))


def test_list_that_names_another_writer_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "own.toml", mode=0o644)
    assert read_judged(file).content == b""
    # Version 2: owner rw, user 12345 rw, group r, mask rw, other r; acl(5), linux/posix_acl_xattr.h.
    entries = [(1, 6, -1), (2, 6, 12345), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(file, "system.posix_acl_access", packed)

    with pytest.raises(UnsafeFile, match="can be written by other users"):
        read_judged(file)


def test_server_without_a_file_reads_none_later() -> None:
    started = load({})
    trusted_config('allow_env = ["A"]\n')

    assert load({}, config=started.config_source).allow_env == ()
    assert load({}).allow_env == ("A",)


def test_trusted_file_that_changes_is_not_reread() -> None:
    trusted_config("max_calls = 2\n")
    started = load({})
    trusted_config("max_calls = 3\n")
    assert load({}, config=started.config_source).max_calls == 3

    written(Path("runner.toml"), "max_calls = 4\n")

    again = load({}, config=started.config_source)
    assert again.max_calls == Settings().max_calls
    assert "max_calls is ignored" in again.ignored[0]


def test_named_file_that_changes_is_reread(tmp_path: Path) -> None:
    file = written(tmp_path / "named.toml", "max_calls = 2\n")
    started = load({}, config=file)
    written(file, "max_calls = 3\n")
    assert load({}, config=started.config_source).max_calls == 3

    file.chmod(0o666)

    with pytest.raises(UsageError, match="can be written by other users"):
        load({}, config=started.config_source)


def test_record_others_can_write_trusts_nothing() -> None:
    trusted_config('allow_env = ["A"]\n')
    record = trust_record()
    assert record is not None
    assert trusted_files()

    record.chmod(0o666)

    assert trusted_files() == {}
    assert load({}).allow_env == ()


def test_record_in_a_relative_state_folder_is_not_used(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    file = written(folder / "runner.toml", 'allow_env = ["A"]\n')
    monkeypatch.setenv("RUNNER_STATE_DIR", str(folder))
    trust([read_judged(file)])
    assert load({}).allow_env == ("A",)

    monkeypatch.setenv("RUNNER_STATE_DIR", ".")

    assert load({}).allow_env == ()


def test_home_with_a_relative_path_configures_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    planted = folder / ".config/toolcell"
    planted.mkdir(mode=0o755, parents=True)
    written(planted / "runner.toml", 'allow_env = ["A"]\n')
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("RUNNER_STORE", "none:")
    assert load({"state_dir": folder}).allow_env == ("A",)

    monkeypatch.setenv("HOME", ".")

    assert load({"state_dir": folder}).allow_env == ()


def test_other_files_are_trusted_alike(folder: Path) -> None:
    file = written(folder / "mcp.json", json.dumps({}))
    with pytest.raises(UsageError, match=f"is not trusted for its lendings: .*runner trust {file}"):
        read_trusted(file, "its lendings")

    trust([read_judged(file)])

    assert read_trusted(file, "its lendings") == b"{}"


def every_setting() -> Iterator[tuple[str, Any]]:
    for above, model in MODELS.items():
        yield from ((above + name, field) for name, field in model.model_fields.items())


def test_every_setting_widens_unless_it_is_known_to_narrow() -> None:
    assert {name for name, field in every_setting() if not widens_rights(field)} == NARROWING
    for name, _field in every_setting():
        leaf = tuple(name.replace("NAME", "x").split("."))
        assert widening(leaf, ["any"]) is (name not in NARROWING), name
    assert widening(("output_guard", "output_transformer"), "a:b")
    assert widening(("no", "port"), True)
    assert not widening(("allow_run",), [])
    assert not widening(("tools", "x", "allow_net"), [])


def test_new_setting_widens_until_it_is_declared() -> None:
    class New(BaseModel):
        undeclared: bool = Field(default=False)

    assert widens_rights(New.model_fields["undeclared"])
    assert NARROWS in Settings.model_fields["port"].metadata


def lists() -> dict[str, Any]:
    return {name: field for name, field in every_setting() if _is_list(field.annotation)}


def _is_list(annotation: object) -> bool:
    return get_origin(annotation) is tuple or any(map(_is_list, get_args(annotation)))


def rows() -> dict[str, tuple[str, str, str]]:
    """Return the table of lists: name, and its columns absent, empty and `*`."""
    table = DOCS.read_text().partition("## Lists\n")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if line.startswith("| `")
    ]
    return {cell[0].strip("`"): (cell[1], cell[2], cell[3]) for cell in cells}


def test_every_list_has_its_row_in_the_table() -> None:
    assert rows().keys() == lists().keys()


REQUIRED: Mapping[str, dict[str, Any]] = {
    "secrets.NAME.": {"file": "/f", "tools": ["t"]},
    "call_limits.NAME.": {"max_calls": 1},
}


def made(name: str, value: object) -> Any:
    """Return the validated value of a list setting, set in its model alone."""
    above, _, field = name.rpartition(".")
    above += "." if above else ""
    model = MODELS[above]
    return getattr(model.model_validate({**REQUIRED.get(above, {}), field: value}), field)


@pytest.mark.parametrize("name", sorted(lists()))
def test_empty_list_is_never_all(name: str) -> None:
    documented = rows()[name][1]
    empty: tuple[object, ...] = ([], "")
    for value in empty:
        if name == "secrets.NAME.command" and value == "":
            continue
        if documented.startswith("refused"):
            with pytest.raises(ValueError, match="at least 1 item"):
                made(name, value)
        else:
            assert made(name, value) == ()


@pytest.mark.parametrize("name", sorted(set(lists()) - {"secrets.NAME.command"}))
def test_star_is_all_or_refused_in_a_sentence(name: str) -> None:
    if not rows()[name][2].startswith("refused"):
        assert made(name, ["*"]) == ("*",)
        return
    with pytest.raises(ValueError, match=r"'\*'|\*: |https"):
        made(name, ["*"])


def test_empty_list_of_users_is_nobody() -> None:
    def has(users: object) -> bool:
        limit = {} if users is None else {"users": users}
        rule = SecretSettings.model_validate({"command": ["echo", "a-long-secret"], "tools": ["t"], **limit})
        return bool(Secrets.read({"KEY": rule}).of("t", "ann").values)

    assert [has(users) for users in (None, ["*"], ["ann"], ["bob"], [], "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    about = [LimitSettings(users=users, max_calls=1) for users in (("*",), ("ann",), ("bob",), ())]
    limits = {str(number): limit for number, limit in enumerate(about)}
    assert [one.name for one in counted(limits, tool="t", user="ann", whose="ann")] == ["0", "1"]


@pytest.mark.parametrize("how", ["file", "option", "variable"])
def test_empty_list_of_programs_is_none(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load({}).rights().may_run

    if how == "file":
        trusted_config("allow_run = []\n")
    if how == "variable":
        monkeypatch.setenv("RUNNER_ALLOW_RUN", "")

    assert not load({"allow_run": ""} if how == "option" else {}).rights().may_run


@pytest.mark.parametrize(
    ("general", "own", "may", "programs"),
    [
        ({}, {}, True, ()),
        ({"allow_run": ("git",)}, {}, True, ("git",)),
        ({"allow_run": ("git",)}, {"allow_run": ()}, False, ()),
        ({"allow_run": ("git",)}, {"allow_run": ("*",)}, True, ()),
        ({"allow_run": ()}, {}, False, ()),
        ({"allow_run": ()}, {"allow_run": ("git",)}, True, ("git",)),
        ({"allow_run": ()}, {"allow_run": ("*",)}, True, ()),
    ],
)
def test_list_of_a_tool_takes_the_place_of_the_general_one(
    general: Mapping[str, Any], own: Mapping[str, Any], may: bool, programs: tuple[str, ...]
) -> None:
    settings = Settings(**general, tools={"t": ToolSettings(**own)})

    assert (settings.rights("t").may_run, settings.rights("t").programs) == (may, programs)


def test_empty_variable_of_no_list_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_PORT", "")
    monkeypatch.setenv("RUNNER_USER", "")

    assert (load({}).port, load({}).user) == (8000, None)
