"""Servers without a store, stores of an application, and clear errors for both."""

import asyncio
import base64
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from store_world import ALICE, BOB, NOBODY, Clock, content_of, keep, observe

from runner.artifacts.accept import Processed, process_artifacts
from runner.contract.normalise import normalise
from runner.errors import CallError, Code
from runner.files.my_files import Deferral, Library, MyFiles
from runner.files.sessions import Sessions
from runner.store.discovery import discover
from runner.store.local.blobs import LocalBlobs
from runner.store.noop import NoStore
from runner.store.protocol import Origin, Put, Record, Retention, Scope
from runner.store.retention import Budgets, RetentionRules
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio


class Keeper:
    """An application's keeper of state, which holds artifacts too."""

    def __init__(self) -> None:
        self.held: dict[str, tuple[bytes, dict[str, Any]]] = {}

    async def put_artifact(self, content: bytes, *, artifact_id: str, **fields: Any) -> None:
        self.held[artifact_id] = (content, fields)

    async def get_artifact(self, artifact_id: str) -> bytes | None:
        return self.held[artifact_id][0] if artifact_id in self.held else None

    async def delete_artifact(self, artifact_id: str) -> bool:
        return self.held.pop(artifact_id, None) is not None


class Having:
    """A keeper of state that has a store as its attribute."""

    def __init__(self, store: object) -> None:
        self.artifact_store = store


# No store.


