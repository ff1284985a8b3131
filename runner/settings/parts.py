"""Declarations of all settings except the tables by name: default, checks, description, option, marks.

Each setting is declared here once. Its option, variable, row in `docs/settings.md`, place in the JSON Schema,
override for a tool and behaviour on reload are derived from the declaration. A package depends only on the
parts that it needs.

Source: `docs/settings.md`, which `scripts/settings` writes.
"""

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, Field, SecretStr

from runner.errors import Code
from runner.settings.auth import Auth
from runner.settings.rights import Network, Paths, Programs, Variables
from runner.settings.values import (
    LIVE,
    NARROWS,
    PER_TOOL,
    Count,
    EachName,
    Flag,
    HostPort,
    LimitFacts,
    Names,
    Pattern,
    PrivatePath,
    PublicPath,
    Seconds,
    SettingsTable,
    StoreUrl,
    UidRange,
    WebAddress,
    default_state_dir,
    default_store,
)
from sandbox.policy import MIB

__all__ = [
    "PARTS",
    "CallSettings",
    "FleetSettings",
    "IdentitySettings",
    "ObservationSettings",
    "ResultSettings",
    "RightsSettings",
    "ServerSettings",
    "StateSettings",
    "StoreSettings",
]

GIB = 1024 * MIB


class StateSettings(SettingsTable):
    """Isolation of calls, and the folders of state and homes."""

    isolation: Annotated[Literal["auto", "process", "user", "namespace", "guard"], Flag()] = Field(
        "auto",
        description="Isolation tier: `auto`, `process`, `user`, `namespace` or `guard`; `auto` chooses the "
        "strongest that this machine offers.",
    )
    uid_range: UidRange = Field(
        "1900000000-1900065535",
        description="First and last user id for users in tiers `user` and `namespace`. Ids of system users "
        "are skipped. See [isolation.md](isolation.md).",
    )
    state_dir: PrivatePath = Field(
        default_factory=default_state_dir,
        description="The runner's own state: keys, locks, user ids. Homes survive its loss. A damaged file "
        "there is renamed to `NAME.damaged-…`. `XDG_STATE_HOME` is honoured.",
    )
    homes: PublicPath = Field(
        Path("/tmp"),  # noqa: S108
        description="Folder of all homes.",
    )

    @property
    def uids(self) -> range:
        """Return the user ids of `uid_range`."""
        first, last = map(int, self.uid_range.split("-"))
        return range(first, last + 1)

    @property
    def spool_path(self) -> Path:
        """Return the folder of files waiting to be uploaded to a store in S3."""
        return self.state_dir / "spool"

    @property
    def packages_path(self) -> Path:
        """Return the folder of packages that commands behind the proxy fetch."""
        # Not in the state folder, which is scanned at each start.
        return self.state_dir.with_name(f"{self.state_dir.name}-packages")


class StoreSettings(StateSettings):
    """My Files: the store and its limits."""

    store: Annotated[StoreUrl, Flag("URL")] = Field(
        default_factory=default_store,
        description="Place of My Files, a `file:///absolute/folder` or `s3://bucket/prefix` URL; `memory:` "
        "ends with the process, `none:` stores nothing ([operating.md](operating.md#the-store)). Server, "
        "keys and region of S3 come from [variables and files of AWS](operating.md#s3). `XDG_DATA_HOME` is "
        "honoured.",
    )
    max_artifact_bytes: Annotated[Count, LimitFacts("file_bytes", Code.E_FILE_TOO_LARGE, "bytes"), LIVE] = (
        Field(
            50 * GIB,
            description="Largest artifact, file written by a tool, and upload ([serving.md](serving.md)), in "
            "bytes; also the sum of the files of one call.",
        )
    )
    base64_size_limit_mb: Count = Field(
        300,
        description="Largest artifact returned inline, and the sum of those of one call, in MiB.",
    )
    max_user_bytes: Annotated[Count, LIVE] = Field(
        200 * GIB,
        description="Quota of one user in My Files, in bytes; equal content counts once. A file beyond it is "
        "refused with `E_QUOTA`; none is removed for it.",
    )
    max_file_age_s: Annotated[Seconds | None, LIVE] = Field(
        None,
        description="Age at which a file of My Files is removed, in seconds since its last put. Applies to "
        "files put while it is set; each removal is logged.",
    )
    persist_files_across_sessions: bool = Field(
        default=True, description="Whether My Files stay when a session ends."
    )
    session_idle_s: Seconds = Field(
        1800.0, description="Seconds without a request after which a session ends."
    )
    generated: Literal["keep", "report", "ignore"] = Field(
        "keep",
        description="Treatment of files that a call wrote into its home and did not return: `keep` in My "
        "Files, `report` in the result, or `ignore`. See [guide.md](guide.md#files-that-a-call-generates).",
    )

    @property
    def store_scheme(self) -> str:
        """Return the kind of store: `file`, `s3`, `memory` or `none`."""
        return urlsplit(self.store).scheme

    @property
    def store_path(self) -> Path:
        """Return the folder of the local store; for any other store, the folder of waiting files."""
        return Path(unquote(urlsplit(self.store).path)) if self.store_scheme == "file" else self.spool_path

    @property
    def local_store(self) -> Path | None:
        """Return the folder of the local store; None for a store in S3."""
        return None if self.store_scheme == "s3" else self.store_path

    @property
    def inline_max_bytes(self) -> int:
        """Return `base64_size_limit_mb` in bytes."""
        return self.base64_size_limit_mb * MIB


