"""State of logins: kept until it expires, private, within bounds."""

import asyncio
import json
import stat
from pathlib import Path

import pytest

from runner.users.login_state import LoginState, signing_key

NOW = 1_800_000_000.0


def files(folder: Path) -> list[Path]:
    return [path for path in (folder / "logins").rglob("*") if path.is_file()]


def test_login_entry_kept_until_expiry_across_processes(tmp_path: Path) -> None:
    now = [NOW]
    state = LoginState(tmp_path, clock=lambda: now[0])

    async def keep_entry() -> None:
        await state.put("code-1", {"a": [1]}, collection="codes", ttl=60)
        await state.put("client-1", {"b": 2}, collection="clients")

    asyncio.run(keep_entry())
    other = LoginState(tmp_path, clock=lambda: now[0])

    async def found() -> list[object]:
        return [
            await other.get("code-1", collection="codes"),
            await other.get("client-1", collection="clients"),
            await other.get("code-1", collection="clients"),
        ]

    assert asyncio.run(found()) == [{"a": [1]}, {"b": 2}, None]
    now[0] += 60
    assert asyncio.run(found()) == [None, {"b": 2}, None]
    assert len(files(tmp_path)) == 1
    assert asyncio.run(other.delete("client-1", collection="clients"))
    assert not asyncio.run(other.delete("client-1", collection="clients"))


def test_login_entries_private_and_file_names_opaque(tmp_path: Path) -> None:
    asyncio.run(LoginState(tmp_path / "state").put("../../a-secret-code", {"a": 1}, collection="../codes"))

    (path,) = files(tmp_path / "state")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert "secret" not in str(path.relative_to(tmp_path))
    assert "secret" not in path.read_text()


def test_login_entries_flood_evicts_least_recently_used(tmp_path: Path) -> None:
    state = LoginState(tmp_path, most=5)

    async def flooded() -> object:
        await state.put("mine", {"a": 1}, collection="clients")
        for number in range(30):
            await state.put(f"strange-{number}", {"a": 1}, collection="clients")
            assert await state.get("mine", collection="clients") == {"a": 1}
        return await state.get("strange-0", collection="clients")

    assert asyncio.run(flooded()) is None
    assert len(files(tmp_path)) <= 5


def test_login_entries_of_many_bytes_evict_least_recently_used(tmp_path: Path) -> None:
    state = LoginState(tmp_path, most_bytes=5000)

    async def flooded() -> object:
        for number in range(30):
            await state.put(f"strange-{number}", {"a": "a" * 900}, collection="clients")
        return await state.get("strange-29", collection="clients")

    assert asyncio.run(flooded()) == {"a": "a" * 900}
    held = [path.stat().st_size for path in files(tmp_path)]
    assert len(held) > 3
    assert sum(held) <= 5000


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"end": "x", "value": {}}', '{"end": null, "value": 1}']
)
def test_damaged_login_entry_reads_as_none(tmp_path: Path, content: str) -> None:
    state = LoginState(tmp_path)
    asyncio.run(state.put("one", {"a": 1}))
    (path,) = files(tmp_path)
    path.write_text(content)

    assert asyncio.run(state.get("one")) is None


def test_login_key_kept_and_damaged_one_set_apart(tmp_path: Path) -> None:
    first = signing_key(tmp_path)
    path = tmp_path / "login-key.json"

    assert signing_key(tmp_path) == first
    assert len(first) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text(json.dumps({"key": 1}))
    assert signing_key(tmp_path) != first
    assert len(list(tmp_path.glob("login-key.json.damaged-*"))) == 1
