"""Arguments that name files: each form of a reference becomes the path of its own copy."""

from pathlib import Path

import pytest

from runner.files.my_files import Library
from runner.files.sessions import Sessions
from runner.homes.homes import Homes
from runner.steps.inputs import prepare_inputs
from runner.store.protocol import Origin, Put, Retention
from runner.store.store import BlobStore
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User

pytestmark = pytest.mark.anyio


async def test_files_of_one_name_staged_side_by_side(place: Path) -> None:
    files = Library(store=BlobStore(), sessions=Sessions(place / "sessions")).of("alice")
    file = await files.put(b"kept", name="a.json", origin=Origin.UPLOADED)
    about = Put(name="a.json", retention=Retention.OBSERVATIONS)
    taken = [
        await files.library.store.put_bytes(content, about, scope=files.scope) for content in (b"1", b"22")
    ]
    names = ["a.json", *(f"artifact://{record.id}" for record in taken), file.id, "new.json"]
    properties = {"filenames": {"type": "array"}}
    spec = ToolSpec(name="t", parameters={"properties": properties}, output_schema=None)

    with Homes(place / "homes", place / "state").lease("alice") as home:
        prepared = prepare_inputs(
            {"filenames": names},
            spec=spec,
            user=User("alice"),
            home=home,
            files=files,
            claims=place / "state/claims",
            link=lambda record: record.id,
        )
        async with prepared as inputs:
            *paths, unknown = inputs.arguments["filenames"]
            contents = [Path(path).read_bytes() for path in paths]

    assert contents == [b"kept", b"1", b"22", b"kept"]
    assert {Path(path).name for path in paths} == {"a.json"}
    assert (unknown, inputs.unknown) == ("new.json", ("new.json",))
    assert [record.id for record in inputs.files] == [file.id, *(r.id for r in taken), file.id]
