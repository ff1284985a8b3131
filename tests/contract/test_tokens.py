"""A capability token permits one thing on one object until its end, and nothing else."""

import json
import multiprocessing
import re
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import StartError
from runner.tokens import TokenError, Tokens

NOW = 1_000_000.0


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


def signed(tokens: Tokens, user: str = "alice", key: str = "art_1", purpose: str = "download") -> str:
    return tokens.sign(user=user, key=key, purpose=purpose, now=NOW, ttl_s=60)


def test_a_token_gives_back_its_user(tokens: Tokens) -> None:
    token = signed(tokens, user="alice@example.com")

    assert tokens.verify(token, purpose="download", key="art_1", now=NOW) == "alice@example.com"


def test_the_folder_of_the_secrets_is_made_where_nothing_has_made_it(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path / "state" / "tokens.json")

    assert tokens.verify(signed(tokens), purpose="download", key="art_1", now=NOW) == "alice"
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_token_may_stand_in_a_url_as_it_is(tokens: Tokens) -> None:
    assert re.fullmatch(r"[\w.-]+", signed(tokens, user="é /?&=#"), re.ASCII)


@pytest.mark.parametrize(
    ("purpose", "key"),
    [("upload", "art_1"), ("download", "art_2"), ("downloadart_1", ""), ("", "downloadart_1")],
)
def test_a_token_does_nothing_but_its_purpose_on_its_key(tokens: Tokens, purpose: str, key: str) -> None:
    token = signed(tokens)
    assert tokens.verify(token, purpose="download", key="art_1", now=NOW)

    with pytest.raises(TokenError, match="not valid"):
        tokens.verify(token, purpose=purpose, key=key, now=NOW)


def test_a_token_ends_on_time(tokens: Tokens) -> None:
    token = signed(tokens)
    assert tokens.verify(token, purpose="download", key="art_1", now=NOW + 59)

    with pytest.raises(TokenError, match="expired"):
        tokens.verify(token, purpose="download", key="art_1", now=NOW + 60)


def test_a_token_whose_user_or_end_was_changed_is_refused(tokens: Tokens) -> None:
    _, mac = signed(tokens).split(".")
    for user in ("bob", "mallory"):
        claims, _ = signed(tokens, user=user).split(".")

        with pytest.raises(TokenError):
            tokens.verify(f"{claims}.{mac}", purpose="download", key="art_1", now=NOW)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_other_text_is_a_token(tokens: Tokens, text: str) -> None:
    with pytest.raises(TokenError):
        tokens.verify(text, purpose="download", key="art_1", now=NOW)


def test_a_token_of_another_runner_is_refused(tokens: Tokens, tmp_path: Path) -> None:
    foreign = signed(Tokens(tmp_path / "other.json"))

    with pytest.raises(TokenError):
        tokens.verify(foreign, purpose="download", key="art_1", now=NOW)


def test_after_one_rotation_old_tokens_hold_and_after_two_they_do_not(tokens: Tokens, tmp_path: Path) -> None:
    token = signed(tokens)

    tokens.rotate()
    assert Tokens(tmp_path / "tokens.json").verify(token, purpose="download", key="art_1", now=NOW)
    assert signed(tokens) != token
    tokens.rotate()

    with pytest.raises(TokenError):
        tokens.verify(token, purpose="download", key="art_1", now=NOW)


def test_rotation_before_first_use_makes_the_secrets(tokens: Tokens) -> None:
    tokens.rotate()

    assert tokens.verify(signed(tokens), purpose="download", key="art_1", now=NOW) == "alice"


def test_the_secrets_are_readable_by_their_owner_only_and_leave_nothing_beside_them(
    tokens: Tokens, tmp_path: Path
) -> None:
    signed(tokens)
    tokens.rotate()

    assert [path.name for path in tmp_path.iterdir()] == ["tokens.json"]
    assert stat.S_IMODE((tmp_path / "tokens.json").stat().st_mode) == 0o600


def test_secrets_that_others_may_read_are_not_used(tokens: Tokens, tmp_path: Path) -> None:
    signed(tokens)
    (tmp_path / "tokens.json").chmod(0o644)

    with pytest.raises(StartError, match="0600"):
        signed(tokens)


@pytest.mark.parametrize(
    "content", ["", "{}", '{"keys": [["a", "zz"]]}', '{"keys": [["a", ""]]}', '{"keys": []}']
)
def test_damaged_secrets_are_said_to_be_damaged(tokens: Tokens, tmp_path: Path, content: str) -> None:
    (tmp_path / "tokens.json").write_text(content)
    (tmp_path / "tokens.json").chmod(0o600)

    with pytest.raises(StartError, match="damaged"):
        signed(tokens)


def test_a_link_in_place_of_the_secrets_is_not_followed(tokens: Tokens, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(json.dumps({"keys": [["a", "00" * 32]]}))
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "tokens.json").symlink_to("elsewhere")

    with pytest.raises(StartError, match="link"):
        signed(tokens)


def _sign_in_another_process(path: Path, start: "multiprocessing.synchronize.Event", out: Path) -> None:
    start.wait(10)
    out.write_text(signed(Tokens(path)))


def test_processes_that_start_together_share_one_secret(tokens: Tokens, tmp_path: Path) -> None:
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
        child.join(20)

    users = {tokens.verify(out.read_text(), purpose="download", key="art_1", now=NOW) for out in outs}
    assert users == {"alice"}
