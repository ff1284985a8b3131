"""The file that says which users have a server, read and checked as a whole before anything is done.

Source: `docs/deploy.md`, "One machine, no orchestrator".
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from runner.errors import UsageError
from runner.settings.trust import UnsafeFile, read_judged
from runner.system.private_files import read_private
from runner.users.usernames import home_segment

__all__ = ["Given", "UsersFile", "environment_of", "read_users_file"]

_MOST_BYTES = 4 << 20
# What this command decides for each server: a file that could change it could name another user or port.
_OURS = ("RUNNER_USER", "RUNNER_PORT", "RUNNER_TRANSPORT", "RUNNER_STATE_DIR")

Port = Annotated[int, Field(ge=1, le=65535)]


class Given(BaseModel):
    """What is said of one user's server, or in `defaults` of all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: tuple[str, ...] | None = Field(None, min_length=1)
    proxy: tuple[str, ...] | None = Field(None, min_length=1)
    port: Port | None = None
    memory_mb: Annotated[int, Field(ge=128)] | None = None
    processes: Annotated[int, Field(ge=32)] | None = None
    cpus: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] | None = None
    environment: Mapping[str, str] = Field(default_factory=dict)
    environment_file: Path | None = None
    config: Path | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.tools is not None and self.proxy is not None:
            raise ValueError("tools are served and servers proxied; give one of them")
        return self

    @field_validator("environment")
    @classmethod
    def _of_the_user(cls, environment: Mapping[str, str]) -> Mapping[str, str]:
        _refuse_ours(environment)
        return environment


class UsersFile(BaseModel):
    """All of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ports: str | None = Field(None, pattern=r"^\d{1,5}-\d{1,5}$")
    stop_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 40.0
    defaults: Given = Field(default_factory=Given)
    users: Mapping[str, Given]

    @model_validator(mode="after")
    def _ports_are_told_apart(self) -> Self:
        if self.defaults.port is not None:
            raise ValueError("defaults.port would be everybody's; give each user one, or all a range: ports")
        seen: dict[int, str] = {}
        for name, given in self.users.items():
            if given.port is not None and seen.setdefault(given.port, name) != name:
                raise ValueError(f"users.{name}.port {given.port} is that of {seen[given.port]!r} already")
            if given.port is None and self.ports is None:
                raise ValueError(
                    f"users.{name} has no port; give it one, or all a range: ports = '8100-8199'"
                )
        return self

    @model_validator(mode="after")
    def _names_are_told_apart(self) -> Self:
        for name in self.users:
            home_segment(name)
        return self

    @property
    def port_range(self) -> range:
        """Return the ports that users get who name none."""
        if self.ports is None:
            return range(0)
        first, last = map(int, self.ports.split("-"))
        return range(first, last + 1)

    def given(self, name: str) -> Given:
        """Return what holds for one user: the defaults, with what is said of the user in their place."""
        own = self.users[name]
        said = {field: getattr(own, field) for field in own.model_fields_set}
        if {"tools", "proxy"} & said.keys():
            said = {"tools": None, "proxy": None, **said}
        environment = {**self.defaults.environment, **own.environment}
        return self.defaults.model_copy(update={**said, "environment": environment})


def read_users_file(path: Path) -> UsersFile:
    """Return what the file says, TOML or, where its name ends in `.json`, JSON.

    Raises:
        UsageError: It is not there, cannot be read, or says what cannot be.
    """
    try:
        # It says what runs as whom, so nobody else may write it.
        text = read_judged(path, most_bytes=_MOST_BYTES).content.decode()
        said = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(
            f"the file of users {path} cannot be read: {error.strerror}; check --users"
        ) from error
    except UnsafeFile as error:
        raise UsageError(f"the file of users {path} is not read: {error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the file of users {path} cannot be understood: {error}") from error
    try:
        return UsersFile.model_validate(said)
    except ValidationError as error:
        raise UsageError("\n".join(f"{path}: {line}" for line in _sentences(error))) from None


def environment_of(given: Given, beside: Path) -> dict[str, str]:
    """Return the variables of a user's server, those of its file included.

    Args:
        given: What is said of the user.
        beside: The folder that relative names start from.

    Raises:
        UsageError: The file cannot be read, others can read it, or it has a line that is no variable.
    """
    if given.environment_file is None:
        return dict(given.environment)
    path = beside / given.environment_file
    content = read_private("the environment file", path, most_bytes=_MOST_BYTES)
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"the environment file {path} is no UTF-8 text: {error}") from error
    found = dict(_variables(path, lines))
    try:
        _refuse_ours(found)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    return {**given.environment, **found}


def _variables(path: Path, lines: list[str]) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.strip().partition("=")
        # The line itself may be a secret, so it is not shown.
        if not equals or not name.isidentifier() or "\0" in value:
            raise UsageError(f"{path}, line {number} is not NAME=value")
        yield name, value


def _refuse_ours(environment: Mapping[str, str]) -> None:
    for name in environment:
        if name in _OURS:
            raise ValueError(f"{name} is set by `runner up` for each user; take it out")


def _sentences(error: ValidationError) -> Iterator[str]:
    for one in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, one["loc"]))
        reason = str(one.get("ctx", {}).get("error", one["msg"]))
        yield f"{where}: {reason}" if where else reason
