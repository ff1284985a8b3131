from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.users.capability_tokens import USES_PER_USER, TokenError, Tokens

NOW = 1_800_000_000.0


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.json")


def signed(tokens: Tokens, *, now: float = NOW, once: bool = True) -> str:
    return tokens.sign(user="ann", key="art_1", purpose="download", now=now, ttl_s=60, once=once)


def verified(tokens: Tokens, token: str, *, key: str = "art_1", now: float = NOW) -> str | None:
    try:
        return tokens.verify(token, purpose="download", key=key, now=now)
    except TokenError:
        return None


def test_single_use_token_valid_once_others_until_expiry(tokens: Tokens) -> None:
    single, plain = signed(tokens), signed(tokens, once=False)

    assert [verified(tokens, plain) for _ in range(3)] == ["ann"] * 3
    assert [verified(tokens, single) for _ in range(3)] == ["ann", None, None]


def test_token_use_known_to_all_processes_with_same_keys(tokens: Tokens, tmp_path: Path) -> None:
    token = signed(tokens)

    first = verified(Tokens(tmp_path / "tokens.json"), token)

    assert (first, verified(Tokens(tmp_path / "tokens.json"), token)) == ("ann", None)


def test_concurrent_single_uses_accept_one(tokens: Tokens) -> None:
    token = signed(tokens)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: verified(tokens, token), range(40)))

    assert sorted(map(str, answers)) == ["None"] * 39 + ["ann"]


def test_unverified_token_uses_nothing(tokens: Tokens) -> None:
    token = signed(tokens)

    refused = [verified(tokens, token, key="art_2"), verified(tokens, token[:-8] + "A" * 8)]

    assert refused == [None, None]
    assert verified(tokens, token) == "ann"


def test_use_record_removed_when_token_expires(tokens: Tokens, tmp_path: Path) -> None:
    verified(tokens, signed(tokens))
    during = records(tmp_path)

    verified(tokens, signed(tokens, now=NOW + 61), now=NOW + 61)
    after = records(tmp_path)
    tokens.rotate_after(1e9, now=NOW + 122)

    assert (len(during), len(after), records(tmp_path)) == (1, 1, [])
    assert during != after


def test_single_uses_of_user_bounded_by_expiry(tokens: Tokens, tmp_path: Path) -> None:
    assert verified(tokens, signed(tokens)) == "ann"
    (folder,) = (tmp_path / "used-tokens").iterdir()
    for number in range(1, USES_PER_USER):
        (folder / f"{NOW + 60:.0f}-{number}").touch()

    at_limit = verified(tokens, signed(tokens))
    other = tokens.sign(user="bob", key="art_1", purpose="download", now=NOW, ttl_s=60, once=True)

    assert (at_limit, verified(tokens, signed(tokens, once=False))) == (None, "ann")
    assert verified(tokens, other) == "bob"
    assert verified(tokens, signed(tokens, now=NOW + 61), now=NOW + 61) == "ann"
    assert len(records(tmp_path)) == 2


def test_use_recorded_by_earlier_version_counts(tokens: Tokens, tmp_path: Path) -> None:
    token = signed(tokens)
    assert verified(tokens, token) == "ann"

    (record,) = records(tmp_path)
    record.rename(tmp_path / "used-tokens" / record.name)

    assert verified(tokens, token) is None


def records(folder: Path) -> list[Path]:
    return [path for path in (folder / "used-tokens").rglob("*-*") if path.is_file()]


def test_single_use_cannot_be_removed_from_token(tokens: Tokens) -> None:
    import base64
    import json

    token = signed(tokens)
    claims, _, mac = token.partition(".")
    fields = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    plain = base64.urlsafe_b64encode(json.dumps(fields[:3]).encode()).rstrip(b"=").decode()

    assert verified(tokens, f"{plain}.{mac}") is None
    assert verified(tokens, token) == "ann"


def test_rotated_key_keeps_links_of_previous_key_valid(tokens: Tokens, tmp_path: Path) -> None:
    old = signed(tokens, once=False)
    made = (tmp_path / "tokens.json").stat().st_mtime
    before = (tmp_path / "tokens.json").read_bytes()

    tokens.rotate_after(100, now=made + 100)
    young = (tmp_path / "tokens.json").read_bytes()
    tokens.rotate_after(100, now=made + 101)
    replaced = (tmp_path / "tokens.json").read_bytes()

    assert before == young != replaced
    assert verified(tokens, old) == "ann"
    tokens.rotate()
    assert verified(tokens, old) is None
