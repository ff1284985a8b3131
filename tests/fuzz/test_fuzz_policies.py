"""Policies and settings: they survive their way to the sandbox, and invalid ones are refused in words."""

import dataclasses
import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from fuzz_worker import in_words
from hypothesis import example, given
from hypothesis import strategies as st
from result_fakes import json_values

from runner.errors import UsageError
from runner.settings.settings import Settings
from runner.settings.sources import config_report, config_text, load
from sandbox.denials.paths import PathRules
from sandbox.errors import FrameError
from sandbox.frames import FrameKind, decode, encode
from sandbox.policy import Limits, Policy

pytestmark = pytest.mark.release

FOLDER = TemporaryDirectory(prefix="toolcell-fuzz-")
TOP = Path(FOLDER.name)

# A world small enough to ask of each path in it.
_LEVELS = ("a", "b", "a/b", "a/b/c", "ab", "b/a")
UNIVERSE = tuple(Path("/") / level for level in _LEVELS)
_some_paths = st.lists(st.sampled_from(UNIVERSE), max_size=3).map(tuple)
_positive = st.integers(1, 2**62)
_limits = st.builds(Limits, **{item.name: _positive for item in dataclasses.fields(Limits)})
policies = st.builds(
    Policy,
    home=st.none() | st.sampled_from(UNIVERSE),
    scratch=st.none() | st.sampled_from(UNIVERSE),
    read=_some_paths,
    homes=_some_paths,
    list_only=_some_paths,
    programs=st.booleans(),
    reach=st.lists(st.tuples(st.sampled_from(("10.0.0.1", "::1")), st.integers(0, 65535)), max_size=2).map(
        tuple
    ),
    environment=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
    limits=_limits,
    uid=st.none() | st.integers(1, 2**32 - 2),
    namespaces=st.booleans(),
    hidden=_some_paths,
    guard=st.booleans(),
    without=st.lists(st.sampled_from(("landlock", "seccomp")), max_size=2, unique=True).map(tuple),
)


@given(policies)
def test_a_policy_survives_its_way_to_the_sandbox(policy: Policy) -> None:
    body = encode(FrameKind.ZYGOTE, policy.to_json())[5:]

    came = decode(body)

    assert isinstance(came, dict)
    assert Policy.from_json(came) == policy


@given(
    policies, st.lists(st.tuples(st.integers(0, 20), json_values), max_size=4), st.sets(st.integers(0, 20))
)
@example(Policy(), [(8, {"memory_bytes": 1e308})], set())
def test_invalid_policy_is_refused_as_value_error(
    policy: Policy, changed: list[tuple[int, object]], missing: set[int]
) -> None:
    data = policy.to_json()
    keys = sorted(data)
    for number, value in changed:
        data[keys[number % len(keys)]] = value
    for number in missing:
        data.pop(keys[number % len(keys)], None)

    try:
        made = Policy.from_json(data)
    except ValueError as error:
        in_words(error)
        return

    assert Policy.from_json(json.loads(json.dumps(made.to_json()))) == made


@given(policies)
def test_every_policy_has_rules_that_explain_it(policy: Policy) -> None:
    rules = PathRules.of(policy)

    assert rules.home == policy.home
    assert set(policy.read) <= set(rules.readable)
    assert rules.resolved().resolved() == rules.resolved()


_FIELDS = sorted(Settings.model_fields)
_values = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.booleans(),
    st.text(max_size=20),
    st.sampled_from(
        ("1900000000-1900065535", "s3://bucket/x", "file:///tmp/x", "https://[", "http://a:b", "a,b")
    ),
    st.sampled_from(("https://x:99999999/", "/tmp", "~", "~nobody/x", "\0", "0", "-1", "1e999", "nan")),
    st.lists(st.text(max_size=5), max_size=3),
    st.dictionaries(
        st.sampled_from(("kind", "x", "memory_mb", "presets", "jwks_uri")), st.integers(), max_size=2
    ),
)
_overrides = st.dictionaries(st.sampled_from(_FIELDS) | st.text(max_size=6), _values, max_size=5)
_NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
_likely = st.dictionaries(st.sampled_from(_NUMBERS), st.integers(1, 2000) | st.floats(0.1, 1e6), max_size=4)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float() | int():
            return repr(value)
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
        case _:
            # JSON's strings are TOML's, but for the escape of what is beyond 16 bits and of DEL.
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


@given(_overrides | _likely, st.none() | st.none() | st.binary(max_size=30), _overrides | _likely)
def test_settings_are_read_or_refused_in_words(
    in_file: dict[str, Any], garbage: bytes | None, flags: dict[str, Any]
) -> None:
    text = "\n".join(f"{_toml(key)} = {_toml(value)}" for key, value in in_file.items())
    config = TOP / "runner.toml"
    config.write_bytes(text.encode(errors="surrogatepass") if garbage is None else garbage)
    base = {"state_dir": str(TOP / "state"), "store": TOP.as_uri()}

    try:
        settings = load({**base, **flags}, config=config)
    except UsageError as error:
        in_words(error)
        return

    json.dumps(config_report(settings)).encode()
    assert config_text(settings)
    assert settings.limits().memory_bytes > 0
    assert 0 < settings.deadlines("x").idle_s <= settings.deadlines("x").total_s
    assert all(path.is_absolute() for path in settings.private_paths)
    policy = Policy(homes=(settings.homes,), limits=settings.limits(), hidden=settings.private_paths)
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


@given(st.dictionaries(st.sampled_from(_FIELDS), st.text(max_size=20), max_size=4))
@example({"homes": "~nobody-is-called-so"})
@example({"auth": "00"})
@example({"tools": ":"})
def test_variables_are_read_or_refused_in_words(values: dict[str, str]) -> None:
    named = {f"RUNNER_{name.upper()}": value for name, value in values.items()}
    usable = {name: value for name, value in named.items() if "\0" not in value and _encodes(value)}
    before = dict(os.environ)
    os.environ.update(usable)
    try:
        load({"state_dir": str(TOP / "state"), "store": TOP.as_uri()}, config=None)
    except UsageError as error:
        in_words(error)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@given(st.binary(max_size=200))
def test_garbage_order_is_a_frame_or_value_error(body: bytes) -> None:
    try:
        value = decode(body)
    except FrameError:
        return
    if isinstance(value, dict):
        try:
            Policy.from_json(value)
        except ValueError as error:
            in_words(error)


PROPERTIES = tuple(value for name, value in list(globals().items()) if name.startswith("test_"))
