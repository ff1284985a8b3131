"""Files that a call leaves are kept under names that differ where their bytes differ."""

import os

import pytest
from result_fakes import FakeHome

from runner.artifacts.accept import Processed
from runner.artifacts.generated import Generated, keep_generated
from runner.files.my_files import Library
from runner.files.sessions import Unkept
from runner.homes.changes import ChangedFile
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio


def left(home: FakeHome, name: bytes, content: bytes) -> ChangedFile:
    path = os.fsencode(home.path) + b"/" + name
    with open(path, "wb") as file:
        file.write(content)
    found = os.stat(path)
    return ChangedFile(os.fsdecode(name), found.st_ino, found.st_size, found.st_ctime_ns)


async def test_files_whose_names_are_no_utf8_replace_only_themselves(home: FakeHome) -> None:
    files = Library(store=BlobStore(), sessions=Unkept()).of("alice")
    rules = Generated(mode="keep", home=home, files=files, max_bytes=1000)

    for versions in ((b"1", b"2"), (b"3", b"4")):
        found = [left(home, b"M\xfcller.csv", versions[0]), left(home, b"M\xf6ller.csv", versions[1])]
        processed = await keep_generated(Processed(value={}), found, rules)
        uris = [entry["uri"] for entry in processed.value["meta_data"]["generated_files"]]

        assert sorted(uris) == sorted(f"artifact://{record.id}" for record in await files.all())
        assert len(uris) == 2
