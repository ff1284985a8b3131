import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from support import trusted_config

from runner.contract.own_paths import OwnPaths
from runner.errors import UsageError
from runner.settings.approvals import ApprovalSettings
from runner.settings.auth import Auth
from runner.settings.execution import ToolSettings
from runner.settings.named_limits import LimitSettings
from runner.settings.resource_limits import LIMITS
from runner.settings.secrets import SecretSettings
from runner.settings.settings import Settings
from runner.settings.sources import SCHEMA, config_report, config_text, load, origins, variables
from runner.settings.trust import trust_record
from runner.settings.values import PrivatePath, is_open
from sandbox.deadlines import Deadlines

DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def _empty_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in variables():
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def documented() -> dict[str, str]:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \| ", DOCS.read_text(), re.MULTILINE)
    return {name: default.strip("`") for name, default in rows}


def test_flag_beats_environment_beats_file_beats_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trusted_config("port = 1\nmax_calls = 2\nopen_files = 300\n")
    monkeypatch.setenv("RUNNER_PORT", "10")
    monkeypatch.setenv("RUNNER_MAX_CALLS", "20")

    settings = load({"port": 100, "user": None})

    assert (settings.port, settings.max_calls, settings.open_files) == (100, 20, 300)
    assert settings.cpu_s == Settings().cpu_s
    where = origins(settings)
    assert (where["port"], where["max_calls"], where["open_files"], where["cpu_s"]) == (
        "flag",
        "environment RUNNER_MAX_CALLS",
        "runner.toml",
        "default",
    )


def test_named_file_replaces_runner_toml(tmp_path: Path) -> None:
    trusted_config("port = 1\n")
    other = tmp_path / "other.toml"
    other.write_text("port = 2\n")

    settings = load({}, config=other)

    assert settings.port == 2
    assert origins(settings)["port"] == str(other)


def test_a_named_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml does not exist"):
        load({}, config=tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    "line", ['homes = "/a\\u0000b"', 'store = "file:///a\\u0000"', 'allow_run = ["a\\u0000"]']
)
def test_a_zero_byte_in_a_file_is_refused_with_the_settings_name(line: str) -> None:
    trusted_config(line.replace("\\u0000", "_") + "\n")
    assert origins(load({}))[line.split()[0]] != "default"
    trusted_config(line + "\n")

    with pytest.raises(UsageError, match=rf"^runner\.toml, line 1: {line.split()[0]} has a zero byte in it"):
        load({})