class IdentitySettings(StateSettings):
    """Users, and the proof of their identity over HTTP."""

    user: Annotated[str | None, Flag("NAME")] = Field(
        None, min_length=1, description="Serve only this user; a token of another user is refused."
    )
    identity_claim: EachName = Field(
        ("email", "sub"),
        min_length=1,
        description="Claims of a token that name the user; the first one present counts. An unverified "
        "address is refused. Name a single claim if users of your login provider can choose its value. "
        "`client_id` is not a default: all users of one client program would share a home.",
    )
    identity_pattern: Annotated[Pattern | None, NARROWS] = Field(
        None,
        description="RE2 pattern that the whole claim must match; others are refused. `[^\\p{Lu}]+` refuses "
        "upper-case letters, `[ -~]+` letters beyond ASCII.",
    )
    identity_suffix: str | None = Field(
        None,
        min_length=1,
        description="Required end of the claim, such as `@example.com`; others are refused. It is removed: "
        "`ann@example.com` becomes `ann`.",
    )
    username_parameter: str = Field(
        "username",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the parameter that receives the caller's name and gives a tool its home. Change "
        "it for tools whose `username` means something else.",
    )
    auth: Auth = Field(default_factory=Auth, description="Who may call over HTTP: see the table below.")


class ServerSettings(IdentitySettings):
    """The server: its addresses, its start and its end."""

    transport: Annotated[Literal["auto", "stdio", "http"], Flag()] = Field(
        "auto",
        description="`auto`, `stdio` or `http`; `auto` is stdio when standard input is a pipe, HTTP when it "
        "is a terminal.",
    )
    host: Annotated[str, Flag()] = Field(
        "127.0.0.1",
        min_length=1,
        description="Address the HTTP server listens on. Beyond loopback it needs `auth.kind` or `user`.",
    )
    port: Annotated[int, NARROWS, Flag()] = Field(
        8000, ge=0, le=65535, description="Port the HTTP server listens on; 0 takes a free one."
    )
    public_url: WebAddress | None = Field(
        None,
        description="Address of this server for its users, such as `https://tools.example.com`, used in "
        "download links for clients; by default the listening address. Tools get links to a separate address "
        "on this machine, which serves downloads only.",
    )
    allowed_hosts: EachName = Field(
        (),
        description="Further `Host` names the server answers to, such as its name behind a proxy. Its own "
        "address and loopback names always work; others get status 421.",
    )
    allowed_origins: EachName = Field((), description="Further web origins whose pages may call the server.")
    playground: Annotated[bool, NARROWS] = Field(
        default=True,
        description="Whether the HTTP server has the [Playground](widgets.md#the-playground) at `/`.",
    )
    playground_frames_url: WebAddress | None = Field(
        None,
        description="Public address of the port for widgets, on another host name than `public_url`; without "
        "it, widgets are shown on this machine only.",
    )
    drain_s: float = Field(
        25.0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds that calls in flight may run on after a stop signal, or after the end of "
        "standard input (`server < requests.jsonl`); 0 ends them at once, as `runner dev` does by default. "
        "Meanwhile new calls get `E_BUSY` and `/readyz` answers 503. Clients of running calls receive the "
        "time left; calls that exceed it get `E_CANCELLED`. A second signal ends them at once. Orchestrators "
        "usually kill after 30 seconds, `docker stop` after 10 (`--stop-timeout`): leave five seconds for "
        "the shutdown itself.",
    )
    stop_delay_s: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="Seconds for which an HTTP server goes on taking calls after a stop signal, while "
        "`/readyz` answers 503 already; then `drain_s` begins. Set it to one or two health-check intervals "
        "of the proxy or orchestrator in front. It then stops sending before calls are refused and the port "
        "closes. A second signal ends the wait.",
    )

    @property
    def scheme(self) -> str:
        """Return the scheme of the server's address: `https` if it listens with TLS, else `http`."""
        return "http" if self.auth.gateway_tls is None else "https"


