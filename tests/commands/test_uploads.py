"""Durability of acknowledged uploads: the host is killed repeatedly in the middle of many."""

import asyncio
import base64
import hashlib
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from support import SAMPLES, server_url, stop

from runner.store.local.blobs import LocalBlobs
from runner.store.store import BlobStore

pytestmark = [pytest.mark.kernel, pytest.mark.release]

UPLOADS = 200
KILLS = 4
CLIENTS = 8


def content_of(number: int) -> bytes:
    """Return the content of one upload, of any size from nothing to some pieces of the host's."""
    chance = random.Random(number)
    return chance.randbytes(chance.choice([0, 1, 5_000, 300_000, chance.randrange(2_500_000)]))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def upload(client: httpx2.Client, number: int) -> httpx2.Response:
    name, content = f"{number}.bin", content_of(number)
    if number % 3 == 0:
        return client.post("/api/files", files={"file": (name, content)})
    if number % 3 == 1 and len(content) < 500_000:
        fields = {"filename": name, "content_base64": base64.b64encode(content).decode()}
        return client.post("/api/files", json=fields)
    return client.put("/api/files", params={"filename": name}, content=content)


class Host:
    """A server in a process of its own."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        command = [sys.executable, "-m", "runner.cli.app", "serve", str(SAMPLES / "hello.py")]
        self.process = subprocess.Popen(
            [*command, "--transport", "http", "--port", "0"],
            env=environment,
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            self.base = server_url(self.process).removesuffix("/mcp")
        except BaseException:
            self.process.kill()
            raise

    def kill(self) -> None:
        """End it as a crash does: nothing of it runs any more code."""
        self.process.kill()
        self.process.wait(timeout=120)

    def close(self) -> None:
        """Kill it if it still runs, and read the rest of what it said, so that nothing of it is left."""
        self.process.kill()
        self.process.communicate(timeout=120)

    def listed(self) -> dict[str, str]:
        """Return the digests of the files it has, by name."""
        with httpx2.Client(base_url=self.base, timeout=120) as client:
            return {file["filename"]: file["sha256"] for file in client.get("/api/files").json()["files"]}

    def contents(self) -> dict[str, bytes]:
        with httpx2.Client(base_url=self.base, timeout=120) as client:
            files = client.get("/api/files").json()["files"]
            headers = {"mcp-session-id": "one"}
            return {
                file["filename"]: client.get(f"/artifacts/{file['key']}", headers=headers).content
                for file in files
            }


def send_all(base: str, numbers: range, acknowledged: Callable[[int], None]) -> None:
    """Send uploads from several clients until all are sent or the server is gone."""
    waiting = iter(numbers)
    lock = threading.Lock()

    def work() -> None:
        with httpx2.Client(base_url=base, timeout=120) as client:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                try:
                    answer = upload(client, number)
                except httpx2.TransportError:
                    return
                assert answer.status_code == 201, answer.text
                acknowledged(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in [pool.submit(work) for _ in range(CLIENTS)]:
            done.result()


def test_acknowledged_uploads_survive_kill_without_partials(
    environment: dict[str, str], folder: Path
) -> None:
    chance = random.Random(7)
    known: set[int] = set()
    share = UPLOADS // KILLS
    interrupted = 0

    for first in range(0, UPLOADS, share):
        host = Host(environment, folder)
        left = chance.randrange(5, share - CLIENTS)
        before = len(known)
        lock = threading.Lock()

        def acknowledged(
            number: int,
            host: Host = host,
            before: int = before,
            left: int = left,
            lock: threading.Lock = lock,
        ) -> None:
            with lock:
                known.add(number)
                if len(known) - before == left:
                    host.kill()

        try:
            send_all(host.base, range(first, first + share), acknowledged)
        finally:
            host.close()
        interrupted += len(known) - before < share

    after = Host(environment, folder)
    try:
        listed, contents = after.listed(), after.contents()
    finally:
        stop(after.process)

    whole = {f"{number}.bin": content_of(number) for number in range(UPLOADS)}
    assert interrupted == KILLS
    assert {name for name in whole if int(name.removesuffix(".bin")) in known} <= set(listed)
    assert listed == {name: digest(whole[name]) for name in listed}
    assert contents == {name: whole[name] for name in listed}
    assert left_on_disk(folder / "store") == {digest(whole[name]) for name in listed}


def left_on_disk(root: Path) -> set[str]:
    """Return the digests of all stored bytes, once what was interrupted has been swept away."""
    store = BlobStore(LocalBlobs(root))
    asyncio.run(store.sweep())
    assert list(store.missing()) == []
    assert store.orphans() == []
    assert list(root.glob("users/*/incoming/*")) == []
    return {digest(path.read_bytes()) for path in root.glob("users/*/objects/*")}


def test_interrupted_upload_leaves_nothing_in_store(environment: dict[str, str], folder: Path) -> None:
    host = Host(environment, folder)
    try:
        with httpx2.Client(base_url=host.base, timeout=120) as client:
            whole = client.put("/api/files?filename=whole.bin", content=b"whole").status_code
        send_half(host.base)
        listed = host.listed()
    finally:
        host.close()

    assert whole == 201
    assert listed == {"whole.bin": digest(b"whole")}
    assert left_on_disk(folder / "store") == {digest(b"whole")}


def send_half(base: str) -> None:
    """Send half of a file and leave; return when the server has noticed."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(base)
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port), timeout=120) as client:
        client.sendall(
            f"PUT /api/files?filename=half.bin HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            "Content-Length: 2000000\r\n\r\n".encode()
            + os.urandom(1_000_000)
        )
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