def test_malformed_toml_is_refused_with_file_and_line() -> None:
    trusted_config("port = = 1\n")

    with pytest.raises(UsageError, match=r"runner\.toml cannot be read: .*line 1"):
        load({})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("prot = 1\n", "runner.toml, line 1: there is no setting prot; did you mean port?"),
        (
            '[auth]\nissuers = "x"\n',
            "runner.toml, line 2: there is no setting auth.issuers; did you mean issuer?",
        ),
        (
            "[tools.slow]\nmemory = 1\n",
            "runner.toml, line 2: there is no setting tools.slow.memory; did you mean memory_mb?",
        ),
        ("[zzz]\nqqq = 1\n", "runner.toml, line 1: there is no setting zzz; docs/settings.md lists them all"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(content: str, sentence: str) -> None:
    trusted_config(content)

    with pytest.raises(UsageError) as caught:
        load({})

    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("idle_workers", 5),
        ("s3_endpoint", "https://s3.example.com"),
        ("auth.gateway_key", "key.pem"),
        ("auth.token_endpoint", "https://issuer/token"),
        ("auth.jwks_uri", "https://issuer/jwks"),
    ],
)
def test_a_removed_setting_is_refused_with_its_replacement(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    trusted_config(f"{name} = {json.dumps(value)}\n")
    with pytest.raises(UsageError, match=f"the setting {name} was removed: "):
        load({})
    monkeypatch.setenv(f"RUNNER_{name.upper().replace('.', '__')}", str(value))
    with pytest.raises(UsageError, match=f"the setting {name} was removed: "):
        load({})


def test_unknown_variable_is_refused_with_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_MAX_CALL", "3")

    with pytest.raises(UsageError) as caught:
        load({})

    assert str(caught.value) == "variable RUNNER_MAX_CALL is not a setting; did you mean RUNNER_MAX_CALLS?"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "# a\n\nport = 1\nlog_format = 'jsn'\n",
            "line 4: 'jsn' will not do for log_format: .*; did you mean 'json'",
        ),
        ("auth.kind = 'jwt'\nauth.issuer = ''\n", "line 2: '' will not do for auth.issuer"),
        ("auth = { kind = 'none', issuers = 1 }\n", "line 1: there is no setting auth.issuers"),
        ("[tools.'a.b']\ncpu_s = 1\n[tools.c]\ncpu_s = 0\n", "line 4: 0 will not do for tools.c.cpu_s"),
        ("[call_limits.a]\nper = 'user'\n", "line 1: call_limits.a: it limits nothing"),
        ("[call_limits.a]\n", r"line 1: \[call_limits.a\] is empty; write what it limits"),
        ("[approvals.a]\n", r"line 1: \[approvals.a\] is empty; write what it holds"),
        ("\n[secrets.TOKEN]\nfile = 'x'\n", "line 2: secrets.TOKEN.tools: Field required"),
        ("port = 1\ns3_region = 'eu'\n", "line 2: the setting s3_region was removed: set AWS_DEFAULT_REGION"),
        ("port = 1\nmetrics_address = 'a:0'\nallow_net = '*'\n", "line 2: metrics_address has port 0"),
    ],
)
def test_fault_of_a_file_has_its_line(content: str, sentence: str) -> None:
    trusted_config(content)

    with pytest.raises(UsageError, match=f"^runner\\.toml, {sentence}"):
        load({})


def test_variables_for_single_tools_are_sent_to_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_TOOLS__SLOW__MEMORY_MB", "3")

    with pytest.raises(UsageError, match=r"set in runner\.toml, under \[tools\.NAME\]"):
        load({})


def test_variables_of_github_runner_are_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RUNNER_OS", "Linux")
    monkeypatch.setenv("RUNNER_TOOL_CACHE", "/opt/hostedtoolcache")

    assert load({}) == Settings()


