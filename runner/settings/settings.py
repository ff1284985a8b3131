"""Every setting of the runner, as one frozen value. Where values come from is `runner.settings.sources`.

Constructing `Settings` reads nothing but its arguments; `sources.load` reads flags,
`RUNNER_*` variables and runner.toml.

Source: architecture, decision "Settings"; requirements S1-12 to S1-17; `docs/settings.md`.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from runner.settings.auth import Auth
from runner.settings.named_limits import LimitSettings
from runner.settings.private_paths import private_paths_of
from runner.settings.resource_limits import LIMITS, limits_of
from runner.settings.rights import Lent, Network, Paths, Programs, Rights, Variables
from runner.settings.secrets import SecretName, SecretSettings
from runner.settings.trust import ConfigFile, trust_record
from runner.settings.values import (
    NARROWS,
    Count,
    EachName,
    HostPort,
    Names,
    Pattern,
    PrivatePath,
    PublicPath,
    S3Address,
    S3Region,
    Seconds,
    StoreUrl,
    UidRange,
    WebAddress,
    default_state_dir,
    default_store,
)
from sandbox.deadlines import Deadlines
from sandbox.host.retirement import WORKER_CALLS, Reuse
from sandbox.policy import MIB, Limits

__all__ = ["Auth", "Settings", "ToolSettings", "is_pattern"]

GIB = 1024 * MIB
REDIS_PORT = 6379
_AWS_FILES = ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE")


class ToolSettings(BaseModel):
    """What one tool may have instead of the general value."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    idle_timeout_s: Seconds | None = Field(None, description="Instead of `idle_timeout_s`, for this tool.")
    total_timeout_s: Seconds | None = Field(None, description="Instead of `total_timeout_s`, for this tool.")
    memory_mb: Count | None = Field(None, description="Instead of `memory_mb`, for this tool.")
    allow_net: Network | None = Field(None, description="Instead of `allow_net`, for this tool.")
    allow_env: Variables | None = Field(None, description="Instead of `allow_env`, for this tool.")
    allow_run: Programs | None = Field(None, description="Instead of `allow_run`, for this tool.")
    allow_read: Paths | None = Field(None, description="Instead of `allow_read`, for this tool.")
    allow_write: Paths | None = Field(None, description="Instead of `allow_write`, for this tool.")
    allow_sockets: bool | None = Field(None, description="Instead of `allow_sockets`, for this tool.")
    call_memory_mb: Count | None = Field(None, description="Instead of `call_memory_mb`, for this tool.")
    cpu_s: Count | None = Field(None, description="Instead of `cpu_s`, for this tool.")
    call_processes: Count | None = Field(None, description="Instead of `call_processes`, for this tool.")
    max_home_bytes: Count | None = Field(None, description="Instead of `max_home_bytes`, for this tool.")
    worker_reuse: Literal["shared", "user", "call"] | None = Field(
        None, description="Instead of `worker_reuse`, for this tool."
    )
    background_jobs: bool | None = Field(None, description="Instead of `background_jobs`, for this tool.")
    scopes: Annotated[EachName | None, NARROWS] = Field(
        None, description="Scopes that a token must have for this tool to be listed and called over HTTP."
    )


