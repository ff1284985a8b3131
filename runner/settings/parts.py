"""Declarations of all settings but the tables by name: default, checks, description, option, reach.

Each setting is declared here once. From the declaration come its option, its variable, its row in
`docs/settings.md`, its place in the JSON Schema, the override of a tool and the changes of a reload. A room
takes the part that it needs.

Source: `docs/settings.md`, which `scripts/settings` writes.
"""

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

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
    S3Address,
    S3Region,
    Seconds,
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


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StateSettings(_Part):
    """Isolation of calls, and the folders of state and homes."""

    isolation: Annotated[Literal["auto", "process", "user", "namespace", "guard"], Flag()] = Field(
        "auto",
        description="Tier: `auto`, `process`, `user`, `namespace` or `guard`; `auto` takes the strongest "
        "this machine offers.",
    )
    uid_range: UidRange = Field(
        "1900000000-1900065535",
        description="User ids that users get in tiers `user` and `namespace`, first and last. An id that "
        "the system knows is passed over. [isolation.md](isolation.md) says more.",
    )
    state_dir: PrivatePath = Field(
        default_factory=default_state_dir,
        description="The runner's own state: keys, locks, user ids. It may be lost: homes are known without "
        "it. What is damaged there is set apart as `NAME.damaged-…`. `XDG_STATE_HOME` is honoured.",
    )
    homes: PublicPath = Field(
        Path("/tmp"),  # noqa: S108
        description="Folder under which each user's home is made.",
    )

    @property
    def uids(self) -> range:
        """Return the user ids of `uid_range`."""
        first, last = map(int, self.uid_range.split("-"))
        return range(first, last + 1)

    @property
    def spool_path(self) -> Path:
        """Return the folder of files that wait for a store in S3."""
        return self.state_dir / "spool"

    @property
    def packages_path(self) -> Path:
        """Return the folder of packages that commands behind the proxy fetch."""
        # Not in the state folder, which is looked through at each start.
        return self.state_dir.with_name(f"{self.state_dir.name}-packages")