def test_every_fault_is_one_sentence_that_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted_config('max_calls = 0\nlog_format = "xml"\n')
    monkeypatch.setenv("RUNNER_PORT", "abc")

    with pytest.raises(UsageError) as caught:
        load({"idle_timeout_s": -1})

    assert sorted(str(caught.value).splitlines()) == [
        "flag --timeout: -1 will not do for idle_timeout_s: input should be greater than 0",
        "runner.toml, line 1: 0 will not do for max_calls: input should be greater than 0",
        "runner.toml, line 2: 'xml' will not do for log_format: input should be 'text' or 'json'",
        "variable RUNNER_PORT: 'abc' will not do for port: "
        "input should be a valid integer, unable to parse string as an integer",
    ]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"store": "here"}, "file:///absolute/folder"),
        ({"store": "file://server/share"}, "file:///absolute/folder"),
        ({"store": "s3://b"}, "'b' is not a bucket name: one has 3 to 63 lower-case letters"),
        ({"store": "s3://My-Bucket"}, "'My-Bucket' is not a bucket name"),
        ({"store": "s3://bucket/a//b"}, "'a//b' is not a prefix: one has at most 200 letters"),
        ({"store": "s3://key:secret@bucket"}, "keys are given by AWS_ACCESS_KEY_ID and AWS_SECRET"),
    ],
)
def test_a_store_of_another_kind_is_refused(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        load(flags)


@pytest.mark.parametrize(
    ("auth", "sentence"),
    [
        ('kind = "static"', "needs auth.tokens_file"),
        ('tokens_file = "t.json"', 'auth.kind is "none"; set it to "static"'),
        ('issuer = "https://a"', 'auth.kind is "none"; set it to "jwt"'),
        ('kind = "jwt"\nissuer = "i"\naudience = "a"', "which needs auth.keys"),
        ('kind = "jwt"\nkeys = "https://a/jwks"\nissuer = "i"', "needs auth.issuer and auth.audience"),
        (
            'kind = "jwt"\nkeys = "http://a/jwks"\nissuer = "i"\naudience = "a"',
            "keys, logins and tokens go over https only",
        ),
        ('kind = "gateway"', "needs auth.gateway_addresses, or for a gateway with a certificate"),
        ('gateway_names = ["a"]', 'auth.kind is "none"; set it to "gateway"'),
        (
            'kind = "gateway"\ngateway_addresses = ["::1"]\ngateway_tls = "tls"',
            "auth.gateway_tls is given, and TLS with a gateway also needs auth.gateway_names",
        ),
        ('kind = "gateway"\ngateway_names = ["*.example.com"]', "one is compared as it is"),
        ('kind = "gateway"\ngateway_names = ["example.com:443"]', "neither a DNS name nor a URI"),
    ],
)
def test_auth_settings_that_do_not_belong_together_are_refused(auth: str, sentence: str) -> None:
    trusted_config(f"[auth]\n{auth}\n")

    with pytest.raises(UsageError, match=sentence):
        load({})


def test_gateway_tls_needs_no_address_and_hides_its_key() -> None:
    trusted_config(
        '[auth]\nkind = "gateway"\ngateway_tls = "tls"\n'
        'gateway_names = ["gateway.example.com", "spiffe://example.com/gateway"]\n'
    )

    settings = load({})

    here = Path.cwd()
    assert (settings.scheme, Settings().scheme) == ("https", "http")
    assert here / "tls" in settings.private_paths
    assert OwnPaths.of(settings).redact(f"{here}/tls/tls.key") == "{auth.gateway_tls}"


def test_keys_may_be_fetched_from_this_machine_without_https() -> None:
    auth = Auth(kind="jwt", keys="http://localhost:9000/jwks", issuer="i", audience="a")

    assert auth.keys == "http://localhost:9000/jwks"


def test_a_list_is_read_from_commas_and_from_a_toml_list(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted_config('allow_run = ["one", "two"]\n')
    monkeypatch.setenv("RUNNER_ALLOW_ENV", "LANG, TZ,")

    settings = load({})

    assert settings.allow_run == ("one", "two")
    assert settings.allow_env == ("LANG", "TZ")


def test_an_empty_variable_counts_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_USER", "")

    assert load({}).user is None


def test_nested_variables_join_the_table_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted_config('[auth]\nkind = "jwt"\nissuer = "file"\naudience = "a"\n')
    monkeypatch.setenv("RUNNER_AUTH__ISSUER", "environment")
    monkeypatch.setenv("RUNNER_AUTH__KEYS", "https://a/jwks")

    settings = load({})

    assert (settings.auth.issuer, settings.auth.audience) == ("environment", "a")
    assert origins(settings)["auth.issuer"] == "environment RUNNER_AUTH__ISSUER"
    assert origins(settings)["auth.audience"] == "runner.toml"


def test_relative_path_starts_from_folder_of_its_file(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "runner.toml").write_text('state_dir = "state"\nallow_read = "a, /b"\n')

    settings = load({"homes": "homes"}, config=folder / "runner.toml")

    assert settings.state_dir == folder / "state"
    assert settings.homes == tmp_path / "homes"
    assert settings.allow_read == (folder / "a", Path("/b"))


JWT = '[auth]\nkind = "jwt"\nkeys = "x"\nissuer = "i"\naudience = "a"'
LOGIN = '[auth]\nkind = "oidc"\nissuer = "https://issuer"\nclient_id = "c"\nclient_secret_file = "x"'


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ('homes = "x"', lambda settings: settings.homes),
        ('audit_dir = "x"', lambda settings: settings.audit_dir),
        ('fleet_key_file = "x"', lambda settings: settings.fleet_key_file),
        ('allow_write = ["x"]', lambda settings: settings.allow_write[0]),
        ('[tools.t]\nallow_read = ["x"]', lambda settings: settings.tools["t"].allow_read[0]),
        ('[secrets.S]\nfile = "x"\ntools = ["t"]', lambda settings: settings.secrets["S"].file),
        ('[auth]\nkind = "static"\ntokens_file = "x"', lambda settings: settings.auth.tokens_file),
        (LOGIN, lambda settings: settings.auth.client_secret_file),
        (JWT, lambda settings: settings.auth.keys),
    ],
)
def test_every_path_setting_starts_from_folder_of_its_file(
    tmp_path: Path, lines: str, found: Callable[[Settings], Path]
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "runner.toml").write_text(lines + "\n")

    settings = load({}, config=folder / "runner.toml")

    assert found(settings) == folder / "x"