class Settings(BaseSettings):
    """Every setting, checked. Times in seconds, sizes in the unit of their name."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="RUNNER_", env_nested_delimiter="__", env_ignore_empty=True
    )

    user: str | None = Field(
        None, min_length=1, description="Serve this one user; tokens of others are refused."
    )
    transport: Literal["auto", "stdio", "http"] = Field(
        "auto", description="`auto` is stdio when standard input is a pipe and HTTP when it is a terminal."
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address the HTTP server listens on.")
    port: Annotated[int, NARROWS] = Field(
        8000, ge=0, le=65535, description="Port the HTTP server listens on; 0 takes a free one."
    )
    isolation: Literal["auto", "process", "user", "namespace", "guard"] = Field(
        "auto", description="Isolation tier; `auto` takes the strongest that this machine offers."
    )
    uid_range: UidRange = Field(
        "1900000000-1900065535",
        description="User ids that users get in tiers `user` and `namespace`, first and last.",
    )
    store: StoreUrl = Field(
        default_factory=default_store,
        description="Where My Files are kept: a file:// or s3:// URL, `memory:` or `none:`.",
    )
    s3_endpoint: S3Address | None = Field(None, description="Address of the S3 server; without it, AWS.")
    s3_region: S3Region | None = Field(None, description="Region of the bucket.")
    s3_access_key: SecretStr | None = Field(
        None, description="Key id for S3; by default the standard chain of AWS finds credentials."
    )
    s3_secret_key: SecretStr | None = Field(None, description="Secret key for S3.")
    state_dir: PrivatePath = Field(
        default_factory=default_state_dir,
        description="Folder of the runner's own state: keys, locks, records.",
    )
    homes: PublicPath = Field(Path("/tmp"), description="Folder under which each user's home is made.")  # noqa: S108
    idle_timeout_s: Seconds = Field(
        30.0, description="Longest silence of a call between two progress reports."
    )
    total_timeout_s: Seconds = Field(600.0, description="Longest call, whatever it reports.")
    max_message_bytes: int = Field(
        900_000, ge=65_536, description="Longest result message; pictures that do not fit become links."
    )
    shrink_pictures: bool = Field(
        default=False,
        description="Whether pictures that do not fit into a message are made smaller; needs Pillow.",
    )
    base64_size_limit_mb: Count = Field(300, description="Largest artifact handed on inline, in MiB.")
    max_artifact_bytes: Count = Field(
        50 * GIB, description="Largest artifact, upload or written file, and most of all files of one call."
    )
    max_user_bytes: Count = Field(
        200 * GIB, description="Most that one user keeps in My Files; equal content counts once."
    )
    max_file_age_s: Seconds | None = Field(
        None, description="Age at which a file of My Files goes, since it was last put; by default none."
    )
    generated: Literal["keep", "report", "ignore"] = Field(
        "keep", description="What becomes of files that a call wrote into its home and did not return."
    )
    contract: Literal["auto", "full", "guard"] = Field(
        "auto",
        description="Whether `runner proxy` treats tools of other servers like our own (`full`) or guards "
        "their results only (`guard`); `auto` decides by the arguments of each tool.",
    )
    artifact_delivery: Literal["auto", "reference", "inline"] = Field(
        "auto", description="How artifacts reach an MCP client; `auto` asks the client's request."
    )
    file_delivery: Literal["auto", "path", "url"] = Field(
        "auto",
        description="How tools get the files named by `filename` and `filenames`; `auto` is a path.",
    )
    public_url: WebAddress | None = Field(
        None, description="Address of this server as its users reach it, for download links."
    )
    extras: Annotated[bool, NARROWS] = Field(
        default=True, description="Whether the runner offers resources and prompts of its own."
    )
    files_block: Literal["off", "instructions", "descriptions"] = Field(
        "instructions",
        description="Where models are told of the user's files though no client asks: nowhere, in the "
        "server's instructions, or there and in the description of each tool that takes files.",
    )
    resource_tools: bool = Field(
        default=False, description="Whether a model gets tools with which it reads resources."
    )
    results_max_bytes: Annotated[Count, NARROWS] = Field(
        8192, description="Size of `results` above which a warning says that it belongs in a file."
    )
    iframe_origins: Names = Field(
        (), description="Web origins whose pages a result may open beside the chat; `*` is all of them."
    )
    memory_mb: Count = Field(2048, description="Memory of each process of a call, in MiB.")
    call_memory_mb: Count = Field(
        4096, description="Memory of all processes of a call, shared memory once; at least `memory_mb`."
    )
    cpu_s: Count = Field(600, description="Processor seconds of each process of a call.")
    call_processes: Count = Field(256, description="Processes and threads of a call.")
    user_memory_mb: Count = Field(
        4096, description="Memory of all calls of one user together, where they have a cgroup, in MiB."
    )
    user_processes: int = Field(
        512,
        ge=16,
        description="Processes and threads of one user together, where they have a user id or a cgroup.",
    )
    open_files: int = Field(1024, ge=64, description="File descriptors of each process of a call.")
    max_home_bytes: Count = Field(
        128 * GIB, description="What a user's home holds on disk while a call runs, its input files included."
    )
    max_home_files: Count = Field(100_000, description="Files and folders of a user's home.")
    max_answer_bytes: Count = Field(64 * MIB, description="Longest answer of a tool, as JSON.")
    tool_output: Literal["log", "drop", "client"] = Field(
        "log",
        description="What becomes of what tools print and raise: lines of the log, nothing, or lines of the "
        "log and messages to the client of the call.",
    )
    max_calls: Count = Field(16, description="Calls that run at the same time.")
    max_calls_per_user: Count = Field(4, description="Calls of one user that run at the same time.")
    idle_workers: int = Field(1, ge=0, description="Workers kept ready for each zygote.")
    worker_reuse: Annotated[Literal["shared", "user", "call"], NARROWS] = Field(
        "user",
        description="Whether a worker stays with its `user`, so that what a tool file keeps in memory is "
        "there at that user's next call, is `shared` by calls of that user that run at once, or ends with "
        "its `call`.",
    )
    worker_start: Literal["fork", "load"] = Field(
        "fork",
        description="Whether workers are forked from a process that has loaded the tool files, or each loads "
        "them for itself and so may read its own files in `/proc` in every tier.",
    )
    background_jobs: bool = Field(
        default=False,
        description="Whether what a tool begins may go on between calls, where its author asks for that.",
    )
    load_timeout_s: Seconds = Field(
        30.0, description="Longest import of a tool file, or start of a server behind `runner proxy`."
    )
    drain_s: float = Field(
        25.0,
        ge=0,
        allow_inf_nan=False,
        description="How long calls under way may go on when the server is told to stop.",
    )
    stop_delay_s: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="How long a server over HTTP that is told to stop takes calls before `drain_s` begins; "
        "`/readyz` answers 503 at once.",
    )
    session_idle_s: Seconds = Field(
        1800.0, description="Silence of a user after which the session has ended."
    )
    persist_files_across_sessions: bool = Field(
        default=True, description="Whether My Files stay when a session ends."
    )
    allow_env: Variables = Field((), description="Environment variables that tools may see.")
    allow_run: Programs = Field(
        ("*",), description="The only programs that tools may run; `*` is any that they may read."
    )
    allow_net: Network = Field(
        (), description="Hosts and ports that tools may reach; `*` is every public address."
    )
    allow_sockets: bool = Field(
        default=False,
        description="Whether tools may have UNIX sockets in their home, to reach each other.",
    )
    allow_fetch: bool = Field(
        default=False,
        description="Whether commands behind `runner proxy`, such as npx and uvx, may fetch packages and run "
        "them, from a cache folder of each server.",
    )
    allow_read: Paths = Field((), description="Folders and files that are lent to tools to read.")
    allow_write: Paths = Field(
        (), description="Folders and files that are lent to tools to read and write, for all users together."
    )
    homes_for: Literal["declared", "all"] = Field(
        "declared",
        description="Which tools are given the user's home: those that declare `username`, or all.",
    )
    auth: Auth = Field(default_factory=Auth, description="Who may call over HTTP: see the table below.")
    identity_claim: EachName = Field(
        ("email", "sub"),
        min_length=1,
        description="Claims of a token that name the user; the first present counts.",
    )
    identity_pattern: Annotated[Pattern | None, NARROWS] = Field(
        None, description="What that claim must match, from its first character to its last; RE2."
    )
    identity_suffix: str | None = Field(
        None,
        min_length=1,
        description="How that claim must end, such as `@example.com`; it is left off the user's name.",
    )
    allowed_hosts: EachName = Field(
        (), description="Further values of the `Host` header that the HTTP server answers to."
    )
    allowed_origins: EachName = Field(
        (), description="Further web origins whose pages may call the HTTP server."
    )
    playground: Annotated[bool, NARROWS] = Field(
        default=True, description="Whether the HTTP server has the Playground, a page for people, at `/`."
    )
    playground_frames_url: WebAddress | None = Field(
        None,
        description="Address of the port above `port`, where the Playground shows what tools made, on "
        "another host name than `public_url`; without it, widgets are shown on this machine only.",
    )
    username_parameter: str = Field(
        "username",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the parameter that is filled in with who calls, and gives a tool a home.",
    )
    max_request_bytes: Count = Field(64 * MIB, description="Largest body of an MCP request over HTTP.")
    log_level: Annotated[Literal["debug", "info", "warning", "error"], NARROWS] = Field(
        "info", description="Least important record logged."
    )
    log_format: Annotated[Literal["text", "json"], NARROWS] = Field(
        "text", description="Form of a log record on standard error."
    )
    audit_dir: PrivatePath | None = Field(
        None, description="Folder of the audit log, which has a line for each call; by default there is none."
    )
    metrics_address: HostPort | None = Field(
        None, description="Address of its own, HOST:PORT, at which Prometheus finds `/metrics`."
    )
    engine: Literal["local", "docket"] = Field(
        "local",
        description="Who executes calls: workers of this machine, or worker nodes of a fleet over pydocket.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="Redis of the fleet: redis://HOST:PORT/0, rediss://:PASSWORD@HOST:PORT/0 or unix:///PATH.",
    )
    redis_insecure: bool = Field(
        default=False, description="Whether a Redis on another machine may do without TLS and a password."
    )
    fleet: str = Field(
        "toolcell",
        pattern=r"^[A-Za-z0-9_-]{1,64}$",
        description="Name of the fleet, with which all that it has in Redis begins.",
    )
    fleet_key_file: PrivatePath | None = Field(
        None,
        description="File with the key of the fleet, which seals what its machines say; the same on all.",
    )
    tools: Mapping[str, ToolSettings] = Field(
        default_factory=dict, description="Values for single tools: see the table below. In runner.toml only."
    )
    call_limits: Mapping[str, LimitSettings] = Field(
        default_factory=dict,
        description="Limits of calls of your own: see the table below. In runner.toml only.",
    )
    secrets: Mapping[SecretName, SecretSettings] = Field(
        default_factory=dict,
        description="Values that single tools find in their environment: see the table below. "
        "In runner.toml only.",
    )
    output_guard: Mapping[str, Any] = Field(
        default_factory=dict,
        description="What keeps results short: see docs/output-guard.md. In runner.toml only.",
    )

    # Kept by `sources.load`: where each value given came from, by dotted name; the file read.
    _given: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _file: ConfigFile = PrivateAttr(default=ConfigFile())
    _ignored: tuple[str, ...] = PrivateAttr(default=())
    # Kept by `lending.lend`.
    _lent: Lent = PrivateAttr(default=Lent())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take arguments only: `load` merges the sources itself, since it must know which won."""
        return (init_settings,)

    @model_validator(mode="after")
    def _is_supported(self) -> Self:
        named = [text for tool in (None, *self.tools) for text in self.rights(tool).network]
        for port, what in self._closed().items():
            if opened := [text for text in named if text.endswith(f":{port}")]:
                raise ValueError(
                    f"allow_net opens {opened[0]}, and port {port} is that of {what}, which no tool may "
                    f"reach; leave it out, or give {what} another port"
                )
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("s3_access_key and s3_secret_key belong together; give both, or neither")
        return self

    @model_validator(mode="after")
    def _keeps_tools_from_the_metrics(self) -> Self:
        if self.metrics_address is None:
            return self
        if self.isolation == "guard":
            raise ValueError(
                "isolation guard stops no tool from reaching metrics_address, which tells of all users; "
                "take another tier, or leave metrics_address out"
            )
        opened = [text for tool in (None, *self.tools) for text in self.rights(tool).network]
        if opened and not int(self.metrics_address.rpartition(":")[2]):
            raise ValueError(
                f"metrics_address has port 0, which is chosen too late to be closed to tools, and allow_net "
                f"opens {opened[0]}; give metrics_address a port by its number"
            )
        return self

    @property
    def store_path(self) -> Path:
        """Return the folder of the local store; for any other, where files wait until it takes them."""
        return Path(unquote(urlsplit(self.store).path)) if self.store_scheme == "file" else self.spool_path

    @property
    def store_scheme(self) -> str:
        """Return what kind of store it is: `file`, `s3`, `memory` or `none`."""
        return urlsplit(self.store).scheme

    @property
    def local_store(self) -> Path | None:
        """Return the folder of the local store; None for a store in S3."""
        return None if urlsplit(self.store).scheme == "s3" else self.store_path

    @property
    def spool_path(self) -> Path:
        """Return the folder of files that wait for a store in S3."""
        return self.state_dir / "spool"

    @property
    def packages_path(self) -> Path:
        """Return the folder of packages that commands behind the proxy fetch."""
        # Not in the state folder, which is looked through at each start.
        return self.state_dir.with_name(f"{self.state_dir.name}-packages")

    @property
    def inline_max_bytes(self) -> int:
        """Return `base64_size_limit_mb` in bytes."""
        return self.base64_size_limit_mb * MIB

    @property
    def config_file(self) -> Path | None:
        """Return the configuration file that applies, in whole or in part, if there is one."""
        return self._file.path

    @property
    def config_source(self) -> ConfigFile:
        """Return the choice of the configuration file, with which `sources.load` reads it again."""
        return self._file

    @property
    def ignored(self) -> tuple[str, ...]:
        """Return a sentence for each file of which something does not apply, since nobody has trusted it."""
        return self._ignored

    @property
    def scheme(self) -> str:
        """Return with what the server speaks over HTTP: `https` where it listens with TLS, else `http`."""
        return "http" if self.auth.gateway_certificate is None else "https"

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """Return what no worker may ever read: state, store, tokens, secrets, audit log, configuration."""
        return tuple(path for _name, path in self.named_private_paths)

    @property
    def named_private_paths(self) -> tuple[tuple[str, Path], ...]:
        """Return those paths, each behind the name of its setting, or behind `private` where it has none."""
        paths = [("store", self.store_path), *private_paths_of(self), ("packages", self.packages_path)]
        if self._file.path is not None:
            paths.append(("config", self._file.path))
        record = trust_record()
        if record is not None and not record.is_relative_to(self.state_dir):
            paths.append(("trusted", record))
        # If not where nobody may read anyway.
        named = (os.environ.get(name) for name in _AWS_FILES)
        return (*paths, *(("private", _expanded(name)) for name in named if name))

    @property
    def closed_ports(self) -> tuple[int, ...]:
        """Return the ports that no tool may reach anywhere: of the fleet's Redis, and of the metrics."""
        return tuple(self._closed())

    def _closed(self) -> dict[int, str]:
        """Return those ports, and what listens there: it asks nobody who he is, and tells of all users."""
        closed: dict[int, str] = {}
        if self.engine != "local" and self.redis_url is not None:
            parts = urlsplit(self.redis_url.get_secret_value())
            if parts.scheme != "unix":
                closed[parts.port or REDIS_PORT] = "the fleet's Redis"
        if self.metrics_address is not None:
            port = int(self.metrics_address.rpartition(":")[2])
            # 0 is whichever is free at the start, and nobody's before; with it allow_net opens nothing.
            if port:
                closed[port] = "metrics_address"
        return closed

    def own(self, tool: str | None) -> ToolSettings:
        """Return what is set for one tool: under its own name, else under the first pattern that says it.

        Args:
            tool: Its name; None for any.
        """
        if tool is None:
            return _NOTHING
        exact = self.tools.get(tool, _NOTHING)
        wider = [own for name, own in self.tools.items() if is_pattern(name) and fnmatchcase(tool, name)]
        if not wider:
            return exact
        said: dict[str, Any] = {}
        for own in (*reversed(wider), exact):
            said |= {name: value for name, value in own if value is not None}
        return _NOTHING.model_copy(update=said)

    def deadlines(self, tool: str | None = None) -> Deadlines:
        """Return the deadlines of one tool, or the general ones."""
        own = self.own(tool)
        total_s = own.total_timeout_s or self.total_timeout_s
        # A total limit below the idle limit is no fault: `--total-timeout 5` alone must work.
        return Deadlines(idle_s=min(own.idle_timeout_s or self.idle_timeout_s, total_s), total_s=total_s)

    def scopes(self, tool: str) -> tuple[str, ...]:
        """Return the scopes that a token must have for a tool."""
        return self.own(tool).scopes or ()

    def keeps_worker(self, tool: str | None = None) -> bool:
        """Say whether the workers of a tool, or of any, stay with their user; those with secrets do not."""
        if any(tool in secret.tools for secret in self.secrets.values()):
            return False
        own = self.own(tool)
        return (own.worker_reuse or self.worker_reuse) != "call"

    def shares_worker(self, tool: str | None = None, *, wish: bool = False) -> bool:
        """Say whether calls of a tool, or any, run beside others in one worker of their user.

        Args:
            tool: The tool.
            wish: What its author says.
        """
        own = self.own(tool)
        return (own.worker_reuse or ("shared" if wish else self.worker_reuse)) == "shared"

    def lets_go_on(self, tool: str | None = None) -> bool:
        """Say whether what a tool begins, or any, may go on between calls."""
        own = self.own(tool)
        allowed = self.background_jobs if own.background_jobs is None else own.background_jobs
        return allowed and self.keeps_worker(tool)

    @property
    def named_tools(self) -> tuple[str, ...]:
        """Return the tools for which anything is set that is not set for all."""
        of_secrets = (tool for secret in self.secrets.values() for tool in secret.tools)
        return tuple(dict.fromkeys((*self.tools, *of_secrets)))

    @property
    def reuse(self) -> Reuse:
        """Return how long workers stay, where any may."""
        if not any(self.keeps_worker(tool) for tool in (None, *self.tools)):
            return Reuse()
        return Reuse(calls=WORKER_CALLS)

    def limits(self, tool: str | None = None) -> Limits:
        """Return the resource limits of one tool, or the general ones."""
        own = self.own(tool)
        names = [facts.setting for facts in LIMITS.values()]
        values = {name: getattr(own, name, None) or getattr(self, name) for name in names}
        # One process may have what a call may have.
        values["call_memory_mb"] = max(values["call_memory_mb"], values["memory_mb"])
        return limits_of(values)

    def widest_limits(self) -> Limits:
        """Return limits that no tool's exceed: processes are made with these and narrowed for each call."""
        each = [asdict(self.limits(tool)) for tool in (None, *self.tools)]
        return Limits(**{name: max(limits[name] for limits in each) for name in LIMITS})

    def rights(self, tool: str | None = None) -> Rights:
        """Return what one tool may do beyond its own folder, or any tool."""
        own = self.own(tool)
        programs = self.allow_run if own.allow_run is None else own.allow_run
        return Rights(
            network=self.allow_net if own.allow_net is None else own.allow_net,
            variables=self.allow_env if own.allow_env is None else own.allow_env,
            may_run=bool(programs),
            programs=() if "*" in programs else programs,
            read=self.allow_read if own.allow_read is None else own.allow_read,
            write=self.allow_write if own.allow_write is None else own.allow_write,
            sockets=self.allow_sockets if own.allow_sockets is None else own.allow_sockets,
            lent=self._lent,
        )

    @property
    def has_sockets(self) -> bool:
        """Return whether any tool may have UNIX sockets."""
        return any(self.rights(tool).sockets for tool in (None, *self.tools))

    @property
    def lender(self) -> int | None:
        """Return the user id that every process has because of what is lent, if it must have one."""
        return None if self._lent.owner is None else self._lent.owner[0]

    @property
    def uids(self) -> range:
        """Return the user ids of `uid_range`."""
        first, last = map(int, self.uid_range.split("-"))
        return range(first, last + 1)


def is_pattern(name: str) -> bool:
    """Say whether a name under `tools` stands for several: `sales_*` for all that begin so."""
    return "*" in name


_NOTHING = ToolSettings()


def _expanded(name: str) -> Path:
    # As AWS's own library reads it: `~nobody` that nobody is called stays as it is.
    return Path(os.path.abspath(os.path.expanduser(name)))
