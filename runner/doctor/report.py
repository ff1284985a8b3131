"""`runner doctor`: report of what this machine and configuration can and cannot enforce, with remedies.

Layers are tried, not guessed from a version: `sandbox.probe.machine.layers` confines a child for each.

`--repair` removes orphaned bytes and expired files of the store. Files with missing bytes are reported and
stay listed: only their owner can decide whether to put them again or to remove them.

Source: `docs/operating.md`, "The store".
"""

import asyncio
import enum
import importlib.metadata
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.errors import CallError, RunnerError
from runner.files.my_files import open_library
from runner.settings.execution import LibrarySettings
from runner.settings.isolation import AUTO
from runner.settings.settings import Settings
from runner.store.local.blobs import LocalBlobs
from runner.store.local.conversion import is_old
from runner.store.protocol import Reason, Removal
from runner.store.reports import Damage, Reporting
from runner.store.spool import Spool
from runner.store.store import BlobStore
from runner.system.openat import ficlone
from runner.system.state_access import account_name, denied_in
from runner.system.state_files import apart_in
from runner.users.gateway_tls import GatewayTls
from runner.users.identity import auth_provider, check_startable
from runner.users.tool_secrets import secret_fault
from sandbox.probe.gate import try_gate
from sandbox.probe.machine import Probe, Tier, layers, probe

if TYPE_CHECKING:
    from runner.store.s3.health import Lost

__all__ = [
    "SUPPORTED",
    "DoctorLine",
    "DoctorReport",
    "Level",
    "examine",
    "missing",
    "note",
    "ok",
    "reflinks",
    "repair",
    "report",
    "verify",
]

SUPPORTED = {"fastmcp": ((4, 1, 2), (4, 3)), "mcp": ((2, 3), (2, 4))}
"""Tested versions: from the first, below the second, as in pyproject.toml."""

_LITTLE_SPACE = 1024**3
_CURES = {
    "landlock": "use Linux 6.2 or newer with landlock in its lsm= list, and a profile that allows its calls",
    "seccomp": "use a kernel built with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
}
_OTHER_CURE = "look for a container profile that forbids it; docs/deploying.md has one that works"
_GATE_CURE = "they need Linux 5.9, kernel.yama.ptrace_scope at most 1, and no other listener on the filters"


class Level(enum.Enum):
    """Kind of a line."""

    OK = "ok"
    NOTE = "note"
    MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorLine:
    """One finding.

    Attributes:
        section: Its section: machine, isolation, folders, versions or configuration.
        name: The checked item.
        level: Its status; `MISSING` makes the command fail.
        detail: The finding.
        cure: The remedy; always present if something is missing.
    """

    section: str
    name: str
    level: Level
    detail: str
    cure: str | None = None

    def __post_init__(self) -> None:
        if self.level is Level.MISSING and not self.cure:
            raise ValueError(f"a missing line needs its cure: {self.name}")


def ok(section: str, name: str, detail: str) -> DoctorLine:
    """Return a line about an item in order."""
    return DoctorLine(section=section, name=name, level=Level.OK, detail=detail)


def note(section: str, name: str, detail: str, cure: str | None = None) -> DoctorLine:
    """Return a line about an item that works but could be better."""
    return DoctorLine(section=section, name=name, level=Level.NOTE, detail=detail, cure=cure)