def test_default_folders_follow_xdg_and_ignore_relative_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "/data with space")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")

    settings = load({})

    assert settings.store == "file:///data%20with%20space/toolcell/store"
    assert settings.store_path == Path("/data with space/toolcell/store")
    assert settings.state_dir == tmp_path / ".local/state/toolcell"


def test_settings_cannot_be_changed() -> None:
    settings = Settings()

    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


def test_tool_overrides_deadlines_and_memory() -> None:
    settings = Settings(
        idle_timeout_s=20, memory_mb=100, tools={"slow": ToolSettings(total_timeout_s=900, memory_mb=300)}
    )

    assert settings.deadlines("slow") == Deadlines(idle_s=20, total_s=900)
    assert settings.deadlines("other") == Deadlines(idle_s=20, total_s=600)
    assert settings.limits("slow").memory_bytes == 300 * 1024**2
    assert settings.limits().memory_bytes == 100 * 1024**2


def test_every_limit_is_set_per_tool_and_widest_covers_all() -> None:
    own = {facts.setting: 100 * number for number, facts in enumerate(LIMITS.values(), start=1) if facts.own}
    tools = {"small": ToolSettings.model_validate(own), "large": ToolSettings(memory_mb=10**6)}

    settings = Settings(tools=tools)
    small, large = settings.limits("small"), settings.limits("large")

    assert {name: getattr(small, name) for name, facts in LIMITS.items() if facts.own} == {
        name: own[facts.setting] * facts.factor for name, facts in LIMITS.items() if facts.own
    }
    widest = settings.widest_limits()
    assert [
        name
        for limits in (small, large, settings.limits())
        for name in LIMITS
        if getattr(limits, name) > getattr(widest, name)
    ] == []
    assert settings.widest_limits().memory_bytes == large.memory_bytes


def test_a_call_may_have_what_one_of_its_processes_may_have() -> None:
    assert Settings(memory_mb=9000).limits().call_memory_bytes == 9000 * 1024**2


def test_a_total_limit_below_the_idle_limit_ends_silence_too() -> None:
    assert Settings(total_timeout_s=5).deadlines() == Deadlines(idle_s=5, total_s=5)


def test_private_paths_include_state_store_tokens_and_config(tmp_path: Path) -> None:
    config = tmp_path / "my.toml"
    config.write_text(
        'state_dir = "s"\nstore = "file:///st"\n[auth]\nkind = "static"\ntokens_file = "t.json"\n'
    )

    private = load({}, config=config).private_paths

    record = tmp_path / "state/toolcell/trusted.json"
    state = tmp_path / "s"
    packages = tmp_path / "s-packages"
    assert set(private) == {state, packages, Path("/st"), tmp_path / "t.json", config, record}


