"""The users file: read and checked as a whole, with the server of each user.

Source: `docs/deploying.md`, "Many users on one machine".
"""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

from runner.errors import UsageError
from runner.settings.trust import read_named
from runner.system.private_files import read_private

__all__ = ["UserServer", "planned", "unit_of"]

_MOST_BYTES = 4 << 20
# Variables set for each user; an operator's variable could name another user or port.
_OURS = ("RUNNER_USER", "RUNNER_PORT", "RUNNER_TRANSPORT", "RUNNER_STATE_DIR")
_UNIT = re.compile(r"(?!u-[0-9a-f]{24}$)[a-z0-9][a-z0-9-]{0,27}")
_PLAIN_PATH = re.compile(r"[\w./@+=:,-]+")


def _text(value: str) -> str:
    if re.search("[\0\ud800-\udfff]", value):
        raise ValueError("a NUL character or half of a character cannot be part of a command")
    return value


def _variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} cannot be the name of a variable")
    if name in _OURS:
        raise ValueError(f"{name} is set by `runner up` for each user; remove it")
    return name


_Text = Annotated[str, AfterValidator(_text)]
_Port = Annotated[int, Field(ge=1, le=65535)]


class _Given(BaseModel, frozen=True, extra="forbid"):
    """The keys of one user, or the defaults of all."""

    tools: tuple[_Text, ...] | None = Field(None, min_length=1)
    proxy: tuple[_Text, ...] | None = Field(None, min_length=1)
    port: _Port | None = None
    memory_mb: Annotated[int, Field(ge=128)] | None = None
    processes: Annotated[int, Field(ge=32)] | None = None
    cpus: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] | None = None
    environment: Mapping[Annotated[str, AfterValidator(_variable)], _Text] = Field(default_factory=dict)
    environment_file: _Text | None = None
    config: _Text | None = None

    @model_validator(mode="after")
    def _has_one_kind(self) -> Self:
        if self.tools is not None and self.proxy is not None:
            raise ValueError("set either `tools` or `proxy`, not both")
        return self


class _UsersFile(BaseModel, frozen=True, extra="forbid"):
    """The keys of the whole file."""

    ports: str | None = Field(None, pattern=r"^\d{1,5}-\d{1,5}$")
    stop_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 45.0
    defaults: _Given = Field(default_factory=_Given)
    users: Mapping[Annotated[_Text, Field(min_length=1)], _Given]

    @model_validator(mode="after")
    def _has_distinct_ports(self) -> Self:
        if self.defaults.port is not None:
            raise ValueError("defaults.port would be one port for all; set a range: ports = '8100-8199'")
        seen: dict[int, str] = {}
        for name, user in self.users.items():
            if user.port is not None and seen.setdefault(user.port, name) != name:
                raise ValueError(f"users.{name}.port {user.port} is already that of {seen[user.port]!r}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class UserServer:
    """The server of one user.

    Attributes:
        user: The name of the user.
        unit: The user's part of unit, service and system user names.
        port: Its port.
        words: The last arguments of `runner`: its configuration file, and the tools or the server behind it.
        files: The files among them.
        options: The keys of the user, with the defaults; the file of variables as an absolute path.
        stop_s: Time limit of its shutdown, in seconds.
    """

    user: str
    unit: str
    port: int
    words: tuple[str, ...]
    files: tuple[Path, ...]
    options: _Given
    stop_s: float

    def arguments(self, *address: str) -> list[str]:
        """Return the arguments of `runner` that serve the user, with these address options."""
        command = "serve" if self.options.proxy is None else "proxy"
        return [command, "--transport", "http", *address, "--user", self.user, *self.words]


def planned(path: Path, ports: Mapping[str, int]) -> list[UserServer]:
    """Read a users file, TOML or, if its name ends in `.json`, JSON; return the server of each user.

    Args:
        path: The file; paths in it are relative to its folder.
        ports: The previous ports of users.

    Raises:
        UsageError: The file cannot be read, or is invalid.
    """
    # Only its owner may write it, since it determines the commands and their users.
    name = f"the users file {path}"
    read = read_named(path, name, refusal="is not read", check="--users")
    try:
        text = read.content.decode()
        file = _UsersFile.model_validate(json.loads(text) if path.suffix == ".json" else tomllib.loads(text))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        lines = [
            (str(path), ".".join(map(str, one["loc"])), str(one.get("ctx", {}).get("error", one["msg"])))
            for one in faults
        ]
        raise UsageError("\n".join(": ".join(filter(None, line)) for line in lines)) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} cannot be parsed: {error}") from error
    return [_server(user, file, path.absolute().parent, port) for user, port in _ports(file, ports).items()]


def unit_of(user: str) -> str:
    """Return the user's part of unit and system user names: the name itself, or a digest of it."""
    return user if _UNIT.fullmatch(user) else f"u-{hashlib.sha256(user.encode()).hexdigest()[:24]}"


def _ports(file: _UsersFile, before: Mapping[str, int]) -> dict[str, int]:
    """Return the port of each user: the one in the file, the previous one, or the first free one."""
    first, last = map(int, (file.ports or "1-0").split("-"))
    pool = range(max(first, 1), min(last, 65535) + 1)
    known = {name: user.port for name, user in file.users.items()}
    for name, port in known.items():
        if port is None and before.get(name) in pool and before[name] not in known.values():
            known[name] = before[name]
    free = (port for port in pool if port not in known.values())
    ports = {name: port or next(free, 0) for name, port in known.items()}
    if name := next((name for name, port in ports.items() if not port), ""):
        raise UsageError(f"there is no port for {name!r}; set its `port`, or a wider range in `ports`")
    return ports


def _server(name: str, file: _UsersFile, beside: Path, port: int) -> UserServer:
    own = file.users[name]
    keys = {key: getattr(own, key) for key in own.model_fields_set}
    if {"tools", "proxy"} & keys.keys():
        keys = {"tools": None, "proxy": None, **keys}
    environment = {**file.defaults.environment, **own.environment}
    values = file.defaults.model_copy(update={**keys, "environment": environment})
    served = values.proxy or values.tools
    if served is None:
        raise UsageError(f"users.{name} has neither `tools` nor `proxy`; set one, or one in [defaults]")
    words, files = list[str](), list[Path]()
    if values.config is not None:
        files.append(beside / values.config)
        words += ["--config", str(files[0])]
    if values.proxy is not None and len(values.proxy) > 1:
        words += ["--", *values.proxy]
    else:
        for word in served:
            target, colon, rest = word.partition(":")
            is_file = "://" not in word and os.path.exists(beside / target)
            if not is_file and "/" in word and "://" not in word:
                raise UsageError(f"users.{name}: {beside / target} does not exist")
            words.append(f"{beside / target}{colon}{rest}" if is_file else word)
            files += [beside / target] if is_file else []
    if values.environment_file is not None:
        variables = beside / values.environment_file
        # It is read by systemd and Compose, and may contain secrets, so others must not read it.
        read_private(f"users.{name}.environment_file", variables, most_bytes=_MOST_BYTES)
        if not _PLAIN_PATH.fullmatch(str(variables)):
            raise UsageError(f"{str(variables)!r}: units take only letters, digits and ./@+=:,-_; rename it")
        values = values.model_copy(update={"environment_file": str(variables)})
    return UserServer(
        user=name,
        unit=unit_of(name),
        port=port,
        words=tuple(words),
        files=tuple(files),
        options=values,
        stop_s=file.stop_s,
    )
