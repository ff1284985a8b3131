"""State and store on a full disk: over HTTP people list, read and remove, and hear why they cannot put."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import fill, small_disk
from site_support import Served

pytestmark = pytest.mark.needs_root

KEPT = os.urandom(50_000)


@pytest.fixture(params=[True, False], ids=["persist", "sessions"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with small_disk(tmp_path / "disk") as disk:
        yield Served.at(disk, persist_files_across_sessions=request.param)


def test_full_disk_files_listed_read_removed_upload_refused(served: Served, tmp_path: Path) -> None:
    with served.visitor("ann", session="one") as ann:
        key = ann.post("/api/files?filename=a.bin", content=KEPT).json()["key"]
        other = ann.post("/api/files?filename=b.bin", content=KEPT[1:]).json()["key"]
        link = ann.post(f"/api/files/{key}/link", json={"single_use": True}).json()["url"]
        fill(tmp_path / "disk")

        listed = ann.get("/api/files")
        whole = ann.get(f"/artifacts/{key}")
        linked = ann.get(link)
        upload = ann.post("/api/files?filename=c.bin", content=os.urandom(5_000_000))
        gone = [ann.delete(f"/api/files/{each}").status_code for each in (key, other)]

        assert [file["filename"] for file in listed.json()["files"]] == ["a.bin", "b.bin"]
        assert whole.content == KEPT
        assert linked.content == KEPT or linked.status_code in {403, 503}
        assert upload.status_code == 507
        assert "remove files" in upload.json()["error"]
        assert gone == [204, 204]
        assert ann.get("/api/files").json() == {"files": []}


def test_new_user_on_full_disk_lists_nothing(served: Served, tmp_path: Path) -> None:
    with served.visitor("ann", session="one") as ann, served.visitor("bob", session="two") as bob:
        ann.post("/api/files?filename=a.bin", content=KEPT)
        fill(tmp_path / "disk")

        assert bob.get("/api/files").json() == {"files": []}
