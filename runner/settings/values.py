"""Types of values in `runner.settings.parts`, with their checks; marks of settings; and default folders."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import urlsplit

import re2
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from runner.errors import Code, UsageError

__all__ = [
    "LIVE",
    "NARROWS",
    "OPEN_TO_TOOLS",
    "PER_TOOL",
    "CertificateNames",
    "Count",
    "EachName",
    "Flag",
    "HostPort",
    "KeySource",
    "LimitFacts",
    "Names",
    "Networks",
    "Pattern",
    "PrivatePath",
    "PublicPath",
    "Seconds",
    "SettingsTable",
    "StoreUrl",
    "UidRange",
    "UpstreamUrl",
    "UpstreamUrls",
    "WebAddress",
    "default_config_dir",
    "default_state_dir",
    "default_store",
    "holds",
    "https_url",
    "is_open",
    "overrides_of",
    "private_paths_of",
    "split_at_commas",
    "widens_rights",
]

OPEN_TO_TOOLS = "open to tools"
"""Marks the type of a setting whose paths tools may see; the paths of all other settings are private."""

LIVE = "live"
"""Marks a setting that a running server applies when it reloads its configuration."""

PER_TOOL = "per tool"
"""Marks a setting that can have a value for one tool, under `[tools.NAME]`."""

NARROWS = "narrows rights"
"""Marks a setting that cannot widen rights, so it also applies from an untrusted file. Any other can."""


class SettingsTable(BaseModel):
    """Settings that are declared together; no name is taken that is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Flag:
    """The option of a setting.

    Attributes:
        metavar: The value's form in `--help`.
        name: The option, if it is not the setting's name with hyphens.
    """

    metavar: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LimitFacts:
    """The resource limit that a setting raises.

    Attributes:
        limit: Its name in `sandbox.policy.Limits`.
        code: The error of a call that it ends.
        unit: Its unit.
        factor: Units of the limit in one unit of the setting.
        setting: The setting; this and the next are filled in by `runner.settings.resource_limits`.
        own: Whether it can have a value for one tool.
    """

    limit: str
    code: Code
    unit: str
    factor: int = 1
    setting: str = ""
    own: bool = False


_STORES_WITHOUT_PLACE = ("memory:", "none:")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_S3_PREFIX = re.compile(r"(?=.{0,200}$)(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*/?")
_UID_RANGE = re.compile(r"([0-9]{1,10})-([0-9]{1,10})")
# The kernel's value for "leave unchanged", in 32 and 16 bits.
_NO_UID = 2**32 - 1
_MAX_PORT = 65535
_DNS_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[!-~]{1,2000}")
_LOOPBACK_URLS = ("http://localhost", "http://127.0.0.1", "http://[::1]")


def split_at_commas(value: object) -> object:
    """Split a text at commas, the list syntax of variables and options; return other values unchanged."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def holds(annotation: object, kind: type) -> bool:
    """Return whether a type is `kind`, or has parts of it."""
    is_it = annotation is kind or get_origin(annotation) is kind
    return is_it or any(holds(part, kind) for part in get_args(annotation))


def widens_rights(field: FieldInfo | None) -> bool:
    """Return whether a setting can widen rights, which is assumed unless it is marked `NARROWS`."""
    return field is None or NARROWS not in field.metadata


def overrides_of(*parts: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a table of one tool: each setting of these parts marked `PER_TOOL`."""
    return {
        # Not marked `NARROWS`, since the value of a tool takes precedence over options and variables.
        name: (
            field.rebuild_annotation() | None,
            Field(None, description=f"Instead of `{name}`."),
        )
        for part in parts
        for name, field in part.model_fields.items()
        if PER_TOOL in field.metadata
    }


def private_paths_of(settings: BaseModel) -> Iterator[tuple[str, Path]]:
    """Yield each private path with the dotted name of its setting, such as `auth.tokens_file`."""
    for name, field in type(settings).model_fields.items():
        if not is_open(field):
            yield from _paths_in(name, getattr(settings, name))


def is_open(field: FieldInfo) -> bool:
    """Return whether tools may read the paths of a setting."""
    return OPEN_TO_TOOLS in field.metadata or _is_marked(field.annotation)


def _is_marked(annotation: object) -> bool:
    marks = getattr(annotation, "__metadata__", ())
    return OPEN_TO_TOOLS in marks or any(map(_is_marked, get_args(annotation)))


