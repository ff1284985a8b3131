from pathlib import Path

import pytest

from runner.files.download_links import DownloadLinks, without_tokens
from runner.users.capability_tokens import Tokens


def links(folder: Path, base: str = "", now: float = 1000.0) -> DownloadLinks:
    return DownloadLinks(tokens=Tokens(folder / "tokens.json"), base=base, ttl_s=60, clock=lambda: now)


@pytest.mark.parametrize(
    ("base", "begins"),
    [
        ("", "/api/files/download/art_1?token="),
        ("https://x.example", "https://x.example/api/files/download/art_1?token="),
        ("https://x.example/tools/", "https://x.example/tools/api/files/download/art_1?token="),
    ],
)
def test_a_link_is_below_the_servers_address(tmp_path: Path, base: str, begins: str) -> None:
    assert links(tmp_path, base).to("ann", "art_1").startswith(begins)


def test_a_key_cannot_leave_its_place_in_the_address(tmp_path: Path) -> None:
    link = links(tmp_path).to("ann", "../a b?c#d/é")

    assert link.startswith("/api/files/download/..%2Fa%20b%3Fc%23d%2F%C3%A9?token=")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("/a?token=x.y-z", "/a"),
        ("/a?token=x&b=1", "/a?b=1"),
        ("/a?b=1&token=x#part", "/a?b=1#part"),
        ("/a?token=x&token=y", "/a"),
        ("see /a?token=x.y here, or /b?token=z", "see /a here, or /b"),
        ("the token=5 of a game", "the token=5 of a game"),
        (["/a?token=x", {"k": "/b?token=y"}, 5, None], ["/a", {"k": "/b"}, 5, None]),
    ],
)
def test_what_people_see_holds_no_token(value: object, shown: object) -> None:
    assert without_tokens(value) == shown


def test_what_nests_too_deep_to_be_read_is_left_out() -> None:
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]

    assert "…" in str(without_tokens(deep))
