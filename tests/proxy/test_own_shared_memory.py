"""A command in tier namespace has POSIX shared memory of its own: bounded, and nobody else's."""

import os
from pathlib import Path
from typing import Any

import pytest
from proxying import over_stdio, proxied, result

from sandbox.policy import MIB, Policy

SHARED = Path("/dev/shm")
SIZE = "runner.proxy.confined_command._SHARED_MEMORY_BYTES"

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]


@pytest.fixture
async def own(folder: Path, user: str) -> Any:
    async with proxied(folder, user, over_stdio(), isolation="namespace") as client:
        yield client


@pytest.mark.release
async def test_lock_held_among_processes_of_one_server(own: Any) -> None:
    assert await result(own, "lock") == ["False", "True"]


@pytest.mark.release
async def test_no_lock_without_shared_memory(
    folder: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SIZE, 0)
    async with proxied(folder, user, over_stdio(), isolation="namespace") as client:
        assert "Read-only file system" in await result(client, "lock")


async def test_no_lock_in_process_tier(folder: Path, user: str) -> None:
    async with proxied(folder, user, over_stdio(), isolation="process") as client:
        assert "Permission denied" in await result(client, "lock")
        assert await result(client, "share", name="toolcell-shared", words="mine") == "PermissionError"

    assert not (SHARED / "toolcell-shared").exists()


async def test_shared_memory_visible_to_its_server_only(own: Any, folder: Path, user: str) -> None:
    planted = SHARED / f"toolcell-planted-{os.getpid()}"
    planted.write_text("the machine's")
    planted.chmod(0o666)
    try:
        async with proxied(folder, user, over_stdio(), isolation="namespace") as other:
            assert await result(own, "share", name="toolcell-shared", words="mine") == "done"
            seen = [await result(client, "shared") for client in (own, other)]
            reached = await result(own, "see", path=str(planted))
    finally:
        planted.unlink()

    assert seen == [["toolcell-shared"], []]
    assert reached == "FileNotFoundError"
    assert not (SHARED / "toolcell-shared").exists()


@pytest.mark.release
async def test_shared_memory_bounded_in_bytes_and_names(own: Any) -> None:
    fits, full = [await result(own, "fill", path=f"{SHARED}/{mib}", mib=mib) for mib in (10, 7)]
    many = await result(own, "names", folder=str(SHARED), number=5000)

    assert (fits, full, many) == ("done", "OSError", "OSError")
    assert len(await result(own, "shared")) < 5000


async def test_shared_memory_is_not_executable(own: Any) -> None:
    assert await result(own, "run", path=f"{SHARED}/program") == "PermissionError"


def test_policy_has_no_shared_memory_of_machine() -> None:
    with pytest.raises(ValueError, match="everybody's elsewhere"):
        Policy(shared_memory_bytes=MIB)
    with pytest.raises(ValueError, match="-1 bytes"):
        Policy(shared_memory_bytes=-1, namespaces=True)


def test_policy_with_shared_memory_reaches_sandbox_intact() -> None:
    some = Policy(shared_memory_bytes=MIB, namespaces=True)

    assert Policy.from_json(some.to_json()) == some
