"""An object store that takes connections and says nothing: every request about files is answered soon."""

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from site_support import Served

pytestmark = pytest.mark.release

# Eight seconds and what a busy machine adds to them. The server would be waited for for ever.
SOON_S = 30.0


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    # The session of the library keeps the keys that it finds first: those of the tests' S3 server.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-tests")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{silent.getsockname()[1]}")
        yield Served.at(tmp_path, store="s3://bucket/prefix")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/files"),
        ("GET", "/api/files/art_0123456789ab"),
        ("GET", "/artifacts/art_0123456789ab"),
        ("DELETE", "/api/files/art_0123456789ab"),
        ("POST", "/api/files/art_0123456789ab/link"),
    ],
)
def test_silent_store_answered_with_503_and_remedy(served: Served, method: str, path: str) -> None:
    with served.visitor("ann", session="one") as ann:
        start = time.monotonic()
        answer = ann.request(method, path, json={} if method == "POST" else None)
        waited_s = time.monotonic() - start

    assert answer.status_code == 503
    assert "try again later" in answer.json()["error"]
    assert "Retry-After" in answer.headers
    assert waited_s < SOON_S, f"{waited_s:.1f} s"


def test_upload_with_silent_store_kept_on_this_machine(served: Served) -> None:
    with served.visitor("ann") as ann:
        answer = ann.post("/api/files?filename=a.txt", content=b"a")

    assert (answer.status_code, answer.json()["pending"]) == (201, True)