class RightsSettings(SettingsTable):
    """Rights of tools beyond their own folder and home."""

    allow_net: Annotated[Network, PER_TOOL, Flag("=HOST[:PORT],…")] = Field(
        (),
        description="Hosts and ports that tools may reach, such as `api.example.com:443`; `*` is every "
        "public address. See [isolation.md](isolation.md#network) for the syntax.",
    )
    allow_run: Annotated[Programs, PER_TOOL, Flag("PROGRAM,…")] = Field(
        ("*",),
        description="The only programs that tools may run, by name or absolute path; `*` is any readable "
        "one, and an empty list none. See [isolation.md](isolation.md#environment-variables-and-programs) "
        "for its limits.",
    )
    allow_env: Annotated[Variables, PER_TOOL, Flag("NAME,…")] = Field(
        (), description="Names of environment variables that tools may see; never `RUNNER_…`."
    )
    allow_read: Annotated[Paths, PER_TOOL, Flag("PATH,…")] = Field(
        (),
        description="Folders and files that tools may read; in the configuration file relative to its "
        "folder. See [isolation.md](isolation.md#lend-folders).",
    )
    allow_write: Annotated[Paths, PER_TOOL, Flag("PATH,…")] = Field(
        (), description="Folders and files that tools may read and write, shared by all users."
    )
    allow_sockets: Annotated[bool, PER_TOOL, Flag()] = Field(
        default=False,
        description="Whether tools may have UNIX sockets in their home, to reach their own processes: "
        "[sockets in the home](isolation.md#sockets-in-the-home).",
    )
    allow_fetch: Annotated[bool, Flag()] = Field(
        default=False,
        description="Whether commands behind `runner proxy`, such as npx and uvx, may fetch and run "
        "packages, from a cache folder of each server (`--allow-fetch`): [fetched "
        "servers](proxy.md#fetched-servers).",
    )