def _paths_in(name: str, value: object) -> Iterator[tuple[str, Path]]:
    if isinstance(value, Path):
        yield name, value
    elif isinstance(value, BaseModel):
        yield from ((f"{name}.{own}", path) for own, path in private_paths_of(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _paths_in(f"{name}.{key}", item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths_in(name, item)


def _absolute(path: Path) -> Path:
    try:
        return Path(os.path.normpath(path.expanduser().absolute()))
    except RuntimeError:
        raise ValueError(f"there is no home folder of {path.parts[0]}; write the whole path") from None


def _store_url(url: str) -> str:
    if url in _STORES_WITHOUT_PLACE:
        return url
    parts = urlsplit(url)
    plain = not (parts.query or parts.fragment)
    if parts.scheme == "s3":
        if not plain or "@" in parts.netloc:
            raise ValueError(
                "a store in S3 is named as s3://bucket or s3://bucket/prefix; keys are given by "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the server by AWS_ENDPOINT_URL_S3"
            )
        _check_bucket(parts.netloc, parts.path)
        return url
    if parts.scheme != "file" or not plain or parts.netloc or not parts.path.startswith("/"):
        raise ValueError(
            "a store is named as file:///absolute/folder or s3://bucket/prefix; "
            "memory: keeps files as long as the process, none: keeps none"
        )
    return url


def _check_bucket(bucket: str, path: str) -> None:
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(
            f"{bucket!r} is not a bucket name: one has 3 to 63 lower-case letters, digits, hyphens and "
            "dots, and begins and ends with a letter or digit"
        )
    if not _S3_PREFIX.fullmatch(path):
        raise ValueError(
            f"{path.removeprefix('/')!r} is not a prefix: one has at most 200 letters, digits, '_', '-', '.' "
            "and '/', and no part of it is empty or begins with a dot"
        )


def _uid_range(text: str) -> str:
    found = _UID_RANGE.fullmatch(text)
    if not found or not 1000 <= int(found[1]) <= int(found[2]) < _NO_UID:
        raise ValueError("user ids are written as FIRST-LAST, from 1000 on, such as 1900000000-1900065535")
    return text


def _pattern(text: str) -> str:
    try:
        re2.compile(text)
    except re2.error as error:
        raise ValueError(f"{text!r} is not an RE2 pattern: {error}") from error
    return text


def _networks(named: tuple[str, ...]) -> tuple[str, ...]:
    for each in named:
        try:
            ip_network(each)
        except ValueError as error:
            raise ValueError(
                f"{each!r} is neither an address nor a network, such as 10.0.0.5 or 10.1.0.0/16: {error}"
            ) from error
    return named


def _certificate_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for each in names:
        if "*" in each:
            raise ValueError(
                f"{each!r} would stand for many names, and one is compared as it is; write out each of them"
            )
        if not (_DNS_NAME.fullmatch(each) or _URI.fullmatch(each)):
            raise ValueError(
                f"{each!r} is neither a DNS name nor a URI, as a certificate carries them, such as "
                "gateway.example.com or spiffe://example.com/gateway"
            )
    return names


def _each_name(names: tuple[str, ...]) -> tuple[str, ...]:
    if "*" in names:
        raise ValueError("'*' does not stand for all here; write out each name")
    return names


def https_url(url: str) -> str:
    """Return the URL of an issuer's keys, or of a login or token endpoint.

    Raises:
        ValueError: It is neither https nor loopback.
    """
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc.rsplit(':', 1)[0] if parts.port else parts.netloc}"
    if parts.scheme != "https" and origin not in _LOOPBACK_URLS:
        raise ValueError("keys, logins and tokens go over https only; use an https:// URL")
    return url


def _key_source(value: object) -> object:
    if isinstance(value, str) and "://" in value:
        return https_url(value)
    # A file's relative path is absolute by now. Any other word may be a key, which errors must not show.
    if isinstance(value, Path) or (isinstance(value, str) and value.startswith(("/", "~", "."))):
        return _absolute(Path(value))
    raise ValueError("give an https:// address, or the path of a file, such as /etc/keys.pem or ./keys.pem")


def _web_address(url: str) -> str:
    try:
        parts = urlsplit(url)
        named = parts.hostname and parts.port != 0
    except ValueError:
        raise ValueError(
            "its host or port is malformed; an address is written as https://host or https://host:8443"
        ) from None
    plain = parts.scheme in ("http", "https") and named and not (parts.query or parts.fragment)
    if not plain or "@" in parts.netloc:
        raise ValueError("an address is written as https://host, perhaps with a path")
    return url.rstrip("/")


def _host_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _MAX_PORT:
        raise ValueError("an address is written as HOST:PORT, such as 127.0.0.1:9464 or [::1]:9464")
    return text


def _xdg(variable: str, fallback: str) -> Path:
    # A relative value must be ignored: XDG Base Directory Specification 0.8.
    value = os.environ.get(variable, "")
    folder = value if value.startswith("/") else os.path.expanduser(fallback)
    # A relative HOME would take the configuration from the current folder.
    if not folder.startswith("/"):
        raise UsageError(
            f"this user has no home folder (HOME) and {variable} is not set, so there is no default folder; "
            "give RUNNER_STORE and RUNNER_STATE_DIR"
        )
    return Path(folder) / "toolcell"


def default_store() -> str:
    """Return the default place of My Files."""
    return (_xdg("XDG_DATA_HOME", "~/.local/share") / "store").as_uri()


def default_config_dir() -> Path:
    """Return the folder of the caller's own configuration.

    Raises:
        UsageError: This user has no home folder.
    """
    return _xdg("XDG_CONFIG_HOME", "~/.config")


def default_state_dir() -> Path:
    """Return the default folder for state that survives a restart."""
    return _xdg("XDG_STATE_HOME", "~/.local/state")


Names = Annotated[tuple[str, ...], BeforeValidator(split_at_commas)]
"""List of names; an empty list means none, and `*` means all names if the setting accepts it."""
EachName = Annotated[Names, AfterValidator(_each_name)]
"""List of names in which `*` is not accepted."""
Pattern = Annotated[str, AfterValidator(_pattern)]
CertificateNames = Annotated[Names, AfterValidator(_certificate_names)]
Networks = Annotated[Names, AfterValidator(_networks)]
PrivatePath = Annotated[Path, AfterValidator(_absolute)]
PublicPath = Annotated[Path, AfterValidator(_absolute), OPEN_TO_TOOLS]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(gt=0)]
StoreUrl = Annotated[str, AfterValidator(_store_url)]
UidRange = Annotated[str, AfterValidator(_uid_range)]
HostPort = Annotated[str, AfterValidator(_host_port)]
UpstreamUrl = Annotated[str, AfterValidator(https_url)]
KeySource = Annotated[str | Path, BeforeValidator(_key_source)]
"""A URL as text, or the path of a file."""
UpstreamUrls = Annotated[tuple[UpstreamUrl, ...], BeforeValidator(split_at_commas)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