class StoreSettings(StateSettings):
    """My Files: the store and its limits."""

    store: Annotated[StoreUrl, Flag("URL")] = Field(
        default_factory=default_store,
        description="Where My Files are kept, as a `file:///absolute/folder` or `s3://bucket/prefix` URL; "
        "`memory:` ends with the process, `none:` keeps nothing ([operating.md](operating.md#the-store)). "
        "`XDG_DATA_HOME` is honoured.",
    )
    s3_endpoint: S3Address | None = Field(
        None,
        description="Address of the S3 server; without it, AWS. See [operating.md](operating.md#s3).",
    )
    s3_region: S3Region | None = Field(
        None, description="Region of the bucket: letters, digits and hyphens, at most 63."
    )
    s3_access_key: SecretStr | None = Field(
        None,
        description="Key id for S3; by default the standard chain of AWS finds credentials. Never shown.",
    )
    s3_secret_key: SecretStr | None = Field(
        None, description="Secret key for S3; together with `s3_access_key`. Never shown."
    )
    max_artifact_bytes: Annotated[Count, LimitFacts("file_bytes", Code.E_FILE_TOO_LARGE, "bytes"), LIVE] = (
        Field(
            50 * GIB,
            description="Largest artifact accepted, largest file a tool may write, and largest file that a "
            "request may upload ([serving.md](serving.md)), in bytes; the files of one call have no more "
            "together.",
        )
    )
    base64_size_limit_mb: Count = Field(
        300,
        description="Largest artifact handed on inline, and the most that one call hands on inline "
        "altogether, in MiB.",
    )
    max_user_bytes: Annotated[Count, LIVE] = Field(
        200 * GIB,
        description="Most that one user keeps in My Files, in bytes; equal content counts once. A file "
        "above it is refused with `E_QUOTA`, none is removed for it.",
    )
    max_file_age_s: Annotated[Seconds | None, LIVE] = Field(
        None,
        description="Age at which a file of My Files goes, in seconds since it was last put. For files put "
        "while it is set; the log has a line for each that went.",
    )
    persist_files_across_sessions: bool = Field(
        default=True, description="Whether My Files stay when a session ends."
    )
    session_idle_s: Seconds = Field(
        1800.0, description="Silence of a user after which the session has ended, in seconds."
    )
    generated: Literal["keep", "report", "ignore"] = Field(
        "keep",
        description="What becomes of files that a call wrote into its home and did not return: `keep` in My "
        "Files, `report` in the result, or `ignore`. [guide.md](guide.md#files-that-a-call-generates) "
        "says more.",
    )

    @model_validator(mode="after")
    def _has_both_keys(self) -> Self:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise ValueError("s3_access_key and s3_secret_key belong together; give both, or neither")
        return self

    @property
    def store_scheme(self) -> str:
        """Return the kind of store: `file`, `s3`, `memory` or `none`."""
        return urlsplit(self.store).scheme

    @property
    def store_path(self) -> Path:
        """Return the folder of the local store; for any other, where files wait until it takes them."""
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
        None, min_length=1, description="Serve this one user; a token of another is refused."
    )
    identity_claim: EachName = Field(
        ("email", "sub"),
        min_length=1,
        description="Claims of a token that name the user; the first present counts. An address marked as "
        "not verified is refused. Name a single claim where your login provider lets people choose the "
        "value of one. `client_id` is not a default: everybody using one client program would share a home.",
    )
    identity_pattern: Annotated[Pattern | None, NARROWS] = Field(
        None,
        description="What that claim must match, from its first character to its last, in the syntax of "
        "RE2; others are refused. `[^\\p{Lu}]+` refuses upper-case letters, `[ -~]+` letters beyond ASCII.",
    )
    identity_suffix: str | None = Field(
        None,
        min_length=1,
        description="How that claim must end, such as `@example.com`; others are refused. It is left off: "
        "`ann@example.com` is `ann`.",
    )
    username_parameter: str = Field(
        "username",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="Name of the parameter that is filled in with who calls, and gives a tool its home: "
        "another one, where tools of others have a `username` that means something else.",
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
        description="Address of this server as its users reach it, such as `https://tools.example.com`, for "
        "the download links that clients get; by default the address it listens on. Tools get links to an "
        "address of their own on this machine, which serves downloads only.",
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
        description="Address of that port as users reach it, on another host name than `public_url`; "
        "without it, widgets are shown on this machine only.",
    )
    max_request_bytes: Count = Field(
        64 * MIB,
        description="Largest body of an MCP request, and of a JSON body beside it, in bytes. One user has "
        "twice that in flight, all together eight times.",
    )
    drain_s: float = Field(
        25.0,
        ge=0,
        allow_inf_nan=False,
        description="How long calls in flight may go on when the server is told to stop, or standard input "
        "has ended (`server < requests.jsonl`), in seconds; 0 ends them at once, as `runner dev` does by "
        "default. Meanwhile new calls get `E_BUSY` and `/readyz` answers 503; clients of calls that run are "
        "told how long is left, and what has not ended by then gets `E_CANCELLED`. A second signal ends "
        "them at once. Orchestrators usually kill after 30 seconds, `docker stop` after 10 "
        "(`--stop-timeout`): leave five seconds for the end itself.",
    )
    stop_delay_s: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="How long a server over HTTP that is told to stop goes on taking calls, in seconds, "
        "while `/readyz` answers 503 already; then `drain_s` begins. Give a proxy or orchestrator in front "
        "the time of one or two of its looks, so that it sends nothing more by the time at which calls are "
        "refused and the port closes. A second signal ends the wait.",
    )

    @property
    def scheme(self) -> str:
        """Return the scheme of the server's address: `https` where it listens with TLS, else `http`."""
        return "http" if self.auth.gateway_certificate is None else "https"


class RightsSettings(_Part):
    """Rights of tools beyond their own folder and home."""

    allow_net: Annotated[Network, PER_TOOL, Flag("=HOST[:PORT],…")] = Field(
        (),
        description="Hosts and ports that tools may reach, such as `api.example.com:443`; `*` is every "
        "public address. [isolation.md](isolation.md#network) says how they are written.",
    )
    allow_run: Annotated[Programs, PER_TOOL, Flag("PROGRAM,…")] = Field(
        ("*",),
        description="The only programs that tools may run, by name or whole path; `*` is any that they may "
        "read, and an empty list none. [isolation.md](isolation.md#network) says what that is worth.",
    )
    allow_env: Annotated[Variables, PER_TOOL, Flag("NAME,…")] = Field(
        (), description="Names of environment variables that tools may see, not values; none of `RUNNER_…`."
    )
    allow_read: Annotated[Paths, PER_TOOL, Flag("PATH,…")] = Field(
        (),
        description="Folders and files that are lent to tools to read; in the file from where it lies. "
        "[isolation.md](isolation.md#lend-folders) says what that opens, and what is refused.",
    )
    allow_write: Annotated[Paths, PER_TOOL, Flag("PATH,…")] = Field(
        (), description="Folders and files that are lent to tools to read and write, for all users together."
    )
    allow_sockets: Annotated[bool, PER_TOOL, Flag()] = Field(
        default=False,
        description="Whether tools may have UNIX sockets in their home, to reach their own processes: "
        "[sockets in the home](isolation.md#sockets-in-the-home).",
    )
    allow_fetch: Annotated[bool, Flag()] = Field(
        default=False,
        description="Whether commands behind `runner proxy`, such as npx and uvx, may fetch packages and "
        "run them, from a cache folder of each server (`--allow-fetch`): [servers that are "
        "fetched](proxy.md#fetched-servers).",
    )