def missing(section: str, name: str, detail: str, cure: str) -> DoctorLine:
    """Return a line about a missing requirement."""
    return DoctorLine(section=section, name=name, level=Level.MISSING, detail=detail, cure=cure)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """All findings.

    Attributes:
        tier: Isolation tier in force, or None if calls cannot be confined as configured.
        lines: The findings, in reading order.
    """

    tier: str | None
    lines: tuple[DoctorLine, ...]

    @property
    def exit_status(self) -> int:
        """Return 0 if no requirement is missing, else 1."""
        return 1 if any(line.level is Level.MISSING for line in self.lines) else 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable object."""
        lines = [{**asdict(line), "level": line.level.value} for line in self.lines]
        return {"ok": self.exit_status == 0, "tier": self.tier, "lines": lines}

    def text(self) -> str:
        """Return the report for people: a block for each section, the remedy below its line."""
        rows: list[str] = []
        section = ""
        width = max((len(line.name) for line in self.lines), default=0)
        for line in self.lines:
            if line.section != section:
                section = line.section
                rows += ["", section]
            rows.append(f"  {line.level.value:<8} {line.name:<{width}} {line.detail}")
            if line.cure:
                rows.append(f"  {'':<8} {'':<{width}} → {line.cure}")
        return "\n".join([f"isolation: {self.tier or 'none, calls would be refused'}", *rows])


def report(settings: Settings, *more: DoctorLine, whole_bucket: bool = False) -> DoctorReport:
    """Check the machine, the folders, the versions and the configuration.

    Args:
        settings: The effective settings.
        more: Further findings.
        whole_bucket: Whether a store in S3 is listed to its end.
    """
    offered = probe(uid=settings.uids.start)
    tier = _tier(settings, offered)
    lines = (
        *_machine(offered),
        *_layers(tier),
        *_links(),
        *_tiers(settings, offered, tier),
        *_folders(settings),
        *_bucket(settings, whole=whole_bucket),
        *(_denied(settings) or _local_store(settings)),
        *_versions(),
        *_configuration(settings),
        *more,
    )
    return DoctorReport(tier=tier.value if tier else None, lines=lines)


def reflinks(source: Path, target: Path) -> bool:
    """Return whether a file of `source` can be cloned into `target` without copying its bytes.

    Raises:
        OSError: A file cannot be created in one of the folders.
    """
    with tempfile.TemporaryFile(dir=source) as original, tempfile.TemporaryFile(dir=target) as clone:
        original.write(b"reflink")
        original.flush()
        return ficlone(original.fileno(), clone.fileno())


def _tier(settings: Settings, offered: Probe) -> Tier | None:
    if settings.isolation == "auto":
        return next((tier for tier in AUTO if not offered.missing(tier)), None)
    wanted = Tier(settings.isolation)
    return None if offered.missing(wanted) else wanted


def _machine(offered: Probe) -> Iterator[DoctorLine]:
    system = platform.system()
    detail = f"{system} {offered.kernel} {offered.architecture}"
    if system == "Linux":
        yield ok("machine", "kernel", detail)
    else:
        yield missing("machine", "kernel", detail, "run it on Linux, in a container or a virtual machine")


def _layers(tier: Tier | None) -> Iterator[DoctorLine]:
    for layer in layers():
        level, cure = Level.OK, None
        if not layer.enforced:
            level = Level.NOTE if tier is Tier.GUARD else Level.MISSING
            cure = _CURES.get(layer.name, _OTHER_CURE)
        yield DoctorLine(section="layers", name=layer.name, level=level, detail=layer.detail, cure=cure)


def _links() -> Iterator[DoctorLine]:
    tried = try_gate()
    if tried.enforced:
        yield ok("layers", "links for tools", tried.detail)
    else:
        cure = 'links for tools (`file_names`, `file_delivery = "url"`) do not work here; ' + _GATE_CURE
        yield note("layers", "links for tools", tried.detail, cure)


def _tiers(settings: Settings, offered: Probe, force: Tier | None) -> Iterator[DoctorLine]:
    if force is Tier.GUARD:
        detail = "chosen by name: the kernel enforces nothing, a hostile tool file gets out"
        cure = "use it for your own tool files only; leave --isolation out elsewhere"
        yield note("tiers", "guard", detail, cure)
    for tier in AUTO:
        faults = offered.missing(tier)
        wanted = force is None and settings.isolation in (tier.value, "auto")
        if tier is force:
            yield ok("tiers", tier.value, "in force")
        elif not faults:
            yield ok("tiers", tier.value, "available")
        elif wanted and (tier is Tier.PROCESS or settings.isolation != "auto"):
            is_chosen = settings.isolation != "auto"
            detail = "asked for, not available" if is_chosen else "not available, and no other either"
            yield missing("tiers", tier.value, detail, "; ".join(faults))
        else:
            yield note("tiers", tier.value, "; ".join(faults))


def _reuse(settings: Settings) -> str:
    """Return the lifetime of a user's processes, and the tools with another one."""
    shared, single = "stay with their user between calls", "serve one call each"
    usual = settings.worker_reuse
    others = sorted(name for name, tool in settings.tools.items() if tool.worker_reuse not in (None, usual))
    detail = f"{single if usual == 'call' else shared} (worker_reuse = {usual})"
    return f"{detail}; not so for {', '.join(others)}" if others else detail


