"""Answers of `/readyz` for an unusable store, folder or disk, and for a check that hangs."""

import asyncio
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ports import free_port
from site_support import Served
from support import settings_in

from runner.http.readiness import Readiness
from runner.settings.auth import Auth
from runner.users import providers
from runner.users.token_checks import tokens_fault

pytestmark = [pytest.mark.needs_root, pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long for a check as it takes on a busy machine."""
    monkeypatch.setattr("runner.http.readiness._PATIENCE_S", 60.0)


@contextmanager
def small_disk(at: Path, options: str) -> Iterator[Path]:
    """Mount a small file system in memory; needs the right to mount."""
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "small", at], capture_output=True, text=True, check=False
    )
    assert mounted.returncode == 0, f"run this as root, who may mount: {mounted.stderr}"
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)


async def faults(served: Served) -> Mapping[str, str]:
    return await Readiness.of_site(served.site).faults()


async def test_server_with_working_store_and_folders_is_ready(tmp_path: Path) -> None:
    assert await faults(Served.at(tmp_path)) == {}


async def test_full_disk_named_with_setting_and_free_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "size=8m") as disk:
        served = Served.at(tmp_path, homes=disk)
        assert await faults(served) == {}
        (disk / "full").write_bytes(b"x" * (8 * 1024 * 1024 - 8192))

        found = await faults(served)

    assert found == {
        "disk": "the disk of homes has 0 MiB left of 8; delete something, or give homes a larger one"
    }


async def test_unwritable_folder_named_with_setting(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "size=8m") as disk:
        served = Served.at(tmp_path, homes=disk)
        assert await faults(served) == {}
        make_read_only(disk)

        found = await faults(served)

    sentence = "nothing can be written in the folder homes: Read-only file system; see to its disk and owner"
    assert found == {"homes": sentence}


async def test_state_path_not_a_folder_is_named(tmp_path: Path) -> None:
    served = Served.at(tmp_path)
    os.rename(tmp_path / "state", tmp_path / "elsewhere")
    # With nothing in its place the look at the keys would make it again, before or after the other check.
    (tmp_path / "state").write_text("a file")

    found = await faults(served)

    assert "Not a directory" in found["state"]


async def test_hanging_check_answered_soon_and_run_by_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.http.readiness._PATIENCE_S", 0.1)
    requests, go = [], asyncio.Event()

    async def hangs() -> Mapping[str, str]:
        requests.append(1)
        await go.wait()
        return {}

    readiness = Readiness.of_site(replace(Served.at(tmp_path).site, faults=hangs))
    first, second = await asyncio.gather(readiness.faults(), readiness.faults())

    # Before the check was let go on: nobody has waited for it.
    words = "it could not be checked yet: the check takes unusually long; ask again"
    assert first["tools"] == second["tools"] == words
    assert len(requests) == 1
    go.set()
    assert "tools" not in await readiness.faults()
    assert len(requests) == 1


async def test_checks_not_repeated_within_a_second(tmp_path: Path) -> None:
    requests = []

    async def counts() -> Mapping[str, str]:
        requests.append(1)
        return {}

    readiness = Readiness.of_site(replace(Served.at(tmp_path).site, faults=counts))

    for _ in range(50):
        await readiness.faults()

    assert len(requests) < 50


async def test_unfetchable_issuer_keys_named_fetched_ones_suffice(
    tmp_path: Path,
) -> None:
    served = Served.at(tmp_path)
    port = free_port()
    address = f"http://127.0.0.1:{port}/jwks"
    auth = Auth(kind="jwt", issuer="https://issuer.example", audience="here", keys=address)
    provider = providers.of(settings_in(tmp_path / "other", auth=auth), lambda _: "ann")
    check = partial(tokens_fault, provider)

    found = await Readiness.of_site(served.site, identity=check).faults()
    assert "auth.keys" in found["identity"]
    (tmp_path / "jwks").write_text('{"keys": []}')
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as issuer:
        thread = threading.Thread(target=issuer.serve_forever)
        thread.start()
        assert await Readiness.of_site(served.site, identity=check).faults() == {}
        issuer.shutdown()
        thread.join()
    # They were fetched, and count for a while.
    assert await Readiness.of_site(served.site, identity=check).faults() == {}