class CallSettings(_Part):
    """Deadlines, resource limits and processes of calls."""

    idle_timeout_s: Annotated[Seconds, LIVE, PER_TOOL, Flag("SECONDS", name="--timeout")] = Field(
        30.0, description="Longest silence of a call between two progress reports, in seconds."
    )
    total_timeout_s: Annotated[Seconds, LIVE, PER_TOOL, Flag("SECONDS", name="--total-timeout")] = Field(
        600.0, description="Longest call, whatever it reports, in seconds."
    )
    load_timeout_s: Seconds = Field(
        30.0,
        description="Longest import of a tool file, in seconds. So long `runner proxy` also waits for a "
        "server to start, or to be reached; one that imports much may need longer on a busy machine.",
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
            description="Memory of all processes of a call together, in MiB; what they share counts once. At "
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
            description="Memory of all calls of one user together, in MiB, where they have a cgroup (tier "
            "`namespace`).",
        )
    )
    user_processes: Annotated[
        int, LimitFacts("processes", Code.E_RESOURCE_LIMIT, "processes and threads"), LIVE
    ] = Field(
        512,
        ge=16,
        description="Processes and threads of one user together, where they have a user id of their own "
        "(tiers `user` and `namespace`, started by root) or a cgroup; at least 16.",
    )
    open_files: Annotated[int, LimitFacts("open_files", Code.E_RESOURCE_LIMIT, "descriptors"), LIVE] = Field(
        1024, ge=64, description="File descriptors of each process of a call; at least 64."
    )
    max_home_bytes: Annotated[Count, LimitFacts("home_bytes", Code.E_QUOTA, "bytes"), LIVE, PER_TOOL] = Field(
        128 * GIB,
        description="What a user's home holds on disk while a call runs, its input files included, in bytes.",
    )
    max_home_files: Annotated[Count, LimitFacts("home_entries", Code.E_QUOTA, "files and folders"), LIVE] = (
        Field(
            100_000,
            description="Files and folders of a user's home.",
        )
    )
    max_answer_bytes: Annotated[Count, LimitFacts("frame_bytes", Code.E_INVALID_RESULT, "bytes"), LIVE] = (
        Field(
            64 * MIB,
            description="Longest answer of a tool, as JSON, in bytes.",
        )
    )
    max_calls: Annotated[Count, LIVE] = Field(16, description="Calls that run at the same time.")
    max_calls_per_user: Annotated[Count, LIVE] = Field(
        4,
        description="Calls of one user that run at the same time. Where a server is bound to one user and "
        "calls share a process: `max_calls`.",
    )
    homes_for: Literal["declared", "all"] = Field(
        "declared",
        description="`declared`: tools that declare `username` have a home. `all`: every tool has its "
        "user's, as working folder, and one process serves all tools of a file.",
    )
    worker_reuse: Annotated[Literal["shared", "user", "call"], NARROWS, PER_TOOL] = Field(
        "user",
        description="`user`: a worker stays with its user, and what a tool file keeps in memory is there at "
        "that user's next call. `shared`: so it does, and serves several calls of that user at once "
        "([guide.md](guide.md#calls-at-once)); the default where a server is bound to one user. `call`: "
        "each call has a process of its own, which ends with it (`--fresh`). [isolation.md](isolation.md) "
        "says when to choose it.",
    )
    worker_start: Literal["fork", "load"] = Field(
        "fork",
        description="`fork`: workers are forked from a process that has loaded the tool files. `load`: each "
        "loads them for itself, and may read its own files in `/proc` in every tier: "
        "[isolation.md](isolation.md#reading-procself).",
    )
    idle_workers: int = Field(
        1,
        ge=0,
        description="Workers that wait for calls of each zygote, that is of each user and kind of tool "
        "(with a home or without; with rights of its own): with the one that served the last call, where "
        "workers stay. A burst of calls raises it to 8; half a minute in which they were not needed brings "
        "it back. With 0 none waits.",
    )
    background_jobs: Annotated[bool, PER_TOOL] = Field(
        default=False,
        description="Whether what a tool begins may go on between calls, where its author asks for that "
        'with `meta={"toolcell": {"background": True}}`: '
        '[isolation.md](isolation.md#background-jobs). Needs `worker_reuse = "user"`.',
    )