async def test_without_a_store_a_put_is_described_and_warned_of_once(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Source: S4-87, S4-91 and S4-107."""
    store = NoStore()
    (tmp_path / "a.txt").write_bytes(b"data")

    about = Put(retention=Retention.OBSERVATIONS, source={"tool": "t"})
    record = await store.put_bytes(b"data", about, scope=NOBODY)
    again = await store.put_file(tmp_path / "a.txt", Put(name="a.txt"), scope=ALICE)

    assert record.ref.source == {"tool": "t", "truncated": True, "original_size": 4}
    assert record.ref.id == again.ref.id == f"art_{hashlib.sha256(b'data').hexdigest()[:12]}"
    assert again.ref.mime_type == "text/plain"
    warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warned) == 1
    assert "No ArtifactStore configured" in warned[0]
    assert await store.stat(record.id, scope=NOBODY) is None
    assert (await store.find("a.txt", scope=ALICE), await store.list(scope=ALICE)) == (None, [])
    assert not await store.delete(record.id, scope=NOBODY)
    assert await store.sweep() == []
    with pytest.raises(CallError, match="there is no store"):
        await content_of(store, record)


# Discovery.


def test_a_store_is_found_as_an_attribute_and_by_its_methods() -> None:
    """Source: S4-68 and S4-69."""
    store = BlobStore()

    assert discover(Having(store)) is store
    assert isinstance(discover(Keeper()), BlobStore)


@pytest.mark.parametrize("lacking", ["put_artifact", "get_artifact", "delete_artifact"])
def test_what_lacks_one_method_is_no_store(lacking: str) -> None:
    methods = {name: value for name, value in vars(Keeper).items() if name != lacking}
    assert discover(type("Whole", (), dict(vars(Keeper)))()) is not None

    assert discover(type("Part", (), methods)()) is None


@pytest.mark.parametrize(
    "state", [None, 5, Having(None), Having("store"), Having(BlobStore), Keeper, object()]
)
def test_what_only_looks_like_a_store_is_none(state: object) -> None:
    assert discover(state) is None


def test_methods_that_cannot_be_awaited_are_none() -> None:
    plain = {name: lambda *_: None for name in ("put_artifact", "get_artifact", "delete_artifact")}

    assert discover(type("Plain", (), plain)()) is None


async def test_adapted_store_passes_the_suite_and_holds_no_bytes() -> None:
    clock, keeper = Clock(), Keeper()
    store = discover(
        keeper, rules=RetentionRules(observations=Budgets(max_artifacts_per_session=2)), clock=clock
    )
    assert store is not None
    file = await keep(store, b"file", "a.txt")
    seen = [await observe(store, content) for content in (b"1", b"2", b"3")]

    assert await content_of(store, file) == b"file"
    assert [await store.stat(record.id, scope=NOBODY) is None for record in seen] == [True, False, False]
    assert sorted(content for content, _ in keeper.held.values()) == [b"2", b"3", b"file"]
    options = next(fields for content, fields in keeper.held.values() if content == b"file")
    assert (options["filename"], options["mime_type"], options["scope"]["user_id"]) == (
        "a.txt",
        "text/plain",
        "alice",
    )
    await keep(store, b"file", "a.txt", BOB)
    assert len(keeper.held) == 4


async def test_a_keeper_that_fails_leaves_nothing_half_done(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Keeper):
        async def put_artifact(self, content: bytes, *, artifact_id: str, **fields: Any) -> None:
            raise ConnectionError("no route to postgres://app:hunter2@db")

    store = discover(Failing())
    assert store is not None

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(CallError, match=r"put_artifact failed \(ConnectionError\)") as raised,
    ):
        await keep(store, b"x", "a.txt")

    assert raised.value.code is Code.E_STORE
    assert "hunter2" not in raised.value.message
    assert "hunter2" in caplog.text
    assert await store.list(scope=ALICE) == []


async def test_a_keeper_that_does_not_answer_holds_up_nobody_for_ever() -> None:
    class Silent(Keeper):
        async def put_artifact(self, content: bytes, *, artifact_id: str, **fields: Any) -> None:
            if content == b"stuck":
                await asyncio.Event().wait()
            await super().put_artifact(content, artifact_id=artifact_id, **fields)

    store = discover(Silent(), answer_s=0.05)
    assert store is not None

    with pytest.raises(CallError, match=r"put_artifact did not answer within 0.05 s") as raised:
        await keep(store, b"stuck", "a.txt")

    assert raised.value.code is Code.E_STORE
    record = await keep(store, b"other", "b.txt")
    assert await content_of(store, record) == b"other"


async def test_what_a_keeper_returns_in_place_of_bytes_is_named() -> None:
    class Text(Keeper):
        async def get_artifact(self, artifact_id: str) -> Any:
            return "text"

    store = discover(Text())
    assert store is not None
    record = await keep(store, b"text", "a.txt")

    with pytest.raises(CallError, match="get_artifact returned str, not bytes") as raised:
        await content_of(store, record)

    assert raised.value.code is Code.E_STORE


# The five failures of requirement S4-102, each with the same thing succeeding.


async def processed(files: MyFiles, payload: dict[str, Any], *content: dict[str, Any]) -> Processed:
    async def put(fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool) -> Record:
        return await files.put(
            fd, name=name, mime=mime, origin=Origin.GENERATED, deferral=deferral, temporary=temporary
        )

    normalised = normalise({"structuredContent": payload, "content": list(content)}, wrapped=False)
    return await process_artifacts(normalised, home=None, inline_max_bytes=1000, max_bytes=10_000, keep=put)


async def test_missing_store(tmp_path: Path) -> None:
    """Source: S4-102."""
    payload = {"results": 1, "artifacts": [{"name": "a.txt", "b64": "aGk=", "mime": "text/plain"}]}
    good = Library(store=BlobStore(), sessions=Sessions(tmp_path)).of("alice")
    (tmp_path / "file").write_text("no folder")
    gone = Library(store=BlobStore(LocalBlobs(tmp_path / "file")), sessions=Sessions(tmp_path)).of("alice")

    stored, lost = await processed(good, payload), await processed(gone, payload)

    assert [file.name for file in stored.files] == ["a.txt"]
    assert [(refusal.name, refusal.error.code) for refusal in lost.errors] == [("a.txt", Code.E_STORE)]
    assert lost.value["results"] == 1


@pytest.mark.parametrize("data", ["aGk", "aGk=", "a-_k", "not base64!", "A"])
async def test_malformed_base64(tmp_path: Path, data: str) -> None:
    """Source: S4-102."""
    files = Library(store=BlobStore(), sessions=Sessions(tmp_path)).of("alice")
    payload = {"results": 1, "artifacts": [{"name": "a.txt", "b64": data, "mime": "text/plain"}]}

    result = await processed(files, payload)

    malformed = data in ("not base64!", "A")
    assert [refusal.reason for refusal in result.errors] == (["invalid_base64"] if malformed else [])
    assert len(await files.all()) == (0 if malformed else 1)


async def test_decode_failure(tmp_path: Path) -> None:
    """Source: S4-102."""
    files = Library(store=BlobStore(), sessions=Sessions(tmp_path)).of("alice")
    blobs = [base64.b64encode(b"good").decode(), "%%%"]
    blocks = [
        {"type": "resource", "resource": {"uri": f"t://{n}.bin", "blob": blob, "mimeType": "image/png"}}
        for n, blob in enumerate(blobs)
    ]

    result = await processed(files, {"results": 1}, *blocks)

    assert [file.name for file in result.files] == [record.name for record in await files.all()] == ["0.bin"]
    assert result.value["results"] == 1


async def test_access_denied(tmp_path: Path) -> None:
    """Source: S4-102."""
    library = Library(store=BlobStore(LocalBlobs(tmp_path / "store")), sessions=Sessions(tmp_path))
    record = await library.of("alice").put(b"secret", name="a.txt", origin=Origin.UPLOADED)

    for scope in (BOB, NOBODY, Scope(session_id="alice")):
        with pytest.raises(CallError, match="no longer stored") as raised:
            await content_of(library.store, record, scope)
        assert raised.value.code is Code.E_FILE_NOT_FOUND
        assert not Scope(user_id="alice").admits(scope)
    assert await content_of(library.store, record, ALICE) == b"secret"


async def test_oversized_payload() -> None:
    """Source: S4-102."""
    store = BlobStore(rules=RetentionRules(observations=Budgets(max_artifact_bytes=100)))
    await observe(store, b"x" * 100)

    with pytest.raises(CallError, match="above the limit of 100 bytes") as raised:
        await observe(store, b"y" * 101)

    assert raised.value.code is Code.E_QUOTA
    assert len(await store.list(scope=NOBODY)) == 1


def test_a_store_in_memory_serves_operations_that_overlap() -> None:
    async def many() -> int:
        store = BlobStore()
        await asyncio.gather(*(keep(store, b"%d" % (number % 20), "a.txt") for number in range(100)))
        return len(await store.list(scope=ALICE))

    assert asyncio.run(many()) == 20
