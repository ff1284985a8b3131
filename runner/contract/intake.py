"""Intake of the files of one result: artifacts, legacy arrays, typed content, deferred ones.

Checks all that can be checked without the disk, gives every file a safe and unique name, and records
refused files with the reason. Files given by `path` are read in `runner.artifacts`. A hint of a tool that is
an unknown word falls back to the default.

Source: rules D3 and N8 to N14 of the conformance cases; contradiction C8; documents 000 (5), 001 (6, 7),
002; requirements S0-17, S0-18, S0-20, S0-21, S0-28, S1-59, S1-60, S1-62, S1-63, S1-72, S2-10, S2-19, S2-28
and S2-33.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from runner.contract.error_messages import RefusedFile, invalid_result, legible
from runner.contract.models import DeferralHints, FileHints
from runner.formats.base64 import canonical, without_header
from runner.formats.filenames import name_in_uri, safe_name, unique_name
from runner.formats.magic import identify_base64
from runner.formats.mime import DEFAULT_MIME, extension, guess, is_mime

__all__ = ["DEFERRAL_REASONS", "FILES_MAX", "Intake", "repaired"]

DEFERRAL_REASONS = frozenset({"needs_editing", "draft", "incomplete", "awaiting_approval"})

FILES_MAX = 1000
"""Most files of one result that are examined: each costs the host work, regardless of its content."""

_SHOWN = 5
# Keys of an artifact that only the runner may write, not a tool.
_OURS = ("s3_ref", "uri", "sha256")
_OURS_DEFERRED = (*_OURS, "b64", "status", "expires_at")

_GIVE = "Give each file its `path` below /tmp/{{username}}/, or its content as `b64`"
# Of each reason, the sentence and what to do.
_PROBLEMS = {
    "missing_name": (
        "a file has no `name`; its item has {item}",
        'Write {{"name": "a.csv", "path": f"/tmp/{{username}}/a.csv"}}',
    ),
    "missing_content": ("the file {name!r} has neither `path` nor `b64`", _GIVE),
    "invalid_path": ("the `path` of the file {name!r} is not text", "Write str(path)"),
    "missing_path": (
        "the deferred file {name!r} has no `path`",
        "Write it to a file: deferred files need `path`",
    ),
    "invalid_base64": (
        "the content of the file {name!r} is not base64",
        "Write base64.b64encode(content).decode(), without a `data:...;base64,` in front",
    ),
    "unknown_type": (
        "the content block {name!r} declares no MIME type of its kind, such as image/png",
        "Declare its `mimeType`",
    ),
    "s3_ref_not_allowed": (
        "the file {name!r} names a place in the object store, which only the runner may",
        _GIVE,
    ),
    "too_many_files": (
        "the result names more than {most} files; the others are left out",
        "Return an archive of them",
    ),
}


@dataclass(slots=True)
class Intake:
    """Collector of the files of one result.

    Attributes:
        artifacts: Accepted so far, each with `name`, `mime` and either `b64` (canonical) or `path`.
        origins: For each artifact, the string with which the tool gave it, a path or base64.
        deferred: Accepted deferred artifacts, each with `name`, `mime` and `path`.
        incomplete: Names that the tool announced without content.
        refusals: Refused files.
        warnings: Repairs, for the log.
        renamed: The tool's names → the final names.
        blocks: Index of a content block → name of its artifact.
    """

    artifacts: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str | None] = field(default_factory=list)
    deferred: list[dict[str, Any]] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    refusals: list[RefusedFile] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    blocks: dict[int, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _used: dict[str, int] = field(default_factory=dict)
    _media: Counter[str] = field(default_factory=Counter)
    _untyped: list[str] = field(default_factory=list)
    _is_full: bool = False

    def warning_lines(self) -> list[str]:
        """Return the warnings; all files without a type share one."""
        if not self._untyped:
            return self.warnings
        shown = ", ".join(self._untyped[:_SHOWN]) + (" and others" if len(self._untyped) > _SHOWN else "")
        return [*self.warnings, f"no mime type is declared for {shown}"]

    def artifact(self, entry: object) -> str | None:
        """Take one item of `artifacts`; return its name, or None if it was refused."""
        if not self._has_room():
            return None
        fields, name = _fields_of(entry)
        if name is None:
            self._refuse(None, "missing_name", entry)
            return None
        reason = _fault(fields)
        if reason is not None:
            self._refuse(name, reason)
            return None
        item = {key: value for key, value in fields.items() if key not in _OURS and value is not None}
        origin = item.get("b64", item.get("path"))
        if "b64" in item:
            content = canonical(item["b64"])
            if content is None:
                self._refuse(name, "invalid_base64")
                return None
            if item.pop("path", None) is not None:
                self.warnings.append(f"artifact {name!r} has both b64 and path; its path is ignored")
            item["b64"] = content
            self._measure(item, name, content)
        self.artifacts.append(self._described(item, name, FileHints))
        self.origins.append(origin if isinstance(origin, str) else None)
        return str(self.artifacts[-1]["name"])

    def defer(self, entry: object) -> None:
        """Take one item of `deferred_artifacts`."""
        if not self._has_room():
            return
        fields, name = _fields_of(entry)
        if name is None:
            self._refuse(None, "missing_name", entry)
            return
        path = fields.get("path")
        if not isinstance(path, str) or not path:
            self._refuse(name, "missing_path" if path in (None, "") else "invalid_path")
            return
        item = {
            key: value for key, value in fields.items() if key not in _OURS_DEFERRED and value is not None
        }
        item = self._described(item, name, DeferralHints)
        if "reason" in item and item["reason"] not in DEFERRAL_REASONS:
            shown = legible(item["reason"], 100)
            self.warnings.append(f"deferred file {name!r} has an unknown reason {shown!r}")
        self.deferred.append(item)

    def legacy(self, names: object, contents: object) -> None:
        """Take the two arrays of the first version, paired by position."""
        called = names if isinstance(names, list) else []
        held = contents if isinstance(contents, list) else []
        if called or held:
            self.warnings.append(_deprecated(called))
        if len(called) != len(held) and not (not called and all(isinstance(c, Mapping) for c in held)):
            self.warnings.append(f"mismatch: {len(called)} returned_file_names, {len(held)} contents")
        for position, content in enumerate(held):
            own = content if isinstance(content, Mapping) else {"b64": content}
            name = called[position] if position < len(called) else own.get("name")
            if name is None:
                self.warnings.append(f"mismatch: returned_file_contents[{position}] has no name, ignored")
                continue
            if self.artifact({**own, "name": name}) is None and own.get("b64") is None:
                self.incomplete.append(legible(str(name), 255))
        self.incomplete += [legible(n, 255) for n in called[len(held) :] if isinstance(n, str)]

    def block(self, index: int, block: Mapping[str, Any]) -> None:
        """Take the bytes of one `image`, `audio` or embedded `blob` content block."""
        if not self._has_room():
            return
        kind = str(block.get("type"))
        embedded = block.get("resource")
        if isinstance(embedded, Mapping):
            entry = _from_blob(embedded)
        else:
            entry = _from_media(kind, block, self._media[kind] + 1)
        if entry["b64"] is None:
            return
        if not isinstance(embedded, Mapping) and entry["mime"] != block.get("mimeType"):
            declared = legible(str(block.get("mimeType")), 100)
            self.warnings.append(f"content block {index} ({kind}) declares the mime type {declared!r}")
        if entry["mime"] is None and not isinstance(embedded, Mapping):
            self._refuse(entry["name"], "unknown_type")
            return
        refused = len(self.refusals)
        name = self.artifact(entry)
        if len(self.refusals) > refused:
            self.warnings.append(f"content block {index} ({kind}) is not base64, refused")
        if name is not None:
            self.origins[-1] = None
            self.blocks[index] = name
            self._media[kind] += 1

    def _has_room(self) -> bool:
        """Return whether one more file is examined; refuse all the others together, once."""
        if len(self.artifacts) + len(self.deferred) + len(self.refusals) < FILES_MAX:
            return True
        if not self._is_full:
            self._is_full = True
            self._refuse(None, "too_many_files")
        return False

    def _refuse(self, name: str | None, reason: str, entry: Any = None) -> None:
        shown = None if name is None else legible(name, 255)
        is_object = isinstance(entry, Mapping)
        item = f"the keys {', '.join(entry)}" if is_object else f"the type {type(entry).__name__}, not object"
        words = {"name": shown, "most": FILES_MAX, "item": legible(item, 200)}
        problem, suggestion = (text.format(**words) for text in _PROBLEMS[reason])
        error = invalid_result("artifacts", problem, suggestion)
        self.refusals.append(RefusedFile(name=shown, reason=reason, error=error))

    def _measure(self, item: dict[str, Any], name: str, content: str) -> None:
        size = len(content) // 4 * 3 - content[-2:].count("=")
        declared = item.get("size", size)
        if declared != size or isinstance(declared, bool):
            self.warnings.append(f"artifact {name!r} declares size {declared!r}, measured {size}")
        item["size"] = size

    def _described(self, item: dict[str, Any], name: str, hints: type[FileHints]) -> dict[str, Any]:
        wanted = safe_name(name)
        # Continues at the last number: otherwise 1000 files of one name would try half a million names.
        used = self._used.get(wanted, 0)
        safe = unique_name(wanted, self._taken, first=2 + used)
        self._used[wanted] = used + (wanted in self._taken)
        self._taken.add(safe)
        self.renamed.setdefault(name, safe)
        item["name"] = safe
        if not is_mime(item.get("mime")):
            item["mime"] = guess(safe)
            self._untyped.append(f"{safe!r} (taken as {item['mime']})")
        return repaired(item, hints, f"file {safe!r}", self.warnings)


def _fields_of(entry: object) -> tuple[Mapping[str, Any], str | None]:
    if not isinstance(entry, Mapping):
        return {}, None
    name = entry.get("name")
    return entry, name if isinstance(name, str) and name.strip() else None


def _fault(entry: Mapping[str, Any]) -> str | None:
    if entry.get("s3_ref") is not None:
        return "s3_ref_not_allowed"
    if entry.get("b64") is not None:
        return None
    path = entry.get("path")
    if path in (None, ""):
        return "missing_content"
    return None if isinstance(path, str) else "invalid_path"


def _from_media(kind: str, block: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a picture or a sound as a file, of the declared type or that of its bytes; None if unknown."""
    mime, content = block.get("mimeType"), without_header(block.get("data"))
    known = identify_base64(content)
    if not isinstance(mime, str) or not is_mime(mime):
        mime = known.mime if known else None
    elif not mime.lower().startswith(f"{kind}/"):
        # Rule N14: a file that is declared as another type is refused.
        mime = None
    viewer = {"viewer": "image"} if kind == "image" and mime and mime.lower().startswith("image/") else {}
    ending = extension(mime) if mime else ""
    return {"name": f"{kind}_{number}{ending}", "b64": content, "mime": mime, **viewer}


