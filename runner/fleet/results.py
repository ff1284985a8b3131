"""Result of a call on a worker node, on its way back to the host.

A node has collected the files of a call and put them into the store; it names them by their ids. The host
trusts a node no more than a worker: the value goes through the contract again, every file is looked up in
the store as its user's own, and its facts come from the store. The tool's own result travels without the
bytes of files, which the host reads from the store as far as they fit into a message.

Source: `docs/decisions/0044-fleet-over-redis.md`; MCP, `CallToolResult`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pybase64
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from runner.artifacts.accept import NEVER_INLINE, ArtifactFile, Processed, s3_ref
from runner.contract.error_messages import RefusedFile, invalid_result
from runner.contract.jsonable import list_of, mapping_of
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

__all__ = ["Ended", "completed_of", "failure_of", "parts_of", "read_ended", "report"]

# Fields of a file that the host fills in from the store.
_OURS = ("name", "mime", "size", "b64", "path", "s3_ref", "uri", "sha256", "pending")
_MOST_FILES = 10_000
_MOST_DENIALS = 1000


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _File(_Part):
    """A file in the store; the tool's metadata for it is an entry of the value."""

    id: str = Field(max_length=256)
    origin: str | None = None
    block: int | None = None


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


class _Refused(_Part):
    name: str | None
    reason: str
    error: _Failure


class _Generated(_Part):
    """Entry of `generated_files`: a file of the home that the result does not name."""

    name: str
    file: str
    size: int = Field(ge=0)
    mime: str
    kept: bool
    uri: str | None = None
    reason: str | None = None
    detail: str | None = None


class _Fared(_Part):
    """Facts of its worker, for the report, the audit log and the metrics."""

    is_fresh: bool = True
    goes_on: bool | None = None
    cpu_s: float | None = None
    memory_peak_bytes: int | None = None
    denials: tuple[Denial, ...] = Field((), max_length=_MOST_DENIALS)
    inputs: list[str] = Field(default_factory=list, max_length=_MOST_FILES)
    generated: list[str] = Field(default_factory=list, max_length=_MOST_FILES)
    ran: bool = False


class Ended(_Part):
    """End of a call: a value with files, an interim answer, an error, or an answer without a tool.

    Attributes:
        value: The contract value, without what the store knows of its files.
        wire: The tool's own result, as its worker wrote it, without bytes of files.
        files: Artifacts that are in the store.
        deferred: The deferred ones.
        errors: Files that were left out.
        texts: Texts of the tool beside the payload.
        is_own: Whether the tool returned no contract value.
        generated: Files of the home that the result does not name.
        places: URI of each stored file by the path where it lay.
        interim: A question or a task, which goes to the client untouched.
        failure: The error that it ended with.
        wire_error: The error of JSON-RPC that it ended with.
        answer: The answer to a request other than a tool call.
        fared: How its worker fared.
    """

    value: dict[str, Any] | None = None
    wire: dict[str, Any] = Field(default_factory=dict)
    files: list[_File] = Field(default_factory=list, max_length=_MOST_FILES)
    deferred: list[_File] = Field(default_factory=list, max_length=_MOST_FILES)
    errors: list[_Refused] = Field(default_factory=list, max_length=_MOST_FILES)
    texts: list[str] = Field(default_factory=list)
    is_own: bool = False
    generated: list[_Generated] = Field(default_factory=list, max_length=_MOST_FILES)
    places: dict[str, str] = Field(default_factory=dict, max_length=2 * _MOST_FILES)
    interim: dict[str, Any] | None = None
    failure: _Failure | None = None
    wire_error: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    fared: _Fared = Field(default_factory=_Fared)

    def error(self) -> CallError:
        """Return the error that it ended with."""
        return (
            invalid_result("the worker node", "its message is empty")
            if self.failure is None
            else self.failure.error()
        )


def report(request: Request, **parts: Any) -> dict[str, Any]:
    """Return the message of a node on the end of a call.

    Args:
        request: The call.
        parts: `answer` or `wire_error`, or those of `parts_of`.
    """
    steps, outcome = request.steps, request.steps.outcome
    fared = _Fared(
        is_fresh=steps.is_fresh,
        goes_on=steps.goes_on,
        cpu_s=None if outcome is None else outcome.cpu_s,
        memory_peak_bytes=None if outcome is None else outcome.memory_peak_bytes,
        denials=() if outcome is None else outcome.denials[:_MOST_DENIALS],
        inputs=[record.id for record in steps.inputs][:_MOST_FILES],
        generated=[record.id for record in steps.generated][:_MOST_FILES],
        ran=outcome is not None,
    )
    return Ended(fared=fared, **parts).model_dump(exclude_defaults=True)