def _jobs(settings: Settings) -> str:
    """Return whether background jobs may run between calls, and the tools with another setting."""
    usual = settings.lets_go_on()
    others = sorted(name for name in settings.tools if settings.lets_go_on(name) != usual)
    detail = "go on between calls where a tool asks for it" if usual else "nothing goes on between calls"
    detail += f" (background_jobs = {str(settings.background_jobs).lower()})"
    return f"{detail}; not so for {', '.join(others)}" if others else detail


def _folders(settings: Settings) -> Iterator[DoctorLine]:
    yield _own_folder("state", settings.state_dir)
    if names := [str(path.relative_to(settings.state_dir)) for path in apart_in(settings.state_dir)]:
        detail = f"{len(names)} damaged files are set apart: {', '.join(names[:3])}"
        yield note("folders", "state", detail, "look at what was damaged and why, then delete it")
    yield _own_folder("store", settings.store_path)
    yield _homes_folder(settings.homes)
    yield from _sharing(settings.store_path, settings.homes)


def _denied(settings: Settings) -> list[DoctorLine]:
    """Return a line for each file of ours that this user may not use, and whose content is unknown."""
    found = denied_in(settings.state_dir, settings.local_store)
    return [missing("folders", "access", f"{denied.path} {denied.problem}", denied.cure) for denied in found]


def _bucket(settings: Settings, *, whole: bool) -> Iterator[DoctorLine]:
    if settings.store_scheme != "s3":
        return
    # Only here: boto3 takes a while to import.
    from runner.store.s3 import health  # noqa: PLC0415

    fault = health.fault_of(settings)
    if fault is not None:
        yield missing("store", "bucket", f"{settings.store}: {fault.reason}", fault.cure)
        return
    yield ok("store", "bucket", f"{settings.store}: answers")
    try:
        yield _records(health.lost_records(settings, in_all=whole))
    except CallError as error:
        yield missing("store", "records", error.message, "make the bucket usable, then try again")


def _records(lost: "Lost") -> DoctorLine:
    cut = f"the listing was cut after {lost.objects} objects, {lost.users} users whole"
    if not lost.files and lost.is_cut:
        detail = f"each file that was looked at has its record; {cut}"
        cure = "runner doctor --whole-bucket looks at all, a request for each thousand objects"
        return note("store", "records", detail, cure)
    if not lost.files:
        return ok("store", "records", "each file has its record")
    rest = f"; {cut}: runner doctor --whole-bucket looks at all" if lost.is_cut else ""
    detail = f"{lost.files} files have lost their record, so nobody finds them; their bytes are there{rest}"
    cure = "put the records back, from a version of the bucket for instance; the bytes are kept until then"
    return missing("store", "records", detail, cure)


