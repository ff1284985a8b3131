"""Acceptance of the files of a result: each is opened and stored, and its form in the message decided.

A refused file never invalidates the rest of a result. An accepted artifact has no `path`: it carries `b64`,
or an internal `s3_ref` that `runner.steps.client_message` replaces before a client sees it. Deferred files
are handled in the same way and kept until they expire.

Source: document 001, sections 6.2 and 7; rules N8, N10, N12, R1 to R3, DF1 and DF2 of the conformance
cases; contradiction C14; requirements S0-22, S1-2, S1-15, S1-17, S1-25 to S1-27, S1-63, S1-69 to S1-72,
S1-75, S1-112 and S2-3.
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
from runner.contract.error_messages import (
    RefusedFile,
    empty_file,
    envelope,
    outside_home,
    too_large,
    with_refusals,
)
from runner.contract.jsonable import mapping_of
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import Normalised, flag_meta_data
from runner.errors import CallError, Code
from runner.files.my_files import SCHEME, Deferral
from runner.formats.base64 import decode, encode_file
from runner.formats.database_logs import LogBudget
from runner.formats.magic import mime_types
from runner.store.noop import does_not_fit, is_lost
from runner.store.protocol import Record
from runner.system.threads import in_thread, run_in_thread
from runner.users.usernames import home_segment
from sandbox.call_value import call_value

__all__ = [
    "NEVER_INLINE",
    "REASONS",
    "ArtifactFile",
    "Keep",
    "Processed",
    "failed",
    "process_artifacts",
    "reason_of",
    "s3_ref",
    "without_lost",
]

_log = logging.getLogger(__name__)

_BUCKET = "user-storage"
NEVER_INLINE = -1
"""Value of `inline_max_bytes`: not even an empty file is sent inside the message."""

# Longer files are read and decoded in a thread, so that they block no other call.
_SHORT_BYTES = 64 * 1024

REASONS = {
    Code.E_INVALID_PATH: "invalid_path",
    Code.E_FILE_TOO_LARGE: "file_too_large",
    Code.E_INVALID_RESULT: "missing_path",
    Code.E_STORE: "store_unavailable",
    Code.E_QUOTA: "quota_exceeded",
}
"""The contract's one-word reasons for a refused file."""


def reason_of(error: CallError) -> str:
    """Return the one-word reason for a refused file."""
    known = REASONS.get(error.code, error.code.name.removeprefix("E_").lower())
    return str(error.details.get("refused_for", known))


