"""A capability token permits one thing on one object until its end, and nothing else."""

import multiprocessing
import os
import re
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import StartError
from runner.users.capability_tokens import TokenError, Tokens

NOW = 1_000_000.0


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


def signed(tokens: Tokens, user: str = "alice", key: str = "art_1", purpose: str = "download") -> str:
    return tokens.sign(user=user, key=key, purpose=purpose, now=NOW, ttl_s=60)


def test_token_returns_its_user(tokens: Tokens) -> None:
    token = signed(tokens, user="alice@example.com")

    assert tokens.verify(token, purpose="download", key="art_1", now=NOW) == "alice@example.com"


def test_secrets_folder_created_if_missing(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state" / "tokens.json")

    assert tokens.verify(signed(tokens), purpose="download", key="art_1", now=NOW) == "alice"
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_token_is_url_safe(tokens: Tokens) -> None:
    assert re.fullmatch(r"[\w.-]+", signed(tokens, user="é /?&=#"), re.ASCII)


@pytest.mark.parametrize(
    ("purpose", "key"),
    [("upload", "art_1"), ("download", "art_2"), ("downloadart_1", ""), ("", "downloadart_1")],
)
def test_token_valid_for_its_purpose_and_key_only(tokens: Tokens, purpose: str, key: str) -> None:
    token = signed(tokens)
    assert tokens.verify(token, purpose="download", key="art_1", now=NOW)

    with pytest.raises(TokenError, match="not valid"):
        tokens.verify(token, purpose=purpose, key=key, now=NOW)


def test_token_expires_on_time(tokens: Tokens) -> None:
    token = signed(tokens)
    assert tokens.verify(token, purpose="download", key="art_1", now=NOW + 59)

    with pytest.raises(TokenError, match="expired"):
        tokens.verify(token, purpose="download", key="art_1", now=NOW + 60)


def test_token_with_changed_user_or_expiry_refused(tokens: Tokens) -> None:
    _, mac = signed(tokens).split(".")
    for user in ("bob", "mallory"):
        claims, _ = signed(tokens, user=user).split(".")

        with pytest.raises(TokenError):
            tokens.verify(f"{claims}.{mac}", purpose="download", key="art_1", now=NOW)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_other_text_is_not_a_token(tokens: Tokens, text: str) -> None:
    with pytest.raises(TokenError):
        tokens.verify(text, purpose="download", key="art_1", now=NOW)


def test_token_of_another_runner_refused(tokens: Tokens, tmp_path: Path) -> None:
    foreign = signed(Tokens(tmp_path / "other.json"))

    with pytest.raises(TokenError):
        tokens.verify(foreign, purpose="download", key="art_1", now=NOW)


def test_token_valid_after_one_rotation_not_after_two(tokens: Tokens, tmp_path: Path) -> None:
    token = signed(tokens)

    tokens.rotate()
    assert Tokens(tmp_path / "tokens.json").verify(token, purpose="download", key="art_1", now=NOW)
    assert signed(tokens) != token
    tokens.rotate()

    with pytest.raises(TokenError):
        tokens.verify(token, purpose="download", key="art_1", now=NOW)


def test_rotation_before_first_use_makes_secrets(tokens: Tokens) -> None:
    tokens.rotate()

    assert tokens.verify(signed(tokens), purpose="download", key="art_1", now=NOW) == "alice"


def test_secrets_readable_by_owner_only_without_leftovers(tokens: Tokens, tmp_path: Path) -> None:
    signed(tokens)
    tokens.rotate()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["tokens-copy.json", "tokens.json"]
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600


def test_secrets_readable_by_others_not_used(tokens: Tokens, tmp_path: Path) -> None:
    signed(tokens)
    (tmp_path / "tokens.json").chmod(0o644)

    with pytest.raises(StartError, match="0600"):
        signed(tokens)


DAMAGED = ["", "{}", '{"keys": [["a", "zz"]]}', '{"keys": [["a", ""]]}', '{"keys": []}', "[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_secrets_restored_from_copy_and_set_apart(
    tokens: Tokens, tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = signed(tokens)
    (tmp_path / "tokens.json").write_text(content)

    assert tokens.verify(token, purpose="download", key="art_1", now=NOW) == "alice"
    assert [path.read_text() for path in tmp_path.glob("tokens.json.damaged-*")] == [content]
    assert "state file set aside" in caplog.text
    # The control: where the copy is damaged as well, what was signed before ends.
    for name in ("tokens.json", "tokens-copy.json"):
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenError):
        tokens.verify(token, purpose="download", key="art_1", now=NOW)
    assert len(list(tmp_path.glob("tokens*.damaged-*"))) == 3


def test_removed_secrets_invalidate_tokens_despite_copy(
    tokens: Tokens, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = signed(tokens)
    (tmp_path / "tokens.json").unlink()

    with pytest.raises(TokenError):
        tokens.verify(token, purpose="download", key="art_1", now=NOW)

    assert "link keys missing" in caplog.text
    # Nor do they come back with the copy later on.
    (tmp_path / "tokens.json").write_text("")
    with pytest.raises(TokenError):
        tokens.verify(token, purpose="download", key="art_1", now=NOW)


def test_old_secrets_without_copy_get_one_at_start(tokens: Tokens, tmp_path: Path) -> None:
    token = signed(tokens)
    (tmp_path / "tokens-copy.json").unlink()

    tokens.rotate_after(1e9, now=time.time())
    (tmp_path / "tokens.json").write_text("half of i")

    assert tokens.verify(token, purpose="download", key="art_1", now=NOW) == "alice"


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_non_file_at_secrets_path_neither_followed_nor_awaited(
    tokens: Tokens, tmp_path: Path, kind: str
) -> None:
    token, path = signed(tokens), tmp_path / "tokens.json"
    path.rename(tmp_path / "elsewhere")
    if kind == "link":
        path.symlink_to("elsewhere")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path, 0o600)

    assert tokens.verify(token, purpose="download", key="art_1", now=NOW) == "alice"
    assert path.is_file()
    assert not path.is_symlink()
    assert len(list(tmp_path.glob("tokens.json.damaged-*"))) == 1


def test_damaged_secrets_repaired_once_by_concurrent_processes(tokens: Tokens, tmp_path: Path) -> None:
    token = signed(tokens)
    (tmp_path / "tokens.json").write_text("torn")

    with ThreadPoolExecutor(16) as pool:
        users = pool.map(lambda _: tokens.verify(token, purpose="download", key="art_1", now=NOW), range(64))

    assert set(users) == {"alice"}
    assert len(list(tmp_path.glob("*.damaged-*"))) == 1


def _sign_in_another_process(path: Path, start: "multiprocessing.synchronize.Event", out: Path) -> None:
    start.wait(60)
    out.write_text(signed(Tokens(path)))


def test_processes_starting_together_share_one_secret(tokens: Tokens, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    start, outs = spawn.Event(), [tmp_path / f"out{n}" for n in range(4)]
    children = [
        spawn.Process(target=_sign_in_another_process, args=(tmp_path / "tokens.json", start, out))
        for out in outs
    ]
    for child in children:
        child.start()

    start.set()
    for child in children:
        child.join()

    users = {tokens.verify(out.read_text(), purpose="download", key="art_1", now=NOW) for out in outs}
    assert users == {"alice"}