def _local_store(settings: Settings) -> Iterator[DoctorLine]:
    if settings.store_scheme == "s3":
        found = Spool(settings.spool_path).unsure()
        cure = "they are kept and not sent; docs/operating.md says what to do with them"
        if found:
            detail = f"{len(found)} waiting files have no record that can be read: {', '.join(found[:3])}"
            yield note("store", "spool", detail, cure)
        return
    if settings.store_scheme != "file":
        is_memory = settings.store_scheme == "memory"
        lifetime = "as long as the process that keeps them" if is_memory else "not at all"
        yield ok("store", "files", f"{settings.store} keeps them {lifetime}")
        return
    try:
        yield from examine(settings.store_path)
    except OSError as error:
        yield missing("store", "records", f"cannot be read: {error.strerror}", "let this user read the store")


def examine(root: Path) -> Iterator[DoctorLine]:
    """Yield records of a local store that cannot be read, and bytes without a record; change nothing.

    Raises:
        OSError: It cannot be read.
    """
    if is_old(root):
        cure = "runner doctor --repair, or the next start of a server, converts them"
        yield note("store", "records", "they are those of an earlier version", cure)
        return
    store = BlobStore(LocalBlobs(root))
    unread = store.unread()
    for key in unread:
        cure = "restore it from a backup, or remove it and put the file again"
        yield missing("store", "records", f"{key} cannot be read", cure)
    if root.exists() and not unread:
        yield ok("store", "records", "sound")
    apart: dict[str, list[int]] = {}
    for blob in store.orphans():
        apart.setdefault("/".join(blob.key.split("/")[:3]), []).append(blob.size)
    for folder, sizes in apart.items():
        detail = f"{folder}: {len(sizes)} files of {sum(sizes)} bytes that no record knows"
        cure = "docs/operating.md describes what they are, how to get files back and how to remove them"
        yield note("store", "bytes", detail, cure)


def _own_folder(name: str, path: Path) -> DoctorLine:
    # Unlike `Path.exists`, this does not raise: an inaccessible path has a line of its own.
    there = next(folder for folder in (path, *path.parents) if os.path.exists(folder))
    status = there.stat()
    usable = stat.S_ISDIR(status.st_mode) and os.access(there, os.W_OK | os.X_OK)
    made = "will be made in" if usable else "is not there, and this user can make nothing in"
    found = f"{path}: {_described(there)}" if there == path else f"{path}: {made} {there}"
    if not usable or (there == path and status.st_uid != os.geteuid()):
        cure = f"make it, as a folder of the user {account_name(os.geteuid())}, or name another with RUNNER_"
        cure += "STATE_DIR" if name == "state" else "STORE"
        return missing("folders", name, found, cure)
    if there == path and status.st_mode & 0o077:
        return note("folders", name, f"{found}, open to others", f"chmod 700 {path}")
    return _with_space(name, found, there)


def _homes_folder(path: Path) -> DoctorLine:
    if not path.is_dir():
        cure = f"mkdir -m 1777 {path}, or name another with RUNNER_HOMES"
        return missing("folders", "homes", f"{path}: no folder", cure)
    status, found = path.stat(), f"{path}: {_described(path)}"
    if status.st_uid not in (0, os.geteuid()):
        cure = "let it belong to root or to this user, or name another with RUNNER_HOMES"
        return missing("folders", "homes", found, cure)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        cure = f"chmod +t {path}: without it anybody may replace a home"
        return missing("folders", "homes", found, cure)
    if not os.access(path, os.W_OK | os.X_OK):
        cure = f"let {account_name(os.geteuid())} write there, or name another with RUNNER_HOMES"
        return missing("folders", "homes", found, cure)
    return _with_space("homes", found, path)


def _sharing(store: Path, homes: Path) -> Iterator[DoctorLine]:
    there = next(folder for folder in (store, *store.parents) if os.path.exists(folder))
    try:
        shared = reflinks(there, homes)
    except OSError:
        # The lines above report the fault of the folder.
        return
    if shared:
        yield ok("folders", "reflink", "inputs are staged without copying")
    else:
        cure = "for large inputs put store and homes on one XFS or Btrfs file system"
        yield note("folders", "reflink", "inputs are copied when they are staged", cure)


