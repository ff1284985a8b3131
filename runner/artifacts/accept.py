"""Take the files of a result: open each, keep it for the user, decide how it travels.

A file that is refused never takes a good result along. What leaves has no `path`: an artifact
carries `b64`, or an internal `s3_ref` that `runner.steps.client_message` replaces before a client sees it.
Deferred files go the same way and are kept until they expire.

Source: document 001, sections 6.2 and 7; rules N8, N10, N12, R1 to R3, DF1 and DF2 of the conformance
cases; requirements S0-22, S1-2, S1-25 to S1-27, S1-63, S1-71, S1-72 and S2-3.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from runner.artifacts.deferred import deferral, described
from runner.artifacts.named_file import Collected, OpenHome, collect, paths_in_home, relative_to_home
from runner.artifacts.route import Route, route, s3_ref, too_many_bytes
from runner.contract.error_messages import RefusedFile, empty_file, envelope, outside_home, with_refusals
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import Normalised, flag_meta_data
from runner.errors import CallError, Code
from runner.files.my_files import SCHEME, Deferral
from runner.formats.base64 import decode, encode_file
from runner.formats.magic import mime_types
from runner.store.noop import does_not_fit, is_lost
from runner.store.protocol import Record
from runner.system.threads import in_thread, run_in_thread
from sandbox.call_value import call_value

__all__ = [
    "REASONS",
    "ArtifactFile",
    "Keep",
    "Processed",
    "failed",
    "process_artifacts",
    "reason_of",
    "without_lost",
]

_log = logging.getLogger(__name__)

# What is longer is read and decoded in a thread, so that it holds up no other call.
_SHORT_BYTES = 64 * 1024

REASONS = {
    Code.E_INVALID_PATH: "invalid_path",
    Code.E_FILE_TOO_LARGE: "file_too_large",
    Code.E_INVALID_RESULT: "missing_path",
    Code.E_STORE: "store_unavailable",
    Code.E_QUOTA: "quota_exceeded",
}
"""Why a file was refused, as the contract says it in a word."""


def reason_of(error: CallError) -> str:
    """Return in a word why a file was refused."""
    known = REASONS.get(error.code, error.code.name.removeprefix("E_").lower())
    return str(error.details.get("refused_for", known))


class Keep(Protocol):
    """Puts a file into the user's My Files."""

    async def __call__(
        self, fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool
    ) -> Record:
        """Keep the bytes of `fd`, which is read from its start and stays the caller's.

        Args:
            fd: The file.
            name: The name wanted.
            mime: Its MIME type.
            deferral: Until when and why it is deferred, if it is.
            temporary: Whether it is for this answer only, and not for My Files.

        Raises:
            CallError: `E_STORE`, `E_QUOTA` or `E_FILE_TOO_LARGE`.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """One accepted file.

    Attributes:
        id: Id in the store.
        name: Its name in My Files.
        mime: Its MIME type.
        size: Measured length in bytes.
        sha256: Hex digest of its bytes.
        origin: The path or base64 by which the tool gave it, where it did.
        is_content: Whether that is base64.
        block: Index of the content block that it was, or None.
        is_stored: Whether the store has it; else it travels inside the message, or not at all.
    """

    id: str
    name: str
    mime: str
    size: int
    sha256: str
    origin: str | None = field(default=None, repr=False)
    is_content: bool = False
    block: int | None = None
    is_stored: bool = True

    @property
    def uri(self) -> str:
        """Return the URI under which clients read it."""
        return f"{SCHEME}{self.id}"


@call_value
class Processed:
    """A result in its processed form.

    Attributes:
        value: The contract value; its `artifacts` pair with `files` by position. No paths.
        files: The accepted artifacts, in order.
        deferred: The accepted deferred artifacts, in order.
        errors: What was left out.
        texts: Texts of the tool beside the payload.
        failure: The error that the whole result is, if the runner or a file made it one.
        is_own: Whether the tool returned no contract value, but one of its own that is handed on as it is.
        inodes: Inodes of the files of the home that were read.
        generated: What was found in the home and is not in the result: see `runner.artifacts.generated`.
        places: For each path at which a file that was kept lay in the home: what stands for it.
    """

    # Not in its repr: `asyncio.run` writes the one of what it returns, and a value may hold 400 MB.
    value: dict[str, Any] = field(repr=False)
    files: tuple[ArtifactFile, ...] = ()
    deferred: tuple[ArtifactFile, ...] = ()
    errors: tuple[RefusedFile, ...] = ()
    texts: tuple[str, ...] = field(default=(), repr=False)
    failure: CallError | None = None
    is_own: bool = False
    inodes: frozenset[int] = frozenset()
    generated: tuple[Mapping[str, Any], ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_error(self) -> bool:
        """Return whether the result stands for an error."""
        meta_data = self.value.get("meta_data")
        return isinstance(meta_data, dict) and meta_data.get("is_error") is True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    home: OpenHome | None
    inline_max_bytes: int
    max_bytes: int
    keep: Keep
    now: datetime
    temporary: bool


@dataclass(slots=True)
class _Progress:
    files: list[ArtifactFile] = field(default_factory=list)
    entries: list[dict[str, Any]] = field(default_factory=list)
    deferred_files: list[ArtifactFile] = field(default_factory=list)
    deferred: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[RefusedFile] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    inodes: set[int] = field(default_factory=set)
    places: dict[str, str] = field(default_factory=dict)
    total_bytes: int = 0
    inline_bytes: int = 0


def without_lost(processed: Processed) -> Processed:
    """Return a result for a message without bytes: files that no store has kept are told as refused."""
    if all(file.is_stored for file in processed.files):
        return processed
    value = {key: item for key, item in processed.value.items() if key != "artifacts"}
    pairs = zip(processed.value["artifacts"], processed.files, strict=True)
    accepted = [(entry, file) for entry, file in pairs if file.is_stored]
    if accepted:
        value["artifacts"] = [entry for entry, _ in accepted]
    lost = [file for file in processed.files if not file.is_stored]
    refusals = [_refused({"name": file.name}, does_not_fit(file.name)) for file in lost]
    value["meta_data"] = with_refusals(value.get("meta_data", {}), refusals)
    files, errors = tuple(file for _, file in accepted), (*processed.errors, *refusals)
    return _failed_if_empty(replace(processed, value=value, files=files, errors=errors))


def failed(error: CallError) -> Processed:
    """Return the result of a call that ended with `error`, of which only what it says is kept.

    With its traceback it would hold every frame it came through, and they the result: a circle.
    """
    return Processed(value=envelope(error), failure=error.with_traceback(None))


async def process_artifacts(
    normalised: Normalised,
    *,
    home: OpenHome | None,
    inline_max_bytes: int,
    max_bytes: int,
    keep: Keep,
    now: datetime | None = None,
) -> Processed:
    """Take the files of a normalised result.

    No process of the call may be alive any more.

    Args:
        normalised: The result; not changed.
        home: The home of the call, or None if its tool has none.
        inline_max_bytes: Largest file that travels as base64, and the most that all files of the call
            together do; `NEVER_INLINE` for none.
        max_bytes: Hard cap of one file, and of all files of the call together.
        keep: Puts each accepted file into My Files.
        now: The present time; by default the clock's.
    """
    for warning in normalised.warnings:
        _log.warning("tool result repaired", extra={"detail": warning})
    if not normalised.refusals and normalised.value.keys().isdisjoint(FILE_LISTS):
        # No file, taken or refused: nothing of the value changes.
        is_own = not normalised.speaks_contract
        return Processed(value=dict(normalised.value), texts=normalised.texts, is_own=is_own)
    rules = _Rules(
        home=home,
        inline_max_bytes=inline_max_bytes,
        max_bytes=max_bytes,
        keep=keep,
        now=now or datetime.now(UTC),
        temporary=_is_temporary(normalised.value),
    )
    progress = _Progress()
    blocks = {name: index for index, name in normalised.blocks.items()}
    entries = normalised.value.get("artifacts", [])
    for entry, origin in zip(entries, normalised.origins, strict=True):
        await _take(entry, origin, blocks.get(entry["name"]), rules, progress)
    for entry in normalised.value.get("deferred_artifacts", []):
        await _defer(entry, rules, progress)
    return _result(normalised, progress)


async def _take(
    entry: Mapping[str, Any], origin: str | None, block: int | None, rules: _Rules, progress: _Progress
) -> None:
    outcome = await _put_in_store(entry, None, rules, progress)
    if outcome is None:
        return
    stored, carried = outcome
    _compare_size(entry, stored.size)
    progress.entries.append(_processed(entry, stored, carried))
    progress.files.append(_file(entry, stored, origin=origin, block=block))


async def _defer(entry: Mapping[str, Any], rules: _Rules, progress: _Progress) -> None:
    wanted = deferral(entry, now=rules.now)
    outcome = await _put_in_store(entry, wanted, rules, progress)
    if outcome is None:
        return
    stored, carried = outcome
    progress.deferred.append(described(_processed(entry, stored, carried), wanted))
    progress.deferred_files.append(_file(entry, stored, origin=str(entry["path"]), block=None))


async def _put_in_store(
    entry: Mapping[str, Any], wanted: Deferral | None, rules: _Rules, progress: _Progress
) -> tuple[Record, dict[str, Any]] | None:
    """Keep a file; return it and how it travels, or None where it was refused."""
    try:
        async with _reading(entry, rules) as source:
            if not source.size and "path" in entry and entry["mime"] in mime_types():
                raise empty_file(str(entry["path"]), entry["mime"])
            way = _way(source.size, rules, progress)
            if "path" in entry:
                progress.inodes.add(source.inode)
            # A deferred file is wanted later, whatever becomes of the others.
            passing = rules.temporary and wanted is None
            name, mime = entry["name"], entry["mime"]
            stored = await rules.keep(source.fd, name=name, mime=mime, deferral=wanted, temporary=passing)
            if way is not Route.INLINE and is_lost(stored):
                raise does_not_fit(name)
            carried = s3_ref(stored)
            if way is Route.INLINE:
                carried = {"b64": await _encoded(source)}
                progress.inline_bytes += source.size
    except CallError as error:
        progress.refusals.append(_refused(entry, error))
        return None
    except EOFError as error:
        # Another call of the same user may still write in this home.
        folder = None if rules.home is None else rules.home.path
        changed = outside_home(str(entry.get("path")), folder, problem=str(error))
        progress.refusals.append(_refused(entry, changed))
        return None
    progress.renamed[entry["name"]] = stored.shown
    if "path" in entry and rules.home is not None:
        relative = relative_to_home(entry["path"], rules.home.path)
        stands_there = stored.shown if is_lost(stored) else f"{SCHEME}{stored.id}"
        paths = paths_in_home(str(relative), rules.home.path)
        progress.places |= dict.fromkeys(paths, stands_there)
    return stored, carried


def _is_temporary(value: Mapping[str, Any]) -> bool:
    display = value.get("display")
    return isinstance(display, Mapping) and display.get("storage_action") == "temporary"


def _way(size: int, rules: _Rules, progress: _Progress) -> Route:
    """Return the form in which a file travels, and count it."""
    left = rules.inline_max_bytes - progress.inline_bytes
    way = route(size, inline_max_bytes=left, max_bytes=rules.max_bytes)
    if progress.total_bytes + size > rules.max_bytes:
        raise too_many_bytes(size, progress.total_bytes, rules.max_bytes)
    progress.total_bytes += size
    return way


def _file(entry: Mapping[str, Any], stored: Record, *, origin: str | None, block: int | None) -> ArtifactFile:
    return ArtifactFile(
        id=stored.id,
        name=stored.shown,
        mime=entry["mime"],
        size=stored.size,
        sha256=stored.sha256,
        origin=origin,
        is_content="b64" in entry,
        block=block,
        is_stored=not is_lost(stored),
    )


@asynccontextmanager
async def _reading(entry: Mapping[str, Any], rules: _Rules) -> AsyncIterator[Collected]:
    if "b64" in entry and len(entry["b64"]) <= _SHORT_BYTES:
        # Decoding it takes less than a thread does.
        with _opened(entry, rules) as source:
            yield source
    else:
        async with in_thread(_opened(entry, rules)) as source:
            yield source


async def _encoded(source: Collected) -> str:
    if source.size <= _SHORT_BYTES:
        return encode_file(source.fd, source.size)
    return await run_in_thread(encode_file, source.fd, source.size)


@contextmanager
def _opened(entry: Mapping[str, Any], rules: _Rules) -> Iterator[Collected]:
    if "b64" in entry:
        with _in_memory(decode(entry["b64"])) as source:
            yield source
    elif rules.home is None:
        raise outside_home(str(entry["path"]), None)
    else:
        with collect(entry["path"], rules.home, max_bytes=rules.max_bytes) as source:
            yield source


@contextmanager
def _in_memory(content: bytes) -> Iterator[Collected]:
    fd = os.memfd_create("artifact", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as target:
            target.write(content)
        os.lseek(fd, 0, os.SEEK_SET)
        yield Collected(fd=fd, size=len(content))
    finally:
        os.close(fd)


def _compare_size(entry: Mapping[str, Any], size: int) -> None:
    declared = entry.get("size", size)
    if declared != size:
        detail = f"artifact {entry['name']!r} declares size {declared!r}, measured {size}"
        _log.warning("tool result repaired", extra={"detail": detail})


def _processed(entry: Mapping[str, Any], stored: Record, carried: dict[str, Any]) -> dict[str, Any]:
    ours = {"name": stored.name, **carried, "mime": entry["mime"], "size": stored.size}
    if stored.pending:
        # Kept on this machine and on its way to the store: who reads it elsewhere has to wait.
        ours["pending"] = True
    return ours | {
        key: value for key, value in entry.items() if key not in ours and key not in ("b64", "path")
    }


def _refused(entry: Mapping[str, Any], error: CallError) -> RefusedFile:
    return RefusedFile(name=entry["name"], reason=reason_of(error), error=error)


def _result(normalised: Normalised, progress: _Progress) -> Processed:
    value = {key: item for key, item in normalised.value.items() if key not in FILE_LISTS}
    if progress.refusals:
        value["meta_data"] = with_refusals(value.get("meta_data", {}), progress.refusals)
    value |= {key: items for key, items in _lists(progress).items() if items}
    if "display" in value:
        value["display"] = _renamed_display(value["display"], progress.renamed)
    return _failed_if_empty(
        Processed(
            value=value,
            files=tuple(progress.files),
            deferred=tuple(progress.deferred_files),
            errors=(*normalised.refusals, *progress.refusals),
            texts=normalised.texts,
            is_own=not normalised.speaks_contract,
            inodes=frozenset(progress.inodes),
            places=progress.places,
        )
    )


def _failed_if_empty(processed: Processed) -> Processed:
    """Return a result, an error if nothing is left of it but files that were refused."""
    value, refusals = processed.value, processed.errors
    if not refusals or not _says_nothing(value, processed.texts):
        return replace(processed, value=flag_meta_data(value))
    failure = refusals[0].error
    failed = envelope(failure)
    value = {**value, **failed, "meta_data": {**value["meta_data"], **failed["meta_data"]}}
    return replace(processed, value=flag_meta_data(value), failure=failure, is_own=False)


def _lists(progress: _Progress) -> dict[str, list[dict[str, Any]]]:
    return {"artifacts": progress.entries, "deferred_artifacts": progress.deferred}


def _renamed_display(display: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    primary = display.get("primary_file")
    if not isinstance(primary, str):
        return display
    return display | {"primary_file": renamed.get(primary, primary)}


def _says_nothing(value: Mapping[str, Any], texts: tuple[str, ...]) -> bool:
    keys = ("artifacts", "deferred_artifacts", "canvas", "links")
    return value.get("results") is None and not texts and not any(key in value for key in keys)