def failure_of(error: CallError) -> dict[str, Any]:
    """Return the message of a node on the end of a call that no worker ended."""
    return Ended(failure=_Failure.of(error)).model_dump(exclude_defaults=True)


def parts_of(ended: Completed | CallError) -> dict[str, Any]:
    """Return the parts of a report on a tool call that has ended, by its contract or with an error."""
    if isinstance(ended, CallError):
        return {"failure": _Failure.of(ended)}
    if ended.interim is not None:
        return {"interim": ended.interim}
    processed = ended.processed
    entries = {
        key: [{name: item for name, item in entry.items() if name not in _OURS} for entry in items]
        for key in FILE_LISTS
        if (items := processed.value.get(key))
    }
    return {
        "wire": _without_files(ended.wire, (*processed.files, *processed.deferred)),
        "value": {**processed.value, **entries},
        "files": _files(processed.files),
        "deferred": _files(processed.deferred),
        "errors": [
            _Refused(name=one.name, reason=one.reason, error=_Failure.of(one.error))
            for one in processed.errors
        ],
        "texts": list(processed.texts),
        "is_own": processed.is_own,
        "generated": [_Generated(**entry) for entry in processed.generated],
        "places": dict(processed.places),
        "failure": None if processed.failure is None else _Failure.of(processed.failure),
    }


def read_ended(body: Mapping[str, Any]) -> Ended:
    """Return the end of a call from a node's message.

    Raises:
        CallError: `E_INVALID_RESULT`: a node may not send that.
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
    """Return a completed tool call from a node's message, every part of it checked.

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
    await _adopt(ended.fared, request, files, is_observed=is_observed)
    if ended.wire_error is not None:
        raise WireError(ended.wire_error)
    if ended.interim is not None:
        question = question_of(ended.interim)
        if question is None:
            raise invalid_result("the worker node", "it sent a malformed question")
        return Completed.for_now(question, spec)
    if ended.value is None:
        raise ended.error()
    entries = {key: ended.value.pop(key, []) for key in FILE_LISTS}
    normalised = normalise({"structuredContent": ended.value}, wrapped=False)
    value = {key: item for key, item in normalised.value.items() if key not in FILE_LISTS}
    travel = _Travel(files, left=request.inline_max_bytes)
    artifacts = await travel.all_of(ended.files, entries["artifacts"])
    wire = await travel.restored(ended.wire, [file for _, file in artifacts])
    deferred = await travel.all_of(ended.deferred, entries["deferred_artifacts"], may_be_inline=False)
    for name, pairs in zip(FILE_LISTS, (artifacts, deferred), strict=True):
        if pairs:
            value[name] = [entry for entry, _ in pairs]
    processed = Processed(
        value=value,
        files=tuple(file for _, file in artifacts),
        deferred=tuple(file for _, file in deferred),
        errors=tuple(RefusedFile(name=r.name, reason=r.reason, error=r.error.error()) for r in ended.errors),
        texts=tuple(ended.texts),
        failure=None if ended.failure is None else ended.failure.error(),
        is_own=ended.is_own,
        generated=tuple(entry.model_dump(exclude_none=True) for entry in ended.generated),
        places=ended.places,
    )
    return Completed(processed=processed, wire=wire, spec=spec)


