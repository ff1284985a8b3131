"""Sources of settings, flags > `RUNNER_*` variables > runner.toml > defaults, and the origin of each value.

Source: architecture, decision "Settings"; `docs/cli.md`, `runner config`.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from runner.errors import UsageError
from runner.formats.nearest import nearest
from runner.settings.approvals import ApprovalSettings
from runner.settings.auth import Auth
from runner.settings.execution import ToolSettings
from runner.settings.lendable import OUR_VARIABLES
from runner.settings.named_limits import LimitSettings
from runner.settings.secrets import SecretSettings
from runner.settings.settings import Settings, option_of
from runner.settings.trust import (
    CONFIG_FILE,
    CONFIG_VARIABLE,
    ConfigFile,
    config_file,
    how_to_trust,
    quoted,
    reread,
)
from runner.settings.values import holds, split_at_commas, widens_rights
from runner.system.logging_setup import redact

__all__ = [
    "SCHEMA",
    "config_report",
    "config_text",
    "load",
    "needing_trust",
    "origins",
    "shown",
    "variables",
    "widening",
    "worded",
]

SCHEMA = Path(__file__).with_name("runner.schema.json")
"""The JSON Schema of runner.toml, which editors read; `scripts/settings` writes it."""

_MOST_KEY_PARTS = 100
# An unclosed string matches too, so that no input takes quadratic time.
_QUOTED = re.compile(r"""'[^']*(?:'|$)|"(?:[^"\\]|\\.?)*+(?:"|$)""")

# Variables that GitHub's runner sets for itself in every job; not our settings.
_FOREIGN = frozenset(
    OUR_VARIABLES + name
    for name in (
        "ALLOW_RUNASROOT", "ARCH", "DEBUG", "ENVIRONMENT", "NAME", "OS", "PERFLOG", "TEMP", "TOOL_CACHE",
        "TRACKING_ID", "WORKSPACE",
    )
)  # fmt: skip
_REDACTED = "(redacted)"
_FOLDER_OF_TLS = "put it into a folder as {}, and set auth.gateway_tls to that folder"
_METADATA = "set auth.issuer to the provider, whose metadata names it (docs/serving.md)"
_KEY_FILE = "name a file of keys in AWS_SHARED_CREDENTIALS_FILE (docs/operating.md)"
_FIXED = "its value is fixed; leave it out"
# Settings of 0.1.0 that `CHANGELOG.md` lists as removed, with their replacements.
_REMOVED: Mapping[str, str] = {
    "auth.authorization_endpoint": _METADATA,
    "auth.client_secret": "write it into a file of mode 0600, and set auth.client_secret_file",
    "auth.gateway_ca": _FOLDER_OF_TLS.format("ca.crt"),
    "auth.gateway_certificate": _FOLDER_OF_TLS.format("tls.crt"),
    "auth.gateway_key": _FOLDER_OF_TLS.format("tls.key"),
    "auth.introspection_endpoint": _METADATA,
    "auth.jwks_uri": "for jwt set auth.keys to it; oauth_proxy reads it from the metadata of auth.issuer",
    "auth.public_key": "write it into a file of mode 0600, and set auth.keys to the file",
    "auth.token_endpoint": _METADATA,
    "engine": "set redis_url; calls are executed by a fleet where it is set, and by this machine where not",
    "files_block": "set extras, which has the same values; for off, resources",
    "idle_workers": _FIXED,
    "max_answer_bytes": "set max_payload_bytes, which bounds answers and requests",
    "max_message_bytes": _FIXED,
    "max_request_bytes": "set max_payload_bytes, which bounds requests and answers",
    "s3_access_key": _KEY_FILE,
    "s3_endpoint": "set AWS_ENDPOINT_URL_S3, or endpoint_url in ~/.aws/config (docs/operating.md)",
    "s3_region": "set AWS_DEFAULT_REGION, or region in ~/.aws/config",
    "s3_secret_key": _KEY_FILE,
    "shrink_pictures": "install toolcell[pictures], with which pictures are made to fit a message",
    "tools.NAME.max_answer_bytes": "set max_payload_bytes for all tools",
}
_SECRETS = "secrets"
# Settings that people write above the tables by mistake; they belong in [output_guard].
_GUARD_NAMES = frozenset(
    {
        "output_transformer", "artifact_fields", "tool_fields", "binary_detection", "max_inline_size",
        "max_observation_chars", "auto_artifact_large_content", "auto_artifact_enabled",
    }
)  # fmt: skip
_USUAL_HOMES = Path("/tmp")  # noqa: S108 - the default, where others have files, too
_MOST_NAMED = 12
_OF_GUARD = "; it stands under [output_guard]"
# Type of the entries that the operator names in each such table.
_BY_NAME: Mapping[str, type[BaseModel]] = {
    "tools": ToolSettings,
    "call_limits": LimitSettings,
    "approvals": ApprovalSettings,
    _SECRETS: SecretSettings,
}
# Tables that only the file can have.
_TABLES = (*_BY_NAME, "output_guard")

Leaf = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """One value, its origin for `runner config`, and its place for errors.

    Attributes:
        value: The value.
        origin: `flag`, `environment RUNNER_X` or the name of the file.
        label: The option or variable; for a value of the file, the name of the file.
        file: The file.
    """

    value: object
    origin: str
    label: str
    file: ConfigFile | None = None

    def place(self, leaf: Leaf) -> str:
        """Return the beginning of a sentence about a key: the label, and the line of a file."""
        return f"{self.label}: " if self.file is None else self.file.place(*leaf)


def load(
    flags: Mapping[str, object],
    *,
    config: Path | ConfigFile | None = None,
    label: Callable[[str], str] = lambda name: f"flag {option_of(name)}",
) -> Settings:
    """Return the effective settings.

    `Settings.ignored` describes values that do not apply because their file is not trusted.

    Args:
        flags: Settings given on the command line or by a program, by field name; None means not given.
        config: The file of `--config`, or the file that a process was started with, to be read again; by
            default the one that `runner.settings.trust.config_file` finds.
        label: Returns the origin of one of `flags` for error messages.

    Raises:
        UsageError: A value, a key or the file is wrong; one line for each fault.
    """
    file = reread(config) if isinstance(config, ConfigFile) else config_file(config)
    of_file, ignored = _applicable(file, _from_file(file))
    of_flags: dict[Leaf, _Value] = {
        (name,): _Value(value=value, origin="flag", label=label(name))
        for name, value in flags.items()
        if value is not None
    }
    values = {**of_file, **_from_environment(), **of_flags}
    faults = list(_unknown_variables())
    try:
        settings = Settings.model_validate(_nested({leaf: item.value for leaf, item in values.items()}))
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise UsageError("\n".join([*faults, *(_sentence(detail, values) for detail in details)])) from None
    if faults:
        raise UsageError("\n".join(faults))
    if file.path is not None and settings.homes != _USUAL_HOMES and file.path.is_relative_to(settings.homes):
        raise UsageError(f"{quoted(file.path)} lies among the homes of users of tools; move it elsewhere")
    # The output guard's section is checked when the guard is created, and its errors name lines.
    settings._file = file if settings.output_guard else replace(file, content=None)
    settings._ignored = (*file.notes, *ignored)
    settings._origins = {".".join(leaf): item.origin for leaf, item in values.items()}
    return settings


def origins(settings: Settings) -> dict[str, str]:
    """Return the origin of each setting: `flag`, `environment RUNNER_X`, the file's name or `default`."""
    tables = _flat(settings.model_dump(include=set(_TABLES), exclude_defaults=True))
    names = [".".join(leaf) for leaf in (*variables().values(), *(leaf for leaf, _ in tables))]
    return {name: settings._origins.get(name, "default") for name in names}


def config_report(settings: Settings) -> dict[str, dict[str, object]]:
    """Return each effective setting with its origin, JSON-serialisable, secrets redacted."""
    values = {".".join(leaf): _unsaid(leaf, value) for leaf, value in _flat(settings.model_dump())}
    return {
        name: {"value": shown(values.get(name)), "origin": origin}
        for name, origin in origins(settings).items()
    }


def config_text(settings: Settings) -> str:
    """Return `config_report` as aligned lines `name = value  (origin)`."""
    rows = [(name, worded(row["value"]), row["origin"]) for name, row in config_report(settings).items()]
    name_width = max(len(name) for name, _, _ in rows)
    value_width = min(48, max(len(value) for _, value, _ in rows))
    return "\n".join(
        f"{name:<{name_width}} = {value:<{value_width}}  ({origin})" for name, value, origin in rows
    )


def variables() -> dict[str, Leaf]:
    """Return every environment variable of a setting, with the field it sets."""
    plain = [(name,) for name in Settings.model_fields if name not in ("auth", *_TABLES)]
    leaves = (*plain, *(("auth", name) for name in Auth.model_fields))
    return {OUR_VARIABLES + "__".join(leaf).upper(): leaf for leaf in leaves}


def _unsaid(leaf: Leaf, value: object) -> object:
    """Redact the arguments of an operator's command, since one of them may be a key."""
    if leaf[0] != _SECRETS or leaf[-1] != "command" or not isinstance(value, tuple) or not value[1:]:
        return value
    return [value[0], _REDACTED]


def _from_environment() -> dict[Leaf, _Value]:
    texts = {variable.upper(): value for variable, value in os.environ.items()}
    return {
        # An empty variable counts as not given; for a list it is the empty list.
        leaf: _Value(value=texts[name] or (), origin=f"environment {name}", label=f"variable {name}")
        for name, leaf in variables().items()
        if texts.get(name) or (name in texts and _is_of(leaf, tuple))
    }


def _unknown_variables() -> Iterator[str]:
    known = variables()
    for variable in sorted(os.environ):
        name = variable.upper()
        if not name.startswith(OUR_VARIABLES) or name in known or name in _FOREIGN or name == CONFIG_VARIABLE:
            continue
        setting = name.removeprefix(OUR_VARIABLES).lower().replace("__", ".")
        table = next((table for table in _TABLES if setting.startswith(table)), None)
        if table is not None:
            shown_table = f"{table}.NAME" if table in _BY_NAME else table
            yield f"variable {variable}: this is set in {CONFIG_FILE}, under [{shown_table}]"
        elif setting in _REMOVED:
            yield f"variable {variable}: the setting {setting} was removed: {_REMOVED[setting]}"
        else:
            yield f"variable {variable} is not a setting{_nearest(name, known)}"


def _from_file(file: ConfigFile) -> dict[Leaf, _Value]:
    if file.path is None or file.content is None:
        return {}
    path, label = file.path, quoted(file.label)
    try:
        text = file.content.decode()
        # tomllib takes quadratic time in the number of parts of a key: 16,000 parts take seven seconds.
        for number, line in enumerate(text.splitlines(), start=1):
            if _QUOTED.sub("", line).count(".") > _MOST_KEY_PARTS:
                raise UsageError(
                    f"{label}, line {number}: a key has more than {_MOST_KEY_PARTS} parts; shorten it"
                )
        read = tomllib.loads(text)
        leaves = dict(_flat(read))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"configuration file {label} cannot be read: {error}") from error
    except RecursionError:
        raise UsageError(f"configuration file {label} cannot be read: it nests too deep") from None
    for table, cure in (
        ("approvals", 'what it holds, such as tools = ["*"] for every call'),
        ("call_limits", "what it limits, such as max_calls = 1"),
    ):
        rules = read.get(table)
        for name in [name for name, rule in rules.items() if rule == {}] if isinstance(rules, dict) else ():
            # A table without a key has no leaf: it would be dropped, and limit or hold no call at all.
            raise UsageError(f"{file.place(table, name)}[{table}.{quoted(name)}] is empty; write {cure}")
    values = {leaf: _beside(path, leaf, value) for leaf, value in leaves.items()}
    for leaf, value in values.items():
        # The C library ends a path or name at a zero byte.
        if _has_zero(value):
            name = quoted(".".join(leaf))
            raise UsageError(f"{file.place(*leaf)}{name} has a zero byte in it; take \\u0000 out")
    return {leaf: _Value(value=value, origin=label, label=label, file=file) for leaf, value in values.items()}


