"""Accepted Redis addresses and sealed fleet messages."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from runner.errors import UsageError
from runner.fleet.connection import checked_address
from runner.fleet.messages import NodeMessage
from runner.fleet.seal import FleetKey, Forged

SECRET = "x" * 40


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:6379/0", "redis://localhost", "redis://[::1]:6379/0", "unix:///run/redis.sock",
     "rediss://:secret@redis.example.com:6379/0",
     "rediss://:secret@redis.example.com?ssl_cert_reqs=required&ssl_check_hostname=True&ssl_ca_certs=ca.pem"],
)  # fmt: skip
def test_local_or_protected_redis_is_accepted(url: str) -> None:
    assert checked_address(url, insecure=False) == url


@pytest.mark.parametrize(
    ("url", "lacking"),
    [
        ("redis://redis.example.com:6379/0", "TLS and a password"),
        ("redis://:secret@10.0.0.5:6379/0", "TLS"),
        ("rediss://redis.example.com", "a password"),
        ("rediss://:secret@redis.example.com?ssl_cert_reqs=none", "a check of its certificate"),
        ("redis:///0?host=redis.example.com&password=secret", "TLS"),
        ("rediss://:secret@redis.example.com?ssl_cert_reqs=optional", "a check of its certificate"),
        ("rediss://:secret@redis.example.com?ssl_check_hostname=false", "a check of its certificate"),
        ("rediss://redis.example.com?ssl_cert_reqs=none", "a check of its certificate .* and a password"),
        ("redis://127.0.0.1.example.com", "TLS and a password"),
    ],
)
def test_remote_redis_without_tls_or_password_needs_flag(url: str, lacking: str) -> None:
    with pytest.raises(UsageError, match=f"without {lacking}.*--redis-insecure") as refused:
        checked_address(url, insecure=False)

    assert "secret" not in str(refused.value)
    assert checked_address(url, insecure=True) == url


@pytest.mark.parametrize("url", ["http://127.0.0.1", "redis://", "redis://127.0.0.1:99999", "nonsense"])
def test_invalid_redis_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="redis_url"):
        checked_address(url, insecure=True)


def _key(path: Path, text: str = SECRET, mode: int = 0o600) -> FleetKey:
    path.write_text(text)
    path.chmod(mode)
    return FleetKey.read(path, record_max_bytes=100_000)


def test_a_sealed_message_is_read_by_its_receiver_only(tmp_path: Path) -> None:
    key, another = _key(tmp_path / "one"), _key(tmp_path / "two", "y" * 40)
    record = {"call": "c", "kind": "note", "body": {"text": "grüß \ud83d gott"}}
    sealed = key.seal(record, to="host")

    assert key.opened(sealed, to="host") == record
    for text, reader, receiver in (
        (sealed, another, "host"),
        (sealed, key, "another host"),
        (sealed.replace(b'"note"', b'"end"'), key, "host"),
        (sealed[64:], key, "host"),
        (b"", key, "host"),
    ):
        with pytest.raises(Forged):
            reader.opened(text, to=receiver)


@pytest.mark.parametrize(
    "record",
    [
        {"call": "../c", "kind": "note"},
        {"call": "c", "kind": "obey"},
        {"call": "c", "kind": "note", "more": 1},
        {"call": 1, "kind": "note"},
        {"call": "c", "kind": "end", "body": []},
    ],
)
def test_malformed_message_is_refused_without_its_content(record: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refused:
        NodeMessage.model_validate(record)

    assert "input_value" not in str(refused.value)


@pytest.mark.parametrize("longest", [99_000, 101_000])
def test_long_record_is_compressed_and_bounded(tmp_path: Path, longest: int) -> None:
    key = _key(tmp_path / "key")
    record = {"text": "a word " * (longest // 7)}

    sealed = key.seal(record, to="host")

    assert len(sealed) < 10_000
    if longest < key.record_max_bytes:
        assert key.opened(sealed, to="host") == record
    else:
        with pytest.raises(Forged, match="not JSON"):
            key.opened(sealed, to="host")


def test_a_key_that_others_may_read_or_guess_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="chmod 600"):
        _key(tmp_path / "open", mode=0o644)
    with pytest.raises(UsageError, match="openssl rand"):
        _key(tmp_path / "short", "short")
    with pytest.raises(UsageError, match="does not exist"):
        FleetKey.read(tmp_path / "none", record_max_bytes=1)