def _from_blob(resource: Mapping[str, Any]) -> dict[str, Any]:
    uri, mime = resource.get("uri"), resource.get("mimeType")
    place = uri if isinstance(uri, str) else ""
    # FastMCP puts the name of a file into a URI.
    last = name_in_uri(uri)
    declared = mime if isinstance(mime, str) else DEFAULT_MIME
    name = last if last.strip() else f"resource{extension(declared)}"
    return {
        "name": name,
        "b64": without_header(resource.get("blob")),
        "mime": mime,
        "source": {"uri": legible(place)},
    }


def _deprecated(called: list[Any]) -> str:
    """Return the replacement for the arrays of version 1."""
    first = next((name for name in called if isinstance(name, str)), "report.csv")
    name = legible(first, 100)
    return (
        "returned_file_names and returned_file_contents are deprecated; write instead "
        f'"artifacts": [{{"name": {name!r}, "path": f"/tmp/{{username}}/{name}"}}] (docs/contract.md)'
    )


def repaired(
    values: dict[str, Any], hints: type[BaseModel], what: str, warnings: list[str]
) -> dict[str, Any]:
    """Return `values` with every hint valid; keys that are not hints stay as they are.

    Args:
        values: The object with hints among its keys; returned itself if all are valid.
        hints: The type that defines valid values and defaults.
        what: Name of the object with the hints, for the warning.
        warnings: Receives a sentence for each hint that was replaced or left out.
    """
    known = {key: values[key] for key in _names(hints) if key in values}
    if not known:
        return values
    try:
        hints.model_validate(known)
    except ValidationError as error:
        wrong = {str(fault["loc"][0]) for fault in error.errors(include_url=False, include_input=False)}
    else:
        return values
    result = dict(values)
    for key in sorted(wrong):
        default = hints.model_fields[key].get_default()
        if result.pop(key) is None:
            continue
        if default is None:
            warnings.append(f"{what}: {key} is of the wrong type, left out")
        else:
            result[key] = default
            warnings.append(f"{what}: unknown {key}, taken as {default}")
    return result


@cache
def _names(hints: type[BaseModel]) -> tuple[str, ...]:
    return tuple(hints.model_fields)