def _applicable(file: ConfigFile, values: dict[Leaf, _Value]) -> tuple[dict[Leaf, _Value], tuple[str, ...]]:
    """Return the values of a file that apply, and a sentence naming those ignored for lack of trust."""
    if file.path is None or file.is_trusted:
        return values, ()
    left_out = [leaf for leaf, item in values.items() if widening(leaf, item.value)]
    if not left_out:
        return values, ()
    names = [quoted(".".join(leaf)) for leaf in left_out[:_MOST_NAMED]]
    more = len(left_out) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    verb = "is" if len(left_out) == 1 else "are"
    sentence = f"{quoted(file.path)} is not trusted, so {listed} {verb} ignored: {how_to_trust(file.path)}"
    return {leaf: item for leaf, item in values.items() if leaf not in left_out}, (sentence,)


def widening(leaf: Leaf, value: object) -> bool:
    """Return whether a value of a configuration file can widen rights.

    A default value cannot, since it changes nothing; nor can an empty list of rights.
    """
    if leaf[-1].startswith("allow_") and value == []:
        return False
    match leaf:
        case (name,):
            field = Settings.model_fields.get(name)
        case ("auth", name):
            field = Auth.model_fields.get(name)
        case (table, _, name) if table in _BY_NAME:
            # A value for one tool takes precedence over options and variables.
            return widens_rights(_BY_NAME[table].model_fields.get(name))
        case _:
            return True
    is_default = field is not None and type(value) in (bool, int, float, str) and value == field.default
    return widens_rights(field) and not is_default


