"""A stored file of which a byte has changed: a download never ends as if it were complete."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn
from site_support import TOKENS, Served


@pytest.fixture
def served(tmp_path: Path) -> Served:
    return Served.at(tmp_path)


@pytest.fixture
def ann(served: Served) -> Iterator[httpx2.Client]:
    """Ann, before a real server: it decides how a connection ends."""
    server = uvicorn.Server(uvicorn.Config(served.web, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
        port = server.servers[0].sockets[0].getsockname()[1]
        headers = {
            "authorization": f"Bearer {TOKENS['ann']}",
            "mcp-session-id": "one",
            "host": "127.0.0.1:8000",
        }
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=180) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(60)


def stored_file(served: Served, folder: Path, size: int) -> tuple[str, Path]:
    record = served.keep(os.urandom(size), "a.bin")
    (path,) = (folder / "store").glob("*/*/objects/*")
    return record.id, path


def flip_last(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize("route", ["/artifacts/{}", "/api/files/{}"])
@pytest.mark.parametrize("size", [3_000_000, 20_000_000])
def test_damaged_file_download_breaks_off(
    served: Served, ann: httpx2.Client, tmp_path: Path, route: str, size: int
) -> None:
    key, path = stored_file(served, tmp_path, size)
    assert ann.get(route.format(key)).status_code == 200
    flip_last(path)

    with pytest.raises(httpx2.RemoteProtocolError):
        ann.get(route.format(key))


@pytest.mark.parametrize("route", ["/artifacts/{}", "/api/files/{}"])
def test_small_damaged_file_refused_with_reason(
    served: Served, ann: httpx2.Client, tmp_path: Path, route: str
) -> None:
    key, path = stored_file(served, tmp_path, 1000)
    flip_last(path)

    answer = ann.get(route.format(key))

    assert answer.status_code == 503
    assert "put it again" in answer.json()["error"]
    # Its headers claim nothing about its bytes.
    assert ann.head(f"/artifacts/{key}").status_code == 200
    with contextlib.suppress(httpx2.HTTPError):
        assert ann.get(route.format(key)).content != path.read_bytes()