@dataclass(slots=True)
class _Travel:
    """Decides how each file goes to the client, and takes it from the store.

    Attributes:
        files: My Files of the user.
        left: How many bytes may yet go inside the message.
        inlined: The files that do, as base64, by their URI.
    """

    files: MyFiles
    left: int
    inlined: dict[str, str] = field(default_factory=dict)
    _records: dict[str, Record] = field(default_factory=dict)

    async def all_of(
        self, sent: Sequence[_File], entries: Any, *, may_be_inline: bool = True
    ) -> list[tuple[dict[str, Any], ArtifactFile]]:
        """Return the entry of each file in the value, with the file.

        Raises:
            CallError: `E_INVALID_RESULT` or `E_STORE`: the files are not those of the value, or of the user.
        """
        if not isinstance(entries, list) or len(entries) != len(sent):
            raise invalid_result("the worker node", "its files are not those of its value")
        pairs = zip(sent, entries, strict=True)
        return [await self._taken(one, mapping_of(entry), may_be_inline) for one, entry in pairs]

    async def _taken(
        self,
        sent: _File,
        extras: Mapping[str, Any],
        may_be_inline: bool,  # noqa: FBT001 - passed on
    ) -> tuple[dict[str, Any], ArtifactFile]:
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
                # The tool gave it by its bytes, and its own result has them again.
                origin = carried["b64"]
        more = {key: item for key, item in extras.items() if key not in _OURS}
        entry = {"name": record.shown, **carried, "mime": record.mime, "size": record.size, **more}
        return entry, ArtifactFile(
            id=record.id,
            name=record.shown,
            mime=record.mime,
            size=record.size,
            sha256=record.sha256,
            origin=origin,
            is_content=origin is not sent.origin,
            block=sent.block,
        )

    async def restored(self, wire: Mapping[str, Any], files: Sequence[ArtifactFile]) -> dict[str, Any]:
        """Return a tool's own result as the tool gave it, as far as a message takes it.

        Args:
            wire: The result as the node sent it.
            files: The artifacts.

        Raises:
            CallError: `E_INVALID_RESULT`: a node may not send that.
        """
        if question_of(wire) is not None:
            raise invalid_result("the worker node", "it names a question a result")
        found = dict(wire)
        if "structuredContent" in wire:
            if not isinstance(wire["structuredContent"], dict):
                raise invalid_result("the worker node", "its structured content is not an object")
            references = FileReferences(self.inlined)
            found["structuredContent"] = references.value(wire["structuredContent"], contents=True)
        if "content" not in wire:
            return found
        blocks, left = [*list_of(wire["content"])], MESSAGE_MAX_BYTES
        # Longer than any message; all blocks share it.
        filler = "A" * (MESSAGE_MAX_BYTES + 4)
        of_blocks = {
            file.block: file for file in files if file.block is not None and 0 <= file.block < len(blocks)
        }
        # Images and sounds come first, since links replace them last.
        for at in sorted(of_blocks, key=lambda at: (mapping_of(blocks[at]).get("type") == "resource", at)):
            file = of_blocks[at]
            length = (file.size + 2) // 3 * 4
            if length > left:
                # So the client gets a link, as after a call on one machine.
                content = filler
            elif (content := self.inlined.get(file.uri, "")) == "":
                content = await self._bytes(self._records[file.id])
            blocks[at] = _with_bytes(blocks[at], content)
            left -= length
        return {**found, "content": blocks}

    async def _bytes(self, record: Record) -> str:
        async with self.files.open(record) as content:
            return pybase64.b64encode(b"".join([piece async for piece in content])).decode()


def _without_files(wire: Mapping[str, Any], files: Sequence[ArtifactFile]) -> dict[str, Any]:
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
    """Return a content block with these bytes, where it is one that has any."""
    kind, resource = mapping_of(block).get("type"), mapping_of(mapping_of(block).get("resource"))
    if kind in ("image", "audio"):
        return {**block, "data": content}
    if kind == "resource" and "blob" in resource:
        return {**block, "resource": {**resource, "blob": content}}
    return block


def _files(files: Sequence[ArtifactFile]) -> list[_File]:
    # Bytes are in the store, and are not a name.
    return [
        _File(id=file.id, origin=None if file.is_content else file.origin, block=file.block) for file in files
    ]


async def _adopt(fared: _Fared, request: Request, files: MyFiles, *, is_observed: bool) -> None:
    """Record the worker's usage and denials, as those of a worker on this machine."""
    steps = request.steps
    steps.is_fresh, steps.goes_on = fared.is_fresh, fared.goes_on
    if fared.ran:
        steps.outcome = Outcome(
            ending=Ending.ANSWERED,
            cpu_s=fared.cpu_s,
            memory_peak_bytes=fared.memory_peak_bytes,
            denials=fared.denials,
        )
    found = [await files.by_id(id_) for id_ in fared.inputs] if is_observed else []
    steps.inputs = [record for record in found if record is not None]
    # Few calls leave any, and the log counts them even without observers.
    left = [await files.by_id(id_) for id_ in fared.generated]
    steps.generated += [record for record in left if record is not None]
