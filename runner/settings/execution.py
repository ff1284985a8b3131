"""Settings of the execution of calls: its parts, and the tables by name.

Source: architecture, decision "Settings"; `docs/settings.md`.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, create_model, model_validator

from runner.settings.approvals import ApprovalSettings
from runner.settings.named_limits import LimitSettings
from runner.settings.parts import (
    PARTS,
    CallSettings,
    FleetSettings,
    ObservationSettings,
    ResultSettings,
    RightsSettings,
    StoreSettings,
)
from runner.settings.resource_limits import LIMITS
from runner.settings.rights import Lent, Rights
from runner.settings.secrets import SecretName, SecretSettings
from runner.settings.trust import ConfigFile, trust_record
from runner.settings.values import NARROWS, EachName, SettingsTable, overrides_of, private_paths_of
from sandbox.deadlines import Deadlines
from sandbox.host.retirement import WORKER_CALLS, Reuse
from sandbox.policy import Limits

__all__ = [
    "EffectiveToolSettings",
    "ExecutionSettings",
    "LibrarySettings",
    "ServiceSettings",
    "SettingsT",
    "ToolSettings",
    "is_pattern",
]

REDIS_PORT = 6379
_AWS_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE")


class _OfTool(SettingsTable):
    """Values of one tool instead of the general ones."""

    scopes: Annotated[EachName | None, NARROWS] = Field(
        None,
        description="Scopes that a token must have for this tool to be listed and called over HTTP "
        "([serving.md](serving.md#scopes-of-tools)).",
    )


if TYPE_CHECKING:

    class ToolSettings(_OfTool):
        """Values of one tool: the settings that are marked `PER_TOOL`, and `scopes`."""

        def __init__(self, **values: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

else:
    ToolSettings = create_model(
        "ToolSettings",
        __base__=_OfTool,
        **overrides_of(*PARTS),
    )


class LibrarySettings(StoreSettings, FleetSettings):
    """My Files, whichever machine a call runs on, and the output guard, which stores files there."""

    output_guard: Mapping[str, Any] = Field(
        default_factory=dict, description="The output guard: docs/output-guard.md. In runner.toml only."
    )


# Credentials and address of a store in a bucket, which no tool may have.
_STORE_KEYS = frozenset(
    f"AWS_{name}"
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "ENDPOINT_URL", "ENDPOINT_URL_S3")
)


class ExecutionSettings(LibrarySettings, RightsSettings, CallSettings, ObservationSettings):
    """Limits, rights and secrets of tools, and the paths and ports that are closed to them."""

    tools: Mapping[str, ToolSettings] = Field(
        default_factory=dict, description="Values of single tools. In runner.toml only."
    )
    call_limits: Mapping[str, LimitSettings] = Field(
        default_factory=dict, description="Limits of calls of your own. In runner.toml only."
    )
    approvals: Mapping[str, ApprovalSettings] = Field(
        default_factory=dict, description="Rules that hold calls for an approval. In runner.toml only."
    )
    secrets: Mapping[SecretName, SecretSettings] = Field(
        default_factory=dict, description="Values in the environment of single tools. In runner.toml only."
    )

    # Set by `sources.load`: the file read, and its settings that do not apply.
    _file: ConfigFile = PrivateAttr(default=ConfigFile())
    _ignored: tuple[str, ...] = PrivateAttr(default=())
    # Set by `lending.lend`.
    _lent: Lent = PrivateAttr(default=Lent())

    @model_validator(mode="after")
    def _closes_ports_to_tools(self) -> Self:
        named = [text for tool in (None, *self.tools) for text in self.rights(tool).network]
        for port, what in self._closed().items():
            if opened := [text for text in named if text.endswith(f":{port}")]:
                raise ValueError(
                    f"allow_net opens {opened[0]}, and port {port} is that of {what}, which no tool may "
                    f"reach; leave it out, or give {what} another port"
                )
        if self.metrics_address is not None and self.isolation == "guard":
            raise ValueError(
                "isolation guard stops no tool from reaching metrics_address, which tells of all users; "
                "take another tier, or leave metrics_address out"
            )
        if named and self.metrics_address is not None and not int(self.metrics_address.rpartition(":")[2]):
            raise ValueError(
                f"metrics_address has port 0, which is chosen too late to be closed to tools, and allow_net "
                f"opens {named[0]}; give metrics_address a port by its number"
            )
        return self

    @model_validator(mode="after")
    def _has_one_keeper_of_approvals(self) -> Self:
        if self.approvals and self.is_fleet:
            raise ValueError(
                "approvals are kept by one host, and calls of a fleet reach several: one could be used once "
                "on each; leave redis_url or [approvals.NAME] out"
            )
        return self

    @model_validator(mode="after")
    def _keeps_tools_from_the_store(self) -> Self:
        lent = {*self.allow_env, *(name for tool in self.tools.values() for name in tool.allow_env or ())}
        if self.store_scheme == "s3" and (keys := lent & _STORE_KEYS):
            raise ValueError(
                f"allow_env lends {sorted(keys)[0]} to tools, and with it the store of all users; "
                "leave it out, or give the store its keys by AWS_SHARED_CREDENTIALS_FILE, its address by "
                "AWS_CONFIG_FILE, and tools theirs by [secrets.NAME]"
            )
        return self

    @property
    def config_file(self) -> Path | None:
        """Return the configuration file in force, if there is one."""
        return self._file.path

    @property
    def config_source(self) -> ConfigFile:
        """Return the choice of the configuration file, with which `sources.load` reads it again."""
        return self._file

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return a sentence for each file with settings that do not apply, since it is not trusted."""
        return self._ignored

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """Return paths that no worker may read: state, store, tokens, secrets, audit log, configuration."""
        return tuple(path for _name, path in self.named_private_paths)

    @property
    def named_private_paths(self) -> tuple[tuple[str, Path], ...]:
        """Return those paths, each after the name of its setting, or after `private` if it has none."""
        paths = [("store", self.store_path), *private_paths_of(self), ("packages", self.packages_path)]
        if self._file.path is not None:
            paths.append(("config", self._file.path))
        record = trust_record()
        if record is not None and not record.is_relative_to(self.state_dir):
            paths.append(("trusted", record))
        # These files may be outside the private home folder.
        named = (os.environ.get(name) for name in _AWS_FILES)
        return (*paths, *(("private", _expanded(name)) for name in named if name))

    @property
    def closed_ports(self) -> tuple[int, ...]:
        """Return the ports that no tool may reach anywhere: of the fleet's Redis, and of the metrics."""
        return tuple(self._closed())

    def _closed(self) -> dict[int, str]:
        """Return those ports, with their services: these require no login and reveal all users' data."""
        closed: dict[int, str] = {}
        if self.redis_url is not None:
            parts = urlsplit(self.redis_url.get_secret_value())
            if parts.scheme != "unix":
                closed[parts.port or REDIS_PORT] = "the fleet's Redis"
        if self.metrics_address is not None:
            port = int(self.metrics_address.rpartition(":")[2])
            # 0 means a free port chosen at the start, which allow_net cannot name.
            if port:
                closed[port] = "metrics_address"
        return closed

    def own(self, tool: str | None) -> Mapping[str, Any]:
        """Return the values of one tool: each from its own name, else from the first pattern that has it.

        Args:
            tool: Its name; None for any.
        """
        if tool is None:
            return {}
        patterns = [own for name, own in self.tools.items() if is_pattern(name) and fnmatchcase(tool, name)]
        found: dict[str, Any] = {}
        for own in (*reversed(patterns), *([self.tools[tool]] if tool in self.tools else ())):
            found |= {name: value for name, value in own if value is not None}
        return found

    def of_tool(self, tool: str | None) -> Self:
        """Return the settings with the values of one tool in place of the general ones."""
        own = {name: value for name, value in self.own(tool).items() if name != "scopes"}
        return self.model_copy(update=own) if own else self

    def deadlines(self, tool: str | None = None) -> Deadlines:
        """Return the deadlines of one tool, or the general ones."""
        mine = self.of_tool(tool)
        # A total limit below the idle limit is not an error: `--total-timeout 5` alone must work.
        return Deadlines(idle_s=min(mine.idle_timeout_s, mine.total_timeout_s), total_s=mine.total_timeout_s)

    def scopes(self, tool: str | None) -> tuple[str, ...]:
        """Return the scopes that a token must have for a tool.

        Args:
            tool: Its name; None for a tool that its server does not list. A server may treat that name as
                another spelling of a tool with scopes, so all scopes are needed.
        """
        if tool is None:
            return tuple(dict.fromkeys(scope for own in self.tools.values() for scope in own.scopes or ()))
        scopes: tuple[str, ...] = self.own(tool).get("scopes", ())
        return scopes

    def keeps_worker(self, tool: str | None = None) -> bool:
        """Return whether workers of a tool, or of any, stay with their user; those with secrets do not."""
        if any(tool in secret.tools for secret in self.secrets.values()):
            return False
        return self.of_tool(tool).worker_reuse != "call"

    def shares_worker(self, tool: str | None = None, *, wish: bool = False) -> bool:
        """Return whether calls of a tool, or any, run concurrently in one worker of their user.

        Args:
            tool: The tool.
            wish: Whether its author requests that; a setting of the tool wins.
        """
        own = self.own(tool).get("worker_reuse")
        return (own or ("shared" if wish else self.worker_reuse)) == "shared"

    def lets_go_on(self, tool: str | None = None) -> bool:
        """Return whether jobs of a tool, or any, may run between calls."""
        return self.of_tool(tool).background_jobs and self.keeps_worker(tool)

    def limits(self, tool: str | None = None) -> Limits:
        """Return the resource limits of one tool, or the general ones."""
        mine = self.of_tool(tool)
        # A call must have at least the memory of one process.
        mine = mine.model_copy(update={"call_memory_mb": max(mine.call_memory_mb, mine.memory_mb)})
        return Limits(**{name: getattr(mine, one.setting) * one.factor for name, one in LIMITS.items()})

    def rights(self, tool: str | None = None) -> Rights:
        """Return the rights of one tool beyond its home, or of all tools."""
        mine = self.of_tool(tool)
        return Rights(
            network=mine.allow_net,
            variables=mine.allow_env,
            may_run=bool(mine.allow_run),
            programs=() if "*" in mine.allow_run else mine.allow_run,
            read=mine.allow_read,
            write=mine.allow_write,
            sockets=mine.allow_sockets,
            lent=self._lent,
        )

    @property
    def named_tools(self) -> tuple[str, ...]:
        """Return the tools with settings of their own."""
        of_secrets = (tool for secret in self.secrets.values() for tool in secret.tools)
        return tuple(dict.fromkeys((*self.tools, *of_secrets)))

    @property
    def reuse(self) -> Reuse:
        """Return the lifetime of workers, if any are reused."""
        if not any(self.keeps_worker(tool) for tool in (None, *self.tools)):
            return Reuse()
        return Reuse(calls=WORKER_CALLS)

    def widest_limits(self) -> Limits:
        """Return the maximum of all tools' limits: processes get these, and are narrowed for each call."""
        each = [asdict(self.limits(tool)) for tool in (None, *self.tools)]
        return Limits(**{name: max(limits[name] for limits in each) for name in LIMITS})

    @property
    def has_sockets(self) -> bool:
        """Return whether any tool may have UNIX sockets."""
        return any(self.rights(tool).sockets for tool in (None, *self.tools))

    @property
    def lender(self) -> int | None:
        """Return the user id that every process needs for lent files, if any."""
        return None if self._lent.owner is None else self._lent.owner[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveToolSettings:
    """Deadlines, limits and rights of calls of one tool.

    Attributes:
        deadlines: How long a call may take.
        limits: Resources that a call may use.
        rights: Rights that differ from those of all tools; None if they do not.
        keeps_worker: Whether its worker may stay with its user.
        shares_worker: Whether calls run concurrently in one worker of their user.
        may_share_worker: Whether they do so if the tool's author requests it.
        lets_go_on: Whether background jobs may run between calls if the tool's author requests it.
        scopes: The scopes that a token must have.
    """

    deadlines: Deadlines
    limits: Limits
    rights: Rights | None
    keeps_worker: bool
    shares_worker: bool
    may_share_worker: bool
    lets_go_on: bool
    scopes: tuple[str, ...] = ()

    @classmethod
    def of(cls, settings: ExecutionSettings, tool: str | None) -> "EffectiveToolSettings":
        """Return the settings of one tool, or with None those of all tools without overrides."""
        rights = settings.rights(tool)
        return cls(
            deadlines=settings.deadlines(tool),
            limits=settings.limits(tool),
            rights=None if rights == settings.rights() else rights,
            keeps_worker=settings.keeps_worker(tool),
            shares_worker=settings.shares_worker(tool),
            may_share_worker=settings.shares_worker(tool, wish=True),
            lets_go_on=settings.lets_go_on(tool),
            scopes=() if tool is None else settings.scopes(tool),
        )


class ServiceSettings(ResultSettings, ExecutionSettings):
    """Execution of calls and the form of their results: all but addresses, identities and the start."""


SettingsT = TypeVar("SettingsT", bound=ExecutionSettings)
"""The type of settings that a function takes and returns, `Settings` or a part."""


def is_pattern(name: str) -> bool:
    """Return whether a name under `tools` is a pattern, such as `sales_*`."""
    return "*" in name


def _expanded(name: str) -> Path:
    # Expanded like in AWS's own library: `~name` of an unknown account stays unchanged.
    return Path(os.path.abspath(os.path.expanduser(name)))
