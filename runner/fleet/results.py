"""Result of a call on a worker node, on its way back to the host.

A node puts the files of a call into the store and sends only their ids. The host trusts a node no more than
a worker: it applies the contract to the value again, looks up every file among the files of the user, and
takes its metadata from the store. The tool's own result is sent without the bytes of files. The host reads
them from the store as far as they fit into a message.

Source: `docs/decisions/0044-fleet-over-redis.md`; MCP, `CallToolResult`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pybase64
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.artifacts.accept import NEVER_INLINE, ArtifactFile, Processed, s3_ref
from runner.contract.error_messages import RefusedFile, invalid_result
from runner.contract.jsonable import list_of, mapping_of, without
from runner.contract.models import FILE_LISTS
from runner.contract.normalise import normalise
from runner.errors import CallError, Code
from runner.files.my_files import MyFiles
from runner.steps.client_message import MESSAGE_MAX_BYTES
from runner.steps.file_references import FileReferences
from runner.steps.request import Completed, Request, question_of
from runner.store.protocol import Record
from runner.toolset.catalog import ToolSpec
from runner.worker.wire import WireError
from sandbox.outcome import Denial, Ending, Outcome

__all__ = ["Ended", "completed_of", "read_ended", "report"]

# Fields of a file that the host fills in from the store.
_OURS = ("name", "mime", "size", "b64", "path", "s3_ref", "uri", "sha256", "pending")
_MOST_FILES = 10_000
_MOST_DENIALS = 1000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _File(_Part):
    """A file in the store, with the tool's metadata for it."""

    id: str = Field(max_length=256)
    origin: str | None = None
    block: int | None = None
    extras: dict[str, Any] = Field(default_factory=dict)


class _Failure(_Part):
    code: str
    message: str
    details: dict[str, Any] = Field(default_factory=dict)
    retryable: bool = False
    answer: dict[str, Any] | None = None
    beside: dict[str, Any] | None = None

    @classmethod
    def of(cls, error: CallError) -> "_Failure":
        """Return an error as a node sends it."""
        return cls(**{name: getattr(error, name) for name in cls.model_fields} | {"code": error.code.name})

    def error(self) -> CallError:
        """Return the error as the host reports it."""
        code = Code.__members__.get(self.code)
        if code is None:
            return invalid_result("the worker node", f"it sent an unknown error code, {self.code[:64]!r}")
        error = CallError(code, self.message, details=self.details, retryable=self.retryable)
        error.answer, error.beside = self.answer, self.beside
        return error


class _Usage(_Part):
    """Facts about a call's worker, for the report, the audit log and the metrics."""

    is_fresh: bool = True
    goes_on: bool | None = None
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    denials: tuple[Denial, ...] = Field((), max_length=_MOST_DENIALS)
    inputs: list[str] = Field(default_factory=list, max_length=_MOST_FILES)
    generated: list[str] = Field(default_factory=list, max_length=_MOST_FILES)
    has_outcome: bool = False


class Ended(_Part):
    """End of a call: a value with files, an interim answer, an error, or the answer to another request.

    Attributes:
        value: The contract value, without its files.
        wire: The tool's own result, as its worker wrote it, without bytes of files.
        files: Artifacts in the store.
        deferred: Deferred artifacts.
        errors: Files that were left out: name, reason and error of each.
        texts: Texts of the tool besides the payload.
        is_own: Whether the tool returned no contract value.
        places: URI of each stored file, by its former path in the home.
        interim: A question or a task, which is sent to the client unchanged.
        failure: The error that it ended with.
        wire_error: The JSON-RPC error that it ended with.
        answer: The answer to a request other than a tool call.
        usage: Facts about its worker.
    """

    value: dict[str, Any] | None = None
    wire: dict[str, Any] = Field(default_factory=dict)
    files: list[_File] = Field(default_factory=list, max_length=_MOST_FILES)
    deferred: list[_File] = Field(default_factory=list, max_length=_MOST_FILES)
    errors: list[tuple[str | None, str, _Failure]] = Field(default_factory=list, max_length=_MOST_FILES)
    texts: tuple[str, ...] = ()
    is_own: bool = False
    places: dict[str, str] = Field(default_factory=dict, max_length=2 * _MOST_FILES)
    interim: dict[str, Any] | None = None
    failure: _Failure | None = None
    wire_error: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    usage: _Usage = Field(default_factory=_Usage)

    def error(self) -> CallError | WireError:
        """Return the error that it ended with."""
        if self.wire_error is not None:
            return WireError(self.wire_error)
        if self.failure is not None:
            return self.failure.error()
        return invalid_result("the worker node", "its message is empty")