class Keep(Protocol):
    """Function that puts a file into the user's My Files."""

    async def __call__(
        self, fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool
    ) -> Record:
        """Store the bytes of `fd`, which is read from its start and stays open.

        Args:
            fd: The file.
            name: The requested name.
            mime: Its MIME type.
            deferral: Expiry and reason of a deferred file.
            temporary: Whether it is only for this answer, and not for My Files.

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
        origin: The path or base64 given by the tool, if any.
        is_content: Whether that is base64.
        block: Index of its original content block, or None.
        is_stored: Whether the store has it; else it is sent inside the message, or not at all.
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
        """Return the URI by which clients read it."""
        return f"{SCHEME}{self.id}"


@call_value
class Processed:
    """A result in its processed form.

    Attributes:
        value: The contract value; its `artifacts` pair with `files` by position. No paths.
        files: The accepted artifacts, in order.
        deferred: The accepted deferred artifacts, in order.
        errors: Errors of refused files.
        texts: Texts of the tool in addition to the payload.
        failure: The error that replaces the whole result, if the runner or a file caused one.
        is_own: Whether the tool returned a value outside the contract, which is passed on unchanged.
        inodes: Inodes of the files of the home that were read.
        generated: Files found in the home but not in the result: see `runner.artifacts.generated`.
        places: Replacement for each path of a stored file in the home.
    """

    # Not in its repr: `asyncio.run` formats its result, and a value may hold 400 MB.
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
        """Return whether the result is an error."""
        meta_data = self.value.get("meta_data")
        return isinstance(meta_data, dict) and meta_data.get("is_error") is True


def without_lost(processed: Processed) -> Processed:
    """Return a result for a message without bytes: files not in a store are listed as refused."""
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
    """Return the result of a call that ended with `error`, without its traceback.

    The traceback would refer to every frame it passed, and those to the result: a reference cycle.
    """
    return Processed(value=envelope(error), failure=error.with_traceback(None))


async def process_artifacts(
    normalised: Normalised,
    *,
    home: OpenHome | None,
    inline_max_bytes: int,
    max_bytes: int,
    keep: Keep,
    logs: LogBudget | None = None,
    now: datetime | None = None,
) -> Processed:
    """Accept or refuse the files of a normalised result.

    No process of the call may be alive any more.

    Args:
        normalised: The result; not changed.
        home: The home of the call, or None if its tool has none.
        inline_max_bytes: Largest file sent as base64, and the largest total of these for the call;
            `NEVER_INLINE` for none.
        max_bytes: Hard cap of one file, and of all files of the call together.
        keep: Puts each accepted file into My Files.
        logs: The budget of the call for logs beside databases; by default a full one.
        now: The current time; by default the clock's.
    """
    for warning in normalised.warnings:
        _log.warning("tool result repaired", extra={"detail": warning})
    if not normalised.refusals and normalised.value.keys().isdisjoint(FILE_LISTS):
        # No file was accepted or refused, so the value is unchanged.
        is_own = not normalised.speaks_contract
        return Processed(value=dict(normalised.value), texts=normalised.texts, is_own=is_own)
    taking = _Taking(
        home=home,
        inline_max_bytes=inline_max_bytes,
        max_bytes=max_bytes,
        keep=keep,
        logs=logs or LogBudget(),
        temporary=mapping_of(normalised.value.get("display")).get("storage_action") == "temporary",
    )
    blocks = {name: index for index, name in normalised.blocks.items()}
    for entry, origin in zip(normalised.value.get("artifacts", []), normalised.origins, strict=True):
        await taking.artifact(entry, origin, blocks.get(entry["name"]))
    for entry in normalised.value.get("deferred_artifacts", []):
        await taking.deferral(entry, deferral(entry, now=now or datetime.now(UTC)))
    return _result(normalised, taking)


@dataclass(slots=True, kw_only=True)
class _Taking:
    """Acceptance of the files of one result, with lists of the accepted ones."""

    home: OpenHome | None
    inline_max_bytes: int
    max_bytes: int
    keep: Keep
    temporary: bool
    logs: LogBudget
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

    async def artifact(self, entry: Mapping[str, Any], origin: str | None, block: int | None) -> None:
        """Accept or refuse an item of `artifacts`."""
        if (outcome := await self._put_in_store(entry, None)) is None:
            return
        stored, carried = outcome
        declared = entry.get("size", stored.size)
        if declared != stored.size:
            detail = f"artifact {entry['name']!r} declares size {declared!r}, measured {stored.size}"
            _log.warning("tool result repaired", extra={"detail": detail})
        self.entries.append(_processed(entry, stored, carried))
        self.files.append(_file(entry, stored, origin=origin, block=block))

    async def deferral(self, entry: Mapping[str, Any], wanted: Deferral) -> None:
        """Accept or refuse an item of `deferred_artifacts`."""
        if (outcome := await self._put_in_store(entry, wanted)) is None:
            return
        stored, carried = outcome
        self.deferred.append(described(_processed(entry, stored, carried), wanted))
        self.deferred_files.append(_file(entry, stored, origin=str(entry["path"]), block=None))

    async def _put_in_store(
        self, entry: Mapping[str, Any], wanted: Deferral | None
    ) -> tuple[Record, dict[str, Any]] | None:
        """Store a file; return it and its form in the message, or None if it was refused."""
        name, mime = entry["name"], entry["mime"]
        try:
            async with self._reading(entry) as source:
                if not source.size and "path" in entry and mime in mime_types():
                    raise empty_file(str(entry["path"]), mime)
                is_inline = self._is_inline(source.size)
                if "path" in entry:
                    self.inodes.add(source.inode)
                # A deferred file is needed later, even if other files are temporary.
                passing = self.temporary and wanted is None
                stored = await self.keep(source.fd, name=name, mime=mime, deferral=wanted, temporary=passing)
                if not is_inline and is_lost(stored):
                    raise does_not_fit(name)
                carried = s3_ref(stored)
                if is_inline:
                    carried = {"b64": await _encoded(source)}
                    self.inline_bytes += source.size
        except CallError as error:
            self.refusals.append(_refused(entry, error))
            return None
        except EOFError as error:
            # A concurrent call of this user may still write in this home.
            folder = None if self.home is None else self.home.path
            changed = outside_home(str(entry.get("path")), folder, problem=str(error))
            self.refusals.append(_refused(entry, changed))
            return None
        self.renamed[name] = stored.shown
        if "path" in entry and self.home is not None:
            relative = relative_to_home(entry["path"], self.home.path)
            stands_there = stored.shown if is_lost(stored) else f"{SCHEME}{stored.id}"
            self.places |= dict.fromkeys(paths_in_home(str(relative), self.home.path), stands_there)
        return stored, carried

    def _is_inline(self, size: int) -> bool:
        """Count a file, and return whether it is sent inside the message: up to the limit, inclusive."""
        if size > self.max_bytes:
            raise too_large(size, self.max_bytes)
        if self.total_bytes + size > self.max_bytes:
            details = {
                "file_size_bytes": size,
                "taken_bytes": self.total_bytes,
                "current_limit_bytes": self.max_bytes,
                "suggestion": "Return fewer or smaller files in one call",
            }
            message = f"The files of this call would be more than {self.max_bytes} bytes together"
            raise CallError(Code.E_FILE_TOO_LARGE, message, details=details)
        self.total_bytes += size
        return size <= self.inline_max_bytes - self.inline_bytes

    @asynccontextmanager
    async def _reading(self, entry: Mapping[str, Any]) -> AsyncIterator[Collected]:
        if "b64" in entry and len(entry["b64"]) <= _SHORT_BYTES:
            # Decoding it is faster than using a thread.
            with self._opened(entry) as source:
                yield source
        else:
            async with in_thread(self._opened(entry)) as source:
                yield source

    @contextmanager
    def _opened(self, entry: Mapping[str, Any]) -> Iterator[Collected]:
        if "b64" in entry:
            with _in_memory(decode(entry["b64"])) as source:
                yield source
        elif self.home is None:
            raise outside_home(str(entry["path"]), None)
        else:
            with collect(entry["path"], self.home, max_bytes=self.max_bytes, logs=self.logs) as source:
                yield source


def s3_ref(record: Record) -> dict[str, Any]:
    """Return a result's internal reference to a stored file, `s3_ref`. It is never sent over MCP.

    Its key is the store's own; for a store without keys, the key that an object store would use.
    """
    user = home_segment(record.scope.user_id or "")
    key = record.key or f"{user}/artifacts/{record.created:%Y%m%d}/{record.name}"
    return {"s3_ref": {"bucket": _BUCKET, "key": key, "internal": True}}


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


async def _encoded(source: Collected) -> str:
    if source.size <= _SHORT_BYTES:
        return encode_file(source.fd, source.size)
    return await run_in_thread(encode_file, source.fd, source.size)


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


def _processed(entry: Mapping[str, Any], stored: Record, carried: dict[str, Any]) -> dict[str, Any]:
    ours = {"name": stored.name, **carried, "mime": entry["mime"], "size": stored.size}
    if stored.pending:
        # Still on this machine, waiting for upload to the store: readers elsewhere have to wait.
        ours["pending"] = True
    return ours | {
        key: value for key, value in entry.items() if key not in ours and key not in ("b64", "path")
    }


def _refused(entry: Mapping[str, Any], error: CallError) -> RefusedFile:
    return RefusedFile(name=entry["name"], reason=reason_of(error), error=error)


def _result(normalised: Normalised, taking: _Taking) -> Processed:
    value = {key: item for key, item in normalised.value.items() if key not in FILE_LISTS}
    if taking.refusals:
        value["meta_data"] = with_refusals(value.get("meta_data", {}), taking.refusals)
    lists = zip(FILE_LISTS, (taking.entries, taking.deferred), strict=True)
    value |= {key: items for key, items in lists if items}
    primary = mapping_of(value.get("display")).get("primary_file")
    if isinstance(primary, str):
        value["display"] = value["display"] | {"primary_file": taking.renamed.get(primary, primary)}
    return _failed_if_empty(
        Processed(
            value=value,
            files=tuple(taking.files),
            deferred=tuple(taking.deferred_files),
            errors=(*normalised.refusals, *taking.refusals),
            texts=normalised.texts,
            is_own=not normalised.speaks_contract,
            inodes=frozenset(taking.inodes),
            places=taking.places,
        )
    )


def _failed_if_empty(processed: Processed) -> Processed:
    """Return the result, as an error if it contains only refused files."""
    value, refusals = processed.value, processed.errors
    if not refusals or not _says_nothing(value, processed.texts):
        return replace(processed, value=flag_meta_data(value))
    failure = refusals[0].error
    failed = envelope(failure)
    value = {**value, **failed, "meta_data": {**value["meta_data"], **failed["meta_data"]}}
    return replace(processed, value=flag_meta_data(value), failure=failure, is_own=False)


def _says_nothing(value: Mapping[str, Any], texts: tuple[str, ...]) -> bool:
    keys = ("artifacts", "deferred_artifacts", "canvas", "links")
    return value.get("results") is None and not texts and not any(key in value for key in keys)
