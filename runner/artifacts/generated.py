"""Collection of files that a call wrote into its home but did not return, so that no output is lost.

They are stored in My Files like any artifact. If later calls change a file again, the new version replaces
the stored one, so a state file is stored once, not once for each call. No failure here turns a call into an
error: files that cannot be stored are reported with the reason.

Source: requirements S1-24, S1-27; `docs/decisions/0034-collect-generated-files.md`.
"""

import hashlib
import itertools
import json
import logging
import os
import posixpath
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from runner.artifacts.accept import Processed, reason_of
from runner.artifacts.named_file import Collected, OpenHome, collect, paths_in_home, relative_to_home
from runner.contract.error_messages import legible
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import META_DATA_MAX_BYTES, Normalised
from runner.errors import CallError
from runner.files.my_files import SCHEME, MyFiles
from runner.formats.database_logs import LogBudget
from runner.formats.filenames import safe_name, unique_name
from runner.formats.json_walks import least_chars
from runner.formats.mime import guess
from runner.homes.changes import ChangedFile
from runner.store.protocol import Origin, Record
from runner.system.openat import CONFINED, openat2
from runner.system.threads import in_thread, run_in_thread

__all__ = ["Generated", "keep_generated", "not_returned", "with_earlier"]

_log = logging.getLogger(__name__)

_MOST_KEPT = 100
_MOST_S = 5.0
# Share of `meta_data` for these files: a model reads 4096 bytes of it, and the tool's own data needs room.
_MOST_LISTED_BYTES = META_DATA_MAX_BYTES // 2
# Key in the source of a stored file for its path in the home.
_LAY_AT = "generated"
# A version is stored before the previous one is removed, and takes the first free number. So the names of one
# file have no gap of two, unless the user has removed files.
_MOST_MISSED = 2
_MOST_NAMES = 100
# Most paths of one result that are looked up.
_MOST_MENTIONED = 50
_LONG_CHARS = 64 * 1024
_WORDS = re.compile(r"(?:file://)?/[^\s\"'`<>()\[\]{}]*[^\s\"'`<>()\[\]{},;:.!?]")
_UNREADABLE = "unreadable"
_CHANGED = "changed_meanwhile"