def report(
    end: Completed | CallError | WireError | Mapping[str, Any], request: Request | None = None
) -> dict[str, Any]:
    """Return the body of the `end` message that a node sends for a call.

    Args:
        end: The result of a tool, the answer to any other request, or the error that it ended with.
        request: The call, for the usage of its worker; None if that is unknown.
    """
    match end:
        case WireError():
            parts: dict[str, Any] = {"wire_error": end.error}
        case CallError():
            parts = {"failure": _Failure.of(end)}
        case Completed():
            parts = {"interim": end.interim} if end.interim is not None else _parts_of(end)
        case _:
            parts = {"answer": end}
    if request is not None:
        steps, outcome = request.steps, request.steps.outcome
        parts["usage"] = _Usage(
            is_fresh=steps.is_fresh,
            goes_on=steps.goes_on,
            cpu_s=None if outcome is None else outcome.cpu_s,
            memory_peak_bytes=None if outcome is None else outcome.memory_peak_bytes,
            denials=() if outcome is None else outcome.denials[:_MOST_DENIALS],
            inputs=[record.id for record in steps.inputs][:_MOST_FILES],
            generated=[record.id for record in steps.generated][:_MOST_FILES],
            has_outcome=outcome is not None,
        )
    return Ended(**parts).model_dump(exclude_defaults=True)


def _parts_of(end: Completed) -> dict[str, Any]:
    processed = end.processed
    files, deferred = (
        [
            _File(
                id=file.id,
                # An origin that is the content itself is already in the store.
                origin=None if file.is_content else file.origin,
                block=file.block,
                extras=without(entry, *_OURS),
            )
            for entry, file in zip(processed.value.get(key, ()), found, strict=True)
        ]
        for key, found in zip(FILE_LISTS, (processed.files, processed.deferred), strict=True)
    )
    return {
        "wire": _without_bytes(end.wire, (*processed.files, *processed.deferred)),
        "value": without(processed.value, *FILE_LISTS),
        "files": files,
        "deferred": deferred,
        "errors": [(one.name, one.reason, _Failure.of(one.error)) for one in processed.errors],
        "texts": processed.texts,
        "is_own": processed.is_own,
        "places": dict(processed.places),
        "failure": None if processed.failure is None else _Failure.of(processed.failure),
    }


def _without_bytes(wire: Mapping[str, Any], files: Sequence[ArtifactFile]) -> dict[str, Any]:
    """Return a tool's own result with references to files in place of their bytes."""
    references = FileReferences.of((file.origin, file.uri) for file in files if file.is_content)
    sent = dict(wire)
    if "structuredContent" in wire:
        sent["structuredContent"] = references.value(wire["structuredContent"], contents=True)
    if "content" in wire:
        sent["content"] = [
            {**block, "text": references.text(block["text"])}
            if isinstance(block, dict) and isinstance(block.get("text"), str)
            else _with_bytes(block, "")
            for block in list_of(wire["content"])
        ]
    return sent


def _with_bytes(block: Any, content: str) -> Any:
    """Return a content block with its base64 data replaced by `content`, if it has any."""
    kind, resource = mapping_of(block).get("type"), mapping_of(mapping_of(block).get("resource"))
    if kind in ("image", "audio"):
        return {**block, "data": content}
    if kind == "resource" and "blob" in resource:
        return {**block, "resource": {**resource, "blob": content}}
    return block


def read_ended(body: Mapping[str, Any]) -> Ended:
    """Return the end of a call from a node's message.

    Raises:
        CallError: `E_INVALID_RESULT`: the message is not valid.
    """
    try:
        return Ended.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise invalid_result("the worker node", f"{where}: {first['msg']}") from error


async def completed_of(
    ended: Ended, request: Request, spec: ToolSpec, files: MyFiles, *, is_observed: bool
) -> Completed:
    """Return a completed tool call from a node's message, after checking every part.

    Args:
        ended: The message.
        request: The call.
        spec: Its tool.
        files: My Files of its user.
        is_observed: Whether an observer needs the input files.

    Raises:
        CallError: The call ended in an error, or names a file that is not its user's.
        WireError: The tool's server answered with a JSON-RPC error.
    """
    await _record_usage(ended.usage, request, files, is_observed=is_observed)
    if ended.interim is not None:
        question = question_of(ended.interim)
        if question is None:
            raise invalid_result("the worker node", "it sent a malformed question")
        return Completed.for_now(question, spec)
    if ended.value is None:
        raise ended.error()
    value = without(normalise({"structuredContent": ended.value}, wrapped=False).value, *FILE_LISTS)
    store = _Store(files, left=request.inline_max_bytes)
    artifacts = [await store.file(one) for one in ended.files]
    deferred = [await store.file(one, may_be_inline=False) for one in ended.deferred]
    for name, pairs in zip(FILE_LISTS, (artifacts, deferred), strict=True):
        if pairs:
            value[name] = [entry for entry, _ in pairs]
    processed = Processed(
        value=value,
        files=tuple(file for _, file in artifacts),
        deferred=tuple(file for _, file in deferred),
        errors=tuple(
            RefusedFile(name=name, reason=reason, error=one.error()) for name, reason, one in ended.errors
        ),
        texts=ended.texts,
        failure=None if ended.failure is None else ended.failure.error(),
        is_own=ended.is_own,
        places=ended.places,
    )
    wire = await store.restored(ended.wire, processed.files)
    return Completed(processed=processed, wire=wire, spec=spec)