class CallSettings(SettingsTable):
    """Deadlines, resource limits and processes of calls."""

    idle_timeout_s: Annotated[Seconds, LIVE, PER_TOOL, Flag("SECONDS", name="--timeout")] = Field(
        30.0, description="Longest silence of a call between two progress reports, in seconds."
    )
    total_timeout_s: Annotated[Seconds, LIVE, PER_TOOL, Flag("SECONDS", name="--total-timeout")] = Field(
        600.0, description="Longest call, whatever it reports, in seconds."
    )
    load_timeout_s: Seconds = Field(
        30.0,
        description="Longest import of a tool file, in seconds. `runner proxy` waits as long for a server to "
        "start or connect; large imports on a busy machine may need more.",
    )
    memory_mb: Annotated[Count, LimitFacts("memory_bytes", Code.E_MEMORY, "bytes", MIB), LIVE, PER_TOOL] = (
        Field(
            2048,
            description="Memory of each process of a call, in MiB. [isolation.md](isolation.md#limits) has "
            "the enforcement of this and the following limits.",
        )
    )
    call_memory_mb: Annotated[Count, LimitFacts("call_memory_bytes", Code.E_MEMORY, "bytes", MIB), LIVE] = (
        Field(
            4096,
            description="Memory of all processes of a call together, in MiB; shared memory counts once. At "
            "least `memory_mb`.",
        )
    )
    cpu_s: Annotated[Count, LimitFacts("cpu_s", Code.E_RESOURCE_LIMIT, "seconds"), LIVE, PER_TOOL] = Field(
        600, description="Processor seconds of each process of a call."
    )
    call_processes: Annotated[
        Count, LimitFacts("call_processes", Code.E_RESOURCE_LIMIT, "processes and threads"), LIVE, PER_TOOL
    ] = Field(256, description="Processes and threads of a call.")
    user_memory_mb: Annotated[Count, LimitFacts("total_memory_bytes", Code.E_MEMORY, "bytes", MIB), LIVE] = (
        Field(
            4096,
            description="Memory of all calls of one user together, in MiB. Needs a cgroup (tier "
            "`namespace`).",
        )
    )
    user_processes: Annotated[
        int, LimitFacts("processes", Code.E_RESOURCE_LIMIT, "processes and threads"), LIVE
    ] = Field(
        512,
        ge=16,
        description="Processes and threads of one user together; at least 16. Needs a user id for each user "
        "(tiers `user` and `namespace`, started by root) or a cgroup.",
    )
    open_files: Annotated[int, LimitFacts("open_files", Code.E_RESOURCE_LIMIT, "descriptors"), LIVE] = Field(
        1024, ge=64, description="File descriptors of each process of a call; at least 64."
    )
    max_home_bytes: Annotated[Count, LimitFacts("home_bytes", Code.E_QUOTA, "bytes"), LIVE, PER_TOOL] = Field(
        128 * GIB,
        description="Disk space of a user's home during a call, input files included, in bytes.",
    )
    max_home_files: Annotated[Count, LimitFacts("home_entries", Code.E_QUOTA, "files and folders"), LIVE] = (
        Field(
            100_000,
            description="Files and folders of a user's home.",
        )
    )
    max_payload_bytes: Annotated[Count, LimitFacts("frame_bytes", Code.E_INVALID_RESULT, "bytes"), LIVE] = (
        Field(
            64 * MIB,
            description="Longest JSON either way, in bytes: the answer of a tool, and the body of a request. "
            "One user may have two such bodies in flight, all users together eight. A reload changes it for "
            "answers only.",
        )
    )
    max_calls: Annotated[Count, LIVE] = Field(16, description="Concurrent calls.")
    max_calls_per_user: Annotated[Count, LIVE] = Field(
        4,
        description="Concurrent calls of one user. On a server of one user whose calls share a process: "
        "`max_calls`.",
    )
    homes_for: Literal["declared", "all"] = Field(
        "declared",
        description="`declared`: tools that declare `username` have a home. `all`: every tool has its user's "
        "home as working folder, and one process serves all tools of a file.",
    )
    worker_reuse: Annotated[Literal["shared", "user", "call"], NARROWS, PER_TOOL] = Field(
        "user",
        description="`user`: a worker stays with its user and keeps the tool file's memory for that user's "
        "next call. `shared`: it also serves several calls of that user at once "
        "([guide.md](guide.md#calls-at-once)); the default on a server of one user. `call`: each call has a "
        "process of its own, which ends with it (`--fresh`). [isolation.md](isolation.md#worker-reuse) "
        "compares them.",
    )
    worker_start: Literal["fork", "load"] = Field(
        "fork",
        description="`fork`: workers are forked from a process that has loaded the tool files. `load`: each "
        "worker loads them itself, and may read its own files in `/proc` in every tier: "
        "[isolation.md](isolation.md#reading-procself).",
    )
    background_jobs: Annotated[bool, PER_TOOL] = Field(
        default=False,
        description="Whether background work of a tool may run between calls, if its author requests that "
        'with `meta={"toolcell": {"background": True}}`: [isolation.md](isolation.md#background-jobs). '
        'Needs `worker_reuse = "user"`.',
    )