def needing_trust(file: ConfigFile) -> dict[str, object]:
    """Return the settings of a file that apply only if it is trusted, without the values of keys.

    Raises:
        UsageError: The file cannot be read as TOML.
    """
    return {
        ".".join(leaf): _REDACTED if _is_of(leaf, SecretStr) else shown(item.value)
        for leaf, item in _from_file(file).items()
        if widening(leaf, item.value)
    }


def _has_zero(value: object) -> bool:
    if isinstance(value, list):
        return any(map(_has_zero, value))
    return "\0" in (str(value) if isinstance(value, str | Path) else "")


def _beside(config: Path, leaf: Leaf, value: object) -> object:
    # A relative path in a file is relative to the file, not to the current folder.
    if not _is_of(leaf, Path):
        return value
    if _is_of(leaf, tuple):
        value = split_at_commas(value)
    return [_below(config, item) for item in value] if isinstance(value, list) else _below(config, value)


def _below(config: Path, value: object) -> object:
    if not isinstance(value, str) or value.startswith("~") or "://" in value:
        return value
    return config.absolute().parent / value


def _flat(tree: Mapping[str, Any], above: Leaf = ()) -> Iterator[tuple[Leaf, object]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, (*above, key))
        else:
            yield (*above, key), value


def _nested(leaves: Mapping[Leaf, object]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for (*above, last), value in leaves.items():
        branch = tree
        for key in above:
            below = branch.setdefault(key, {})
            if not isinstance(below, dict):
                below = branch[key] = {}
            branch = below
        branch[last] = value
    return tree


def _sentence(detail: ErrorDetails, values: Mapping[Leaf, _Value]) -> str:
    leaf = tuple(str(part) for part in detail["loc"])
    name = ".".join(leaf)
    tables = [leaf[:end] for end in range(len(leaf), 0, -1)]
    item = next((values[table] for table in tables if table in values), None)
    # An unknown or missing key has no value; another key of its table gives the place.
    beside = (one for table in tables for key, one in values.items() if key[: len(table)] == table)
    placed = item or next(beside, None)
    where = placed.place(leaf) if placed else ""
    if detail["type"] == "extra_forbidden":
        instead = _REMOVED.get(f"{leaf[0]}.NAME.{leaf[-1]}" if leaf[0] in _BY_NAME else name)
        if instead is not None:
            return f"{where}the setting {name} was removed: {instead}"
        suggestion = _OF_GUARD if leaf[0] in _GUARD_NAMES else _nearest(leaf[-1], _siblings(leaf))
        return f"{where}there is no setting {name}{suggestion}"
    reason = str(detail.get("ctx", {}).get("error", detail["msg"]))
    if item is None:
        # Of several incompatible settings, the first given one determines the place.
        named = name or next((word for word in re.findall(r"[a-z0-9_]+", reason) if (word,) in values), "")
        placed = placed or values.get((named,))
        place = placed.place(leaf or (named,)) if placed is not None and placed.file is not None else ""
        return f"{place}{name}: {reason}" if name and name not in reason else f"{place}{reason}"
    # A misspelt table of a secret may contain the secret itself.
    is_hidden = _is_of(leaf, SecretStr) or leaf[0] == _SECRETS
    value = "the value given" if is_hidden else repr(shown(item.value))
    near: list[str] = []
    if detail["type"] == "literal_error" and not is_hidden:
        near = nearest(str(item.value), re.findall(r"'([^']*)'", reason), most=1, least=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{where}{value} will not do for {name}: {reason[:1].lower()}{reason[1:]}{hint}"


def _siblings(leaf: Leaf) -> Mapping[str, FieldInfo]:
    """Return all settings in the table of a setting."""
    if len(leaf) == 1:
        return Settings.model_fields
    table = Auth if leaf[0] == "auth" else _BY_NAME.get(leaf[0], Settings)
    return table.model_fields


def _is_of(leaf: Leaf, kind: type) -> bool:
    """Return whether the value of a setting is of a type, or has parts of it."""
    field = _siblings(leaf).get(leaf[-1])
    return field is not None and holds(field.annotation, kind)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known, most=1, least=0.5)
    return f"; did you mean {near[0]}?" if near else "; docs/settings.md lists them all"


def shown(value: object) -> object:
    """Return a value in a JSON-serialisable form, without secrets."""
    if isinstance(value, SecretStr):
        return _REDACTED
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [shown(item) for item in value]
    return redact(value) if isinstance(value, str) else value


def worded(value: object) -> str:
    """Return a value as `runner config` prints it."""
    if value is None:
        return "(not set)"
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "(none)"
    return str(value).lower() if isinstance(value, bool) else str(value)