def _ignore(record: Record) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Settings for keeping files that are not returned.

    Attributes:
        mode: Whether they are stored, or only listed.
        home: The home of the call.
        files: My Files of the user.
        max_bytes: Largest file.
        why_not: Reason why none is stored, if not the mode.
        as_seen: Whether to store only files that have not changed since they were found.
        hear: Called with each stored file.
        logs: The budget of the call for logs beside databases.
        clock: Monotonic clock, in seconds.
    """

    mode: Literal["keep", "report"]
    home: OpenHome
    files: MyFiles
    max_bytes: int
    why_not: str | None = None
    as_seen: bool = False
    hear: Callable[[Record], None] = _ignore
    logs: LogBudget = field(default_factory=LogBudget)
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Kept:
    entries: list[dict[str, Any]] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)
    count: int = 0
    total_bytes: int = 0


def not_returned(
    found: Collection[ChangedFile], normalised: Normalised, home: OpenHome, *, put: Mapping[int, int]
) -> list[ChangedFile]:
    """Return the files that the result does not name and the tool has not put into My Files itself.

    Args:
        found: The files that changed.
        normalised: The result.
        home: The home.
        put: Change times of the files that the tool has put, by inode.
    """
    named = {
        relative_to_home(entry["path"], home.path)
        for name in FILE_LISTS
        for entry in normalised.value.get(name, ())
        if "path" in entry
    }
    return [
        change for change in found if change.file not in named and put.get(change.inode) != change.changed_ns
    ]


async def keep_generated(
    processed: Processed, found: Collection[ChangedFile], rules: Generated, *, beyond: int = 0
) -> Processed:
    """Store files, and list them in `meta_data.generated_files` of the result.

    No process of the call may execute an instruction any more, as for artifacts.

    Args:
        processed: The result, with the files that it names.
        found: The files that it does not name.
        rules: Settings for storing them.
        beyond: Number of further files, which are not examined.
    """
    try:
        result, ends_at = _Kept(), rules.clock() + _MOST_S
        for change in found:
            # A file that the result names through a link belongs to the result.
            if change.inode not in processed.inodes:
                await _take(change, rules, result, is_late=rules.clock() > ends_at)
    except Exception:  # noqa: BLE001
        # A failure with unrequested files must not lose the result of the call.
        _log.exception("generated files not kept")
        return processed
    places = {
        path: uri for file, uri in result.places.items() for path in paths_in_home(file, rules.home.path)
    }
    processed = replace(processed, places={**processed.places, **places})
    if not result.entries and not beyond:
        return processed
    refused = [entry for entry in result.entries if not entry["kept"]]
    _log.info("unreturned files found", extra={"kept": result.count, "not_kept": len(refused) + beyond})
    meta = processed.value.get("meta_data")
    meta = dict(meta) if isinstance(meta, Mapping) else {}
    meta |= _listed(result.entries, meta, beyond)
    value = {**processed.value, "meta_data": meta}
    return replace(processed, value=value, generated=tuple(result.entries))


async def _take(change: ChangedFile, rules: Generated, result: _Kept, *, is_late: bool) -> None:
    name = posixpath.basename(change.file)
    entry = {
        "name": legible(name),
        "file": legible(change.file),
        "size": change.size,
        "mime": guess(name),
        "kept": False,
    }
    why_not = _refused(change, rules, result, is_late=is_late)
    done = await _tried(change, name, rules) if why_not is None else {"reason": why_not}
    if isinstance(done, dict):
        result.entries.append({**entry, **done})
        return
    record, is_new = done
    uri = f"{SCHEME}{record.id}"
    if legible(change.file) == change.file:
        result.places[change.file] = uri
    if is_new:
        rules.hear(record)
        result.count += 1
        result.total_bytes += record.size
        entry |= {"name": record.shown, "size": record.size, "kept": True, "uri": uri}
        result.entries.append(entry)


def _refused(change: ChangedFile, rules: Generated, result: _Kept, *, is_late: bool) -> str | None:
    """Return the reason not to open a file, if any."""
    if rules.mode == "report":
        return "reported_only"
    if rules.why_not is not None:
        return rules.why_not
    if is_late or result.count >= _MOST_KEPT:
        return "too_many"
    return "file_too_large" if result.total_bytes + change.size > rules.max_bytes else None


async def with_earlier(
    processed: Processed, wire: Mapping[str, Any], home: OpenHome, files: MyFiles
) -> Processed:
    """Return a result with links to files that it mentions and earlier calls have left.

    Args:
        processed: The result.
        wire: The tool's own result.
        home: The home of the call.
        files: My Files of the user.
    """
    parts = [wire.get("content"), wire.get("structuredContent")]
    if least_chars(wire, _LONG_CHARS) > _LONG_CHARS:
        mentioned = await run_in_thread(_mentioned, parts, home.path)
    else:
        mentioned = _mentioned(parts, home.path)
    places = dict(processed.places)
    for file in mentioned:
        paths = paths_in_home(file, home.path)
        if places.keys().isdisjoint(paths):
            try:
                earlier = await _earlier_records(file, files)
            except CallError as error:
                # The result is more important than links to mentioned files.
                _log.warning("earlier files not looked up", extra={"problem": str(error)})
                break
            newest = max(earlier, key=lambda record: record.created, default=None)
            if newest is not None and not _is_newer(file, home, newest):
                places |= dict.fromkeys(paths, f"{SCHEME}{newest.id}")
    return replace(processed, places=places) if len(places) > len(processed.places) else processed


def _is_newer(file: str, home: OpenHome, record: Record) -> bool:
    """Return whether a file of a home has changed since it was stored; False if it was removed."""
    try:
        handle = openat2(home.fd, file, os.O_PATH | os.O_NOFOLLOW, resolve=CONFINED)
    except OSError:
        return False
    try:
        return os.fstat(handle).st_ctime > record.created.timestamp()
    finally:
        os.close(handle)


def _mentioned(part: Any, home: Path) -> set[str]:
    """Return the files of a home, relative to it, that strings of a JSON value, or words in them, name."""
    roots = [form for root in paths_in_home("", home) for form in (root, quote(root))]
    found: set[str | None] = set()
    left = [part]
    while left and len(found) < _MOST_MENTIONED:
        value = left.pop()
        if isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
        elif isinstance(value, str) and any(root in value for root in roots):
            found.add(relative_to_home(value, home) if value.startswith("/") else None)
            for word in itertools.islice(_WORDS.finditer(value), _MOST_MENTIONED):
                found.add(relative_to_home(word[0], home))
    return {file for file in found if file is not None}


async def _earlier_records(file: str, files: MyFiles) -> list[Record]:
    """Return the stored files of earlier calls that may have lain at this path.

    They are looked up by the names that they may have got, some of which may belong to other files. A scan of
    all the user's files is avoided.
    """
    tried: list[str] = []
    found: list[Record] = []
    missed = 0
    while missed < _MOST_MISSED and len(tried) < _MOST_NAMES:
        tried.append(unique_name(safe_name(posixpath.basename(file)), tried))
        record = await files.find(tried[-1])
        missed = missed + 1 if record is None else 0
        if record is not None and _lay_at(record) == _path_text(file):
            found.append(record)
    return found


def _path_text(file: str) -> str:
    """Return a path in UTF-8, or percent-encoded with a prefix that no path of a home has.

    Latin-1 names such as `Müller` and `Möller` must not become one, or one file would replace the other.
    """
    return file if legible(file) == file else f"//{quote(os.fsencode(file))}"


def _lay_at(record: Record) -> object:
    return record.metadata.source.get(_LAY_AT) if record.metadata.origin is Origin.GENERATED else None


async def _tried(change: ChangedFile, name: str, rules: Generated) -> tuple[Record, bool] | dict[str, str]:
    try:
        return await _keep(change, name, rules)
    except CallError as error:
        if error.details.get("refused_for") is not None:
            detail = f"{error.message}. {error.details['suggestion']}"
            return {"reason": reason_of(error), "detail": detail}
        return {"reason": reason_of(error)}
    except (OSError, EOFError) as error:
        _log.warning("generated file not kept", extra={"problem": str(error)})
        return {"reason": _UNREADABLE}


async def _keep(change: ChangedFile, name: str, rules: Generated) -> tuple[Record, bool] | dict[str, str]:
    """Store a file instead of its earlier version; return it and whether it is new, or the reason if not."""
    opened = collect(change.file, rules.home, max_bytes=rules.max_bytes, logs=rules.logs)
    async with in_thread(opened) as source:
        before = source.changed_ns
        if rules.as_seen and before != change.changed_ns:
            return {"reason": _CHANGED}
        there = await rules.files.find(safe_name(name))
        if there is not None and await _is_equal(there, source):
            return there, False
        # Before the earlier version is removed, which must stay if this fails; so the name may get a number.
        about = {_LAY_AT: _path_text(change.file)}
        earlier = await _earlier_records(change.file, rules.files)
        record = await rules.files.put(source.fd, name=name, origin=Origin.GENERATED, about=about)
        if source.changed_ns != before:
            # A call that has begun meanwhile is changing it, and will collect it at its own end.
            if all(old.id != record.id for old in earlier):
                await rules.files.remove_found(record)
            return {"reason": _CHANGED}
        for old in earlier:
            if old.id != record.id:
                await rules.files.remove_found(old)
    return record, True


async def _is_equal(there: Record, source: Collected) -> bool:
    return there.size == source.size and there.sha256 == await run_in_thread(_digest, source.fd)


def _digest(fd: int) -> str:
    with os.fdopen(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed(entries: list[dict[str, Any]], meta: Mapping[str, Any], beyond: int) -> dict[str, Any]:
    """Return as many entries of the files as fit into `meta_data`."""
    room = min(_MOST_LISTED_BYTES, META_DATA_MAX_BYTES - 200 - len(_dumped(meta)))
    listed: list[dict[str, Any]] = []
    # Files that were not stored come first: the others are also listed in My Files.
    for entry in sorted(entries, key=lambda entry: bool(entry["kept"])):
        room -= len(_dumped(entry)) + 2
        if room < 0:
            break
        listed.append(entry)
    metadata: dict[str, Any] = {"generated_files": listed}
    if len(listed) < len(entries):
        metadata["generated_files_unlisted"] = len(entries) - len(listed)
    if beyond:
        metadata["generated_files_not_looked_at"] = beyond
    return metadata


def _dumped(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace")