def _with_space(name: str, found: str, path: Path) -> DoctorLine:
    free = shutil.disk_usage(path).free
    detail = f"{found}, {free / 1024**3:.1f} GiB free"
    if free < _LITTLE_SPACE:
        return note("folders", name, detail, "free some space")
    return ok("folders", name, detail)


def _described(path: Path) -> str:
    status = path.stat()
    return f"{stat.filemode(status.st_mode)} of {account_name(status.st_uid)}"


def _versions() -> Iterator[DoctorLine]:
    yield ok("versions", "python", platform.python_version())
    for name, (first, end) in SUPPORTED.items():
        found = importlib.metadata.version(name)
        wanted = f">={'.'.join(map(str, first))},<{'.'.join(map(str, end))}"
        number = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
        if first <= number < end:
            yield ok("versions", name, found)
        else:
            yield missing("versions", name, found, f"pip install '{name}{wanted}'")


def _secrets(settings: Settings) -> Iterator[DoctorLine]:
    for name, secret in settings.secrets.items():
        fault = secret_fault(name, secret)
        if fault:
            cure = f"the server does not start without it; fix it, or take [secrets.{name}] out"
            yield missing("configuration", "secret", fault, cure)
        else:
            detail = f"{name}, for {', '.join(secret.tools)}: {secret.report}"
            yield ok("configuration", "secret", detail)


def _configuration(settings: Settings) -> Iterator[DoctorLine]:
    try:
        auth_provider(settings)
        tls = GatewayTls.of(settings)
        if settings.transport == "http":
            check_startable(settings, "http")
    except RunnerError as error:
        cure = "docs/settings.md lists what belongs together, under HTTP"
        yield missing("configuration", "auth", str(error), cure)
    else:
        yield ok("configuration", "auth", settings.auth.kind)
        for warning in () if tls is None else tls.warnings:
            cure = "renew it; new connections are made with it without a restart"
            yield note("configuration", "auth", warning, cure)
    yield from _secrets(settings)
    yield ok("configuration", "workers", _reuse(settings))
    yield ok("configuration", "jobs", _jobs(settings))


async def repair(settings: LibrarySettings) -> tuple[DoctorLine, ...]:
    """Sweep the store, end idle sessions, and return the findings as lines of the report."""
    library = open_library(settings)
    try:
        ended = await library.end_idle_sessions(settings.session_idle_s)
        store = library.store
        removals = await store.sweep()
        lost = await asyncio.to_thread(store.missing) if isinstance(store, BlobStore) else []
    except CallError as error:
        return (missing("store", "sweep", error.message, "free the store for this user, then try again"),)
    lines = [_swept(removals, reason) for reason in (Reason.LEFT_BEHIND, Reason.EXPIRED)]
    lines.append(ok("store", "sessions", f"{ended} idle ones ended"))
    return (*lines, *map(_lost, lost))


async def verify(settings: LibrarySettings) -> tuple[DoctorLine, ...]:
    """Read everything in the store, and return the findings as lines of the report."""
    store = open_library(settings).store
    if not isinstance(store, Reporting):
        return ()
    try:
        verdict = await store.verify()
    except CallError as error:
        return (missing("store", "verify", error.message, "make the store usable, then try again"),)
    detail = f"{verdict.files} contents read, {verdict.bytes} bytes, {len(verdict.damaged)} damaged"
    return (ok("store", "verify", detail), *map(_lost, verdict.damaged))


def _swept(removals: Sequence[Removal], reason: Reason) -> DoctorLine:
    sizes = [removal.size for removal in removals if removal.reason is reason]
    name = "left over" if reason is Reason.LEFT_BEHIND else reason.value
    return ok("store", name, f"{len(sizes)} removed, {sum(sizes)} bytes")


def _lost(damage: Damage) -> DoctorLine:
    detail = f"{damage.shown!r} in {damage.area}: {damage.problem}"
    return missing("store", "damaged", detail, "put it again under its name, or remove it: runner files rm")