class ResultSettings(StoreSettings):
    """The form in which results and files reach a client."""

    artifact_delivery: Literal["auto", "reference", "inline"] = Field(
        "auto",
        description="How artifacts reach an MCP client: `auto`, `reference` or `inline`; `auto` asks the "
        "client's request.",
    )
    file_delivery: Literal["auto", "path", "url"] = Field(
        "auto",
        description="How a tool gets the files named by `filename` and `filenames`: as the `path` of a copy "
        "in its home, or as the `url` of a download link; `auto` is the path, since a tool file shares the "
        "disk with the host. `file_names` always become links.",
    )
    max_message_bytes: int = Field(
        900_000,
        ge=65_536,
        description="Longest result message for an MCP client, in bytes, at least 65536. A picture or sound "
        "that does not fit becomes a link that says why; of several, those that fit together stay, the "
        "first ones first. Some clients refuse messages above 1 MB.",
    )
    shrink_pictures: bool = Field(
        default=False,
        description="Whether a PNG, JPEG or WebP that does not fit is made smaller instead, of up to eight "
        "in a message. It stays what it is in My Files, and a link beside it leads there. It is decoded in "
        "a confined process of its own. Needs Pillow: `pip install 'toolcell[pictures]'`.",
    )
    iframe_origins: Names = Field(
        (),
        description="Web origins, such as `https://dash.example.com`, whose pages a result may open beside "
        "the chat; `*` is all of them.",
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
        "`SERVER.resources_templates_list`, with which it reads the resources of [a server behind the "
        "proxy](proxy.md#reading-stored-content) or of the tool file.",
    )
    code_mode: Annotated[bool, Flag()] = Field(
        default=False,
        description="Whether clients get `search`, `get_schema` and `execute` in place of the tools, which "
        "Python code then calls in a confined worker ([serving.md](serving.md#code-mode)).",
    )
    extras: Annotated[bool, NARROWS] = Field(
        default=True,
        description="Whether resources (`runner://…`) and prompts of the runner's own follow those of the "
        "tool file.",
    )
    files_block: Literal["off", "instructions", "descriptions"] = Field(
        "instructions",
        description="Where models are told of the user's files though no client asks "
        "([guide.md](guide.md#the-block-for-models)): `off`, in the server's `instructions`, or, with "
        "`descriptions`, there and in the description of each tool that takes files. `extras` off switches "
        "it off too.",
    )


class ObservationSettings(_Part):
    """Log, audit log and metrics."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], NARROWS, Flag()] = Field(
        "info", description="Least important record logged: `debug`, `info`, `warning` or `error`."
    )
    log_format: Annotated[Literal["text", "json"], NARROWS, Flag()] = Field(
        "text", description="`text` or `json`, one record a line on standard error."
    )
    tool_output: Literal["log", "drop", "client"] = Field(
        "log",
        description="`log`: what a tool prints and raises is in the log, at most the last 200 lines of a "
        "call, each with its `call_id`. `drop`: it is not. `client`: it is also sent to the client of the "
        "call as log messages, as `runner dev` does by default. `runner call` prints it in any case.",
    )
    audit_dir: PrivatePath | None = Field(
        None,
        description="Folder of the [audit log](operating.md#audit-log), which has a line for each "
        "call. Without it there is none.",
    )
    metrics_address: HostPort | None = Field(
        None,
        description="`HOST:PORT` of an address of its own at which Prometheus finds "
        "[`/metrics`](operating.md#metrics); port 0 takes a free one, where no `allow_net` is given. Not "
        "with `isolation` `guard`.",
    )


class FleetSettings(_Part):
    """The fleet that executes calls, if one does."""

    engine: Annotated[Literal["local", "docket"], Flag()] = Field(
        "local",
        description="Who executes calls: `local` workers, or `docket`: the worker nodes of a "
        "[fleet](deploying.md#a-fleet).",
    )
    redis_url: Annotated[SecretStr | None, Flag("URL")] = Field(
        None,
        description="Redis of the fleet: `redis://HOST:PORT/0`, `rediss://:PASSWORD@HOST:PORT/0` or "
        "`unix:///PATH`. Best as `RUNNER_REDIS_URL`; `runner config` does not show it.",
    )
    redis_insecure: Annotated[bool, Flag()] = Field(
        default=False, description="Whether a Redis on another machine may do without TLS and a password."
    )
    fleet_key_file: Annotated[PrivatePath | None, Flag("FILE")] = Field(
        None,
        description="File with the key of the fleet, which seals what its machines say; the same on all, "
        "closed to other users.",
    )


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
