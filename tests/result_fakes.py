"""A home, a store and arbitrary results for tests, in memory where that makes no difference."""

import hashlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import strategies as st

from runner.files.my_files import Deferral
from runner.store.protocol import Put, Record, Scope


@dataclass(frozen=True)
class FakeHome:
    path: Path
    fd: int


@dataclass
class Shelf:
    """A store in memory, which like the local store keeps one file per name."""

    files: dict[str, bytes] = field(default_factory=dict)
    deferrals: dict[str, Deferral | None] = field(default_factory=dict)

    async def __call__(
        self, fd: int, *, name: str, mime: str, deferral: Deferral | None = None, temporary: bool = False
    ) -> Record:
        content = b"".join(iter(lambda: os.read(fd, 65536), b""))
        self.files[name] = content
        self.deferrals[name] = deferral
        digest = hashlib.sha256(content).hexdigest()
        return Record(
            id=f"art_{digest[:12]}",
            name=name,
            mime=mime,
            size=len(content),
            sha256=digest,
            scope=Scope(user_id="alice"),
            metadata=Put(name=name, mime=mime),
            created=datetime(2024, 8, 27, tzinfo=UTC),
        )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
contract_keys = st.sampled_from(
    [
        "results",
        "result",
        "meta_data",
        "meta-data",
        "retryable",
        "artifacts",
        "deferred_artifacts",
        "display",
        "canvas",
        "links",
        "incomplete",
        "returned_file_names",
        "returned_file_contents",
        "name",
        "b64",
        "path",
        "mime",
        "size",
        "s3_ref",
        "primary_file",
        "type",
        "text",
        "resource",
        "blob",
        "uri",
        "data",
        "mimeType",
    ]
)
contract_like = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["a.txt", "aGk=", "image", "text", "image/png", "/x", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(contract_keys, inner, max_size=5),
    max_leaves=20,
)