def leaves(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield each setting that is not a table, by its dotted name."""
    for name, field in model.model_fields.items():
        inner = list(models_in(field.annotation))
        between = ".NAME." if get_origin(field.annotation) is Mapping else "."
        yield from (leaf for each in inner for leaf in leaves(each, f"{above}{name}{between}"))
        if not inner:
            yield f"{above}{name}", field


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def names_a_path(annotation: Any) -> bool:
    return annotation is Path or any(map(names_a_path, get_args(annotation)))


OPEN = {"homes", "allow_read", "allow_write", "tools.NAME.allow_read", "tools.NAME.allow_write"}
"""Homes have rules of their own, and lent paths are readable by design."""


def test_every_path_setting_is_private_unless_listed_as_open() -> None:
    paths = {name: field for name, field in leaves(Settings) if names_a_path(field.annotation)}
    values = {name: Path("/secret", name) for name in paths if ".NAME." not in name}
    top: dict[str, Any] = {name: path for name, path in values.items() if "." not in name}
    auth: dict[str, Any] = {
        name.removeprefix("auth."): path for name, path in values.items() if name.startswith("auth.")
    }

    settings = Settings.model_construct(
        **top,
        auth=Auth.model_construct(**auth),
        secrets={"KEY": SecretSettings(file=Path("/secret/of-a-tool"), tools=("t",))},
        tools={"t": ToolSettings(allow_read=(Path("/lent"),))},
    )

    assert {name for name, field in paths.items() if is_open(field)} == OPEN
    hidden = {path for name, path in values.items() if name not in OPEN}
    derived = {Path("/secret/of-a-tool"), settings.store_path, settings.packages_path, trust_record()}
    assert set(settings.private_paths) == hidden | derived
    assert {"fleet_key_file", "audit_dir", "auth.gateway_tls"} < paths.keys()


def test_new_path_setting_is_private_by_default() -> None:
    class More(Settings):
        further_key_file: PrivatePath | None = None

    assert Path("/a.key") not in Settings().private_paths
    assert Path("/a.key") in More(further_key_file=Path("/a.key")).private_paths


def test_a_setting_whose_name_says_that_it_is_a_file_is_a_path() -> None:
    named = [name for name, _field in leaves(Settings) if re.search(r"(file|dir|folder|path)$", name)]
    paths = [name for name, field in leaves(Settings) if names_a_path(field.annotation)]

    assert {"auth.tokens_file", "secrets.NAME.file", "audit_dir"} <= set(named)
    assert [name for name in named if name not in paths] == []


def test_the_report_names_every_setting_with_value_and_origin() -> None:
    trusted_config("[tools.slow]\nmemory_mb = 3\n")

    report = config_report(load({"user": "alice"}))

    assert report["user"] == {"value": "alice", "origin": "flag"}
    assert report["tools.slow.memory_mb"] == {"value": 3, "origin": "runner.toml"}
    assert report["homes"] == {"value": "/tmp", "origin": "default"}
    assert set(report) == {name for name in documented() if "NAME" not in name} | {"tools.slow.memory_mb"}


def test_neither_the_report_nor_an_error_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_AUTH__KIND", "jwt")
    monkeypatch.setenv("RUNNER_AUTH__ISSUER", "i")
    monkeypatch.setenv("RUNNER_AUTH__AUDIENCE", "a")
    monkeypatch.setenv("RUNNER_AUTH__KEYS", "https://u:hunter2hunter2@a/jwks?token=hunter2hunter2")
    monkeypatch.setenv("RUNNER_REDIS_URL", "rediss://:hunter2hunter2@a/0")

    shown = config_text(load({}))
    monkeypatch.setenv("RUNNER_AUTH__KIND", "static")
    with pytest.raises(UsageError) as caught:
        load({})

    assert "auth.keys" in shown
    assert "hunter2" not in shown + str(caught.value)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        ('secrets.API_KEY = "hunter2hunter2"', "the value given will not do for secrets.API_KEY"),
        ('[secrets.API_KEY]\nvalue = "hunter2hunter2"\ntools = ["t"]', "no setting secrets.API_KEY.value"),
        ('[secrets.API_KEY]\nfile = "f"\ncommand = ["x", "hunter2hunter2"]\ntools = ["t"]', "one of them"),
        ('[secrets.API_KEY]\ncommand = ["x", "hunter2hunter2"]', "secrets.API_KEY.tools: "),
        ('[secrets.RUNNER_KEY]\nfile = "f"\ntools = ["t"]', "RUNNER_KEY means something else"),
        ('[secrets.LD_PRELOAD]\nfile = "f"\ntools = ["t"]', "LD_PRELOAD means something else"),
        ('[secrets."A-B"]\nfile = "f"\ntools = ["t"]', "'A-B' is not a variable name"),
    ],
)
def test_wrong_secret_table_is_refused_without_its_value(table: str, error: str) -> None:
    trusted_config(table)

    with pytest.raises(UsageError) as caught:
        load({})

    assert error in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_report_redacts_arguments_of_secret_commands() -> None:
    trusted_config(
        '[secrets.A]\nfile = "a.key"\ntools = ["t"]\n'
        '[secrets.B]\ncommand = ["vault", "hunter2hunter2"]\ntools = ["t"]\nusers = ["ann"]\n'
    )

    settings = load({})

    report = {name: row["value"] for name, row in config_report(settings).items() if "secrets" in name}
    assert report == {
        "secrets.A.file": str(Path("a.key").absolute()),
        "secrets.A.tools": ["t"],
        "secrets.B.command": ["vault", "(redacted)"],
        "secrets.B.tools": ["t"],
        "secrets.B.users": ["ann"],
    }
    assert "hunter2" not in config_text(settings)
    assert Path("a.key").absolute() in settings.private_paths


def test_the_text_report_says_value_and_origin_on_one_line() -> None:
    text = config_text(load({"allow_env": ["A", "B"]}))

    assert re.search(r"^allow_env +\= A, B +\(flag\)$", text, re.MULTILINE)
    assert re.search(r"^user +\= \(not set\) +\(default\)$", text, re.MULTILINE)


def test_every_setting_is_documented_and_nothing_else_is() -> None:
    """Source: S4-100."""
    tables = {f"tools.NAME.{name}" for name in ToolSettings.model_fields}
    tables |= {f"call_limits.NAME.{name}" for name in LimitSettings.model_fields}
    tables |= {f"approvals.NAME.{name}" for name in ApprovalSettings.model_fields}
    tables |= {f"secrets.NAME.{name}" for name in SecretSettings.model_fields}
    fields = {".".join(leaf) for leaf in variables().values()}

    assert set(documented()) == fields | tables


def test_page_and_schema_are_what_the_declarations_make() -> None:
    """Source: S1-12, S1-14 and S4-104."""
    script = DOCS.parents[1] / "scripts" / "settings"

    checked = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('port = 1\n[tools."a*"]\nmemory_mb = 3\n[output_guard]\nmax_observation_chars = 20\n', None),
        ("prot = 1\n", "prot"),
        ("[tools.slow]\nmax_calls = 1\n", "max_calls"),
        ('log_format = "xml"\n', "xml"),
    ],
)
def test_schema_and_settings_agree(content: str, fault: str | None) -> None:
    schema = json.loads(SCHEMA.read_text())
    trusted_config(content)

    found = [error.message for error in Draft202012Validator(schema).iter_errors(tomllib.loads(content))]

    if fault is None:
        load({})
        assert found == []
    else:
        assert fault in found[0]
        with pytest.raises(UsageError, match=fault):
            load({})


def test_every_setting_has_a_description() -> None:
    models = (Settings, Auth, ToolSettings, SecretSettings, LimitSettings)

    assert [n for model in models for n, field in model.model_fields.items() if not field.description] == []
