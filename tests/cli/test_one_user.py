"""Defaults of a server that is bound to one user."""

from typing import Literal

import pytest

from runner.cli.start import for_one_user
from runner.settings.settings import Settings
from runner.settings.sources import load

SHARED = ("shared", 16)
SEVERAL = ("user", 4)


def of(settings: Settings) -> tuple[str, int]:
    return settings.worker_reuse, settings.max_calls_per_user


@pytest.mark.parametrize(
    ("transport", "flags", "expected"),
    [
        ("stdio", {}, SHARED),
        ("http", {}, SHARED),
        ("http", {"user": "alice"}, SHARED),
        ("stdio", {"worker_reuse": "user"}, ("user", 4)),
        ("stdio", {"worker_reuse": "call"}, ("call", 4)),
        ("stdio", {"max_calls_per_user": 2}, ("shared", 2)),
        ("stdio", {"redis_url": "redis://127.0.0.1/0"}, SEVERAL),
    ],
)
def test_a_server_of_one_user_shares_its_worker(
    transport: Literal["stdio", "http"], flags: dict[str, object], expected: tuple[str, int]
) -> None:
    assert of(for_one_user(load(flags), transport)) == expected


def test_a_server_with_logins_has_a_worker_for_each_call() -> None:
    several = load({}).model_copy(update={"auth": load({}).auth.model_copy(update={"kind": "tokens"})})

    assert of(for_one_user(several, "http")) == SEVERAL
    assert of(for_one_user(several, "stdio")) == SHARED