async def _record_usage(usage: _Usage, request: Request, files: MyFiles, *, is_observed: bool) -> None:
    """Record the worker's usage and denials, as for a worker on this machine."""
    steps = request.steps
    steps.is_fresh, steps.goes_on = usage.is_fresh, usage.goes_on
    if usage.has_outcome:
        steps.outcome = Outcome(
            ending=Ending.ANSWERED,
            cpu_s=usage.cpu_s,
            memory_peak_bytes=usage.memory_peak_bytes,
            denials=usage.denials,
        )
    found = [await files.by_id(id_) for id_ in usage.inputs] if is_observed else []
    steps.inputs = [record for record in found if record is not None]
    # Few calls generate files, and the log counts them even without observers.
    left = [await files.by_id(id_) for id_ in usage.generated]
    steps.generated += [record for record in left if record is not None]


@dataclass(slots=True)
class _Store:
    """Stored files of one result, and the bytes that are sent to the client.

    Attributes:
        files: My Files of the user.
        left: Number of bytes that may still be inlined in the message.
        inlined: Inlined files as base64, by URI.
    """

    files: MyFiles
    left: int
    inlined: dict[str, str] = field(default_factory=dict)
    _records: dict[str, Record] = field(default_factory=dict)

    async def file(self, sent: _File, *, may_be_inline: bool = True) -> tuple[dict[str, Any], ArtifactFile]:
        """Return the entry of a file in the value, and the file.

        Raises:
            CallError: `E_STORE`: the file is not the user's.
        """
        record = await self.files.by_id(sent.id)
        if record is None:
            raise CallError(
                Code.E_STORE,
                "A worker node names a file that the store does not have for this user",
                details={"file": sent.id, "suggestion": "Let hosts and worker nodes use the same store"},
            )
        self._records[record.id] = record
        carried, origin, uri = s3_ref(record), sent.origin, f"artifact://{record.id}"
        if may_be_inline and self.left > NEVER_INLINE and record.size <= self.left:
            carried = {"b64": await self._bytes(record)}
            self.left -= record.size
            self.inlined[uri] = carried["b64"]
            if origin is None and sent.block is None:
                # The tool returned the content itself, so its own result contains it too.
                origin = carried["b64"]
        ours = {"name": record.shown, **carried, "mime": record.mime, "size": record.size}
        file = ArtifactFile(
            id=record.id,
            name=record.shown,
            mime=record.mime,
            size=record.size,
            sha256=record.sha256,
            origin=origin,
            is_content=origin is not sent.origin,
            block=sent.block,
        )
        return {**ours, **without(sent.extras, *_OURS)}, file

    async def restored(self, wire: Mapping[str, Any], files: Sequence[ArtifactFile]) -> dict[str, Any]:
        """Return a tool's own result with the bytes of its files, as far as they fit into a message.

        Args:
            wire: The result as the node sent it.
            files: The artifacts.

        Raises:
            CallError: `E_INVALID_RESULT`: the result is malformed.
        """
        if question_of(wire) is not None:
            raise invalid_result("the worker node", "it names a question a result")
        if not isinstance(wire.get("structuredContent", {}), dict):
            raise invalid_result("the worker node", "its structured content is not an object")
        found = dict(wire)
        if "structuredContent" in wire:
            references = FileReferences(self.inlined)
            found["structuredContent"] = references.value(wire["structuredContent"], contents=True)
        blocks, left = [*list_of(wire.get("content"))], MESSAGE_MAX_BYTES
        # Longer than any message; all blocks share it.
        filler = "A" * (MESSAGE_MAX_BYTES + 4)
        of_blocks = [
            (file.block, file) for file in files if file.block is not None and 0 <= file.block < len(blocks)
        ]
        # Images and audio come first: they are the last to be replaced by links.
        for at, file in sorted(
            of_blocks, key=lambda pair: (mapping_of(blocks[pair[0]]).get("type") == "resource", pair[0])
        ):
            length = (file.size + 2) // 3 * 4
            if length > left:
                # Too long for a message: the client gets a link, as it would without a fleet.
                content = filler
            elif (content := self.inlined.get(file.uri, "")) == "":
                content = await self._bytes(self._records[file.id])
            blocks[at] = _with_bytes(blocks[at], content)
            left -= length
        if "content" in wire:
            found["content"] = blocks
        return found

    async def _bytes(self, record: Record) -> str:
        async with self.files.open(record) as content:
            return pybase64.b64encode(b"".join([piece async for piece in content])).decode()