class ResultSettings(StoreSettings):
    """The form in which results and files reach a client."""

    artifact_delivery: Literal["auto", "reference", "inline"] = Field(
        "auto",
        description="Form of artifacts for an MCP client: `auto`, `reference` or `inline`; `auto` follows "
        "the client's request.",
    )
    file_delivery: Literal["auto", "path", "url"] = Field(
        "auto",
        description="Form of the files named by `filename` and `filenames`: the `path` of a copy in the "
        "home, or the `url` of a download link; `auto` is the path, since a tool file shares the disk with "
        "the host. `file_names` always become links.",
    )
    iframe_origins: Names = Field(
        (),
        description="Web origins, such as `https://dash.example.com`, whose pages a result may open beside "
        "the chat; `*` is every origin.",
    )
    contract: Annotated[Literal["auto", "full", "guard"], Flag()] = Field(
        "auto",
        description="Whether `runner proxy` treats tools of other servers like our own (`full`) or guards "
        "their results only (`guard`): `auto`, `full` or `guard`; `auto` decides by the arguments of each "
        "tool. See [the proxy](proxy.md).",
    )
    resource_tools: bool = Field(
        default=False,
        description="Whether a model gets the tools `SERVER.resources_list`, `SERVER.resources_read` and "
        "`SERVER.resources_templates_list`. With them it reads the resources of the tool file or of [a "
        "server behind the proxy](proxy.md#reading-stored-content).",
    )
    code_mode: Annotated[bool, Flag()] = Field(
        default=False,
        description="Whether clients get `search`, `get_schema` and `execute` in place of the tools, which "
        "Python code then calls in a confined worker ([serving.md](serving.md#code-mode)).",
    )
    extras: Literal["off", "resources", "instructions", "descriptions"] = Field(
        "instructions",
        description="Additions to the tool file, each with those before it: `off`, none; `resources`, the "
        "runner's own resources (`runner://…`) and prompts; `instructions`, a list of the user's files in "
        "the server's instructions; `descriptions`, that list in the description of each tool that takes "
        "files ([guide.md](guide.md#the-block-for-models)).",
    )

    @property
    def has_extras(self) -> bool:
        """Return whether the runner adds tools or resources of its own to the tool file."""
        return self.extras != "off"


class ObservationSettings(SettingsTable):
    """Log, audit log and metrics."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], NARROWS, Flag()] = Field(
        "info", description="Lowest level logged: `debug`, `info`, `warning` or `error`."
    )
    log_format: Annotated[Literal["text", "json"], NARROWS, Flag()] = Field(
        "text", description="`text` or `json`, one record a line on standard error."
    )
    tool_output: Literal["log", "drop", "client"] = Field(
        "log",
        description="`log`: printed and raised output of a tool is logged, at most the last 200 lines of a "
        "call, each with its `call_id`. `drop`: it is not. `client`: the client of the call also gets it as "
        "log messages, as with `runner dev` by default. `runner call` prints it in any case.",
    )
    audit_dir: PrivatePath | None = Field(
        None,
        description="Folder of the [audit log](operating.md#audit-log), with a line for each call. Unset: no "
        "audit log.",
    )
    metrics_address: HostPort | None = Field(
        None,
        description="`HOST:PORT` of a separate address with [`/metrics`](operating.md#metrics) for "
        "Prometheus; port 0 chooses a free one, if `allow_net` is not set. Not with `isolation` `guard`.",
    )


class FleetSettings(SettingsTable):
    """The fleet that executes calls, if one does."""

    redis_url: Annotated[SecretStr | None, Flag("URL")] = Field(
        None,
        description="Redis of a [fleet](deploying.md#a-fleet), whose worker nodes then execute the calls: "
        "`redis://HOST:PORT/0`, `rediss://:PASSWORD@HOST:PORT/0` or `unix:///PATH`. Best as "
        "`RUNNER_REDIS_URL`; `runner config` does not show it.",
    )
    redis_insecure: Annotated[bool, Flag()] = Field(
        default=False, description="Whether a Redis on another machine may do without TLS and a password."
    )
    fleet_key_file: Annotated[PrivatePath | None, Flag("FILE")] = Field(
        None,
        description="File with the key of the fleet, which authenticates its messages; the same on all "
        "machines, closed to other users.",
    )

    @property
    def is_fleet(self) -> bool:
        """Return whether worker nodes of a fleet execute calls."""
        return self.redis_url is not None


PARTS: tuple[type[BaseModel], ...] = (
    StateSettings,
    StoreSettings,
    IdentitySettings,
    ServerSettings,
    RightsSettings,
    CallSettings,
    ResultSettings,
    ObservationSettings,
    FleetSettings,
)
"""The parts, in the order of the documentation."""
