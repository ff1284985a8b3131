"""Files of a home are opened, and nothing else, whatever a tool left there."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_fakes import FakeHome

from runner.artifacts.named_file import collect, relative_to_home
from runner.errors import CallError, Code

MAX = 1000
ALICE = Path("/tmp/alice")


def content(path: object, home: FakeHome) -> bytes:
    with collect(path, home, max_bytes=MAX) as found:
        return os.read(found.fd, found.size + 1)


def refusal(path: object, home: FakeHome) -> CallError:
    with pytest.raises(CallError) as caught, collect(path, home, max_bytes=MAX):
        pass
    return caught.value


@pytest.mark.parametrize(
    "shape", ["{home}/a/b.txt", "{home}/a/../a//b.txt", "/{home}/a/b.txt", "a/b.txt", "./a/b.txt"]
)
def test_a_plain_file_of_the_home_is_opened(shape: str, home: FakeHome) -> None:
    """Source: S1-61 and S1-68."""
    (home.path / "a").mkdir()
    (home.path / "a/b.txt").write_bytes(b"hi")

    assert content(shape.format(home=home.path), home) == b"hi"


def test_the_descriptor_is_closed_afterwards(home: FakeHome) -> None:
    (home.path / "b.txt").write_bytes(b"hi")
    before = os.listdir("/proc/self/fd")

    content("b.txt", home)
    refusal("gone.txt", home)

    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "{home}",
        "{home}/",
        "{home}/.",
        "{home}2/x.txt",
        "{home}/../x.txt",
        "../x.txt",
        "{home}/a/../../x.txt",
        "/",
        "",
        "a\0b",
        "x" * 5000,
        "\ud800",
        "//etc/passwd",
    ],
    ids=repr,
)
def test_a_path_that_does_not_lie_below_the_home_is_refused_unread(path: str, home: FakeHome) -> None:
    home.path.with_name("x.txt").write_text("of somebody else")

    error = refusal(path.format(home=home.path), home)

    assert error.code is Code.E_INVALID_PATH
    assert error.details["allowed_prefix"] == f"{home.path}/"


@pytest.mark.parametrize("path", [None, 5, ["a"], {"a": 1}], ids=repr)
def test_a_path_that_is_no_text_is_refused(path: Any, home: FakeHome) -> None:
    error = refusal(path, home)

    assert (error.code, error.details["attempted_path"]) == (Code.E_INVALID_PATH, repr(path))


def _link_to_file(home: Path) -> None:
    home.with_name("secret.txt").write_text("secret")
    (home / "x").symlink_to("../secret.txt")


def _hard_link(home: Path) -> None:
    home.with_name("secret.txt").write_text("secret")
    (home / "x").hardlink_to(home.with_name("secret.txt"))


def _socket(home: Path) -> None:
    folder = os.open(home, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{folder}/x")
    os.close(folder)


@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (_link_to_file, "link"),
        (_hard_link, "2 names"),
        (lambda home: (home / "x").mkdir(), "folder"),
        (lambda home: os.mkfifo(home / "x"), "FIFO"),
        (_socket, "socket"),
        (lambda home: (home / "x").symlink_to("/proc/self/fd/0"), "link"),
        (lambda home: (home / "x").symlink_to("x"), "link"),
    ],
    ids=["link out", "hard link", "folder", "fifo", "socket", "magic link", "loop"],
)
def test_what_is_no_plain_file_is_refused_without_waiting(
    leave: Callable[[Path], Any], says: str, home: FakeHome
) -> None:
    (home.path / "plain").write_bytes(b"hi")
    assert content("plain", home) == b"hi"
    leave(home.path)

    error = refusal(f"{home.path}/x", home)

    assert error.code is Code.E_INVALID_PATH
    assert says in error.details["problem"]
    # What lies inside is not told as lying outside.
    assert ("outside" in error.message) == (says == "link")
    assert says in error.message or says == "link"


def test_a_folder_on_the_way_that_is_a_link_is_refused(home: FakeHome) -> None:
    home.path.with_name("bob").mkdir()
    home.path.with_name("bob").joinpath("x.txt").write_text("bob's")
    (home.path / "sub").symlink_to("../bob")

    assert refusal(f"{home.path}/sub/x.txt", home).code is Code.E_INVALID_PATH


def test_a_home_that_was_swapped_does_not_matter(home: FakeHome) -> None:
    (home.path / "x.txt").write_text("mine")
    home.path.rename(home.path.with_name("moved"))
    home.path.mkdir()
    (home.path / "x.txt").write_text("planted")

    assert content(f"{home.path}/x.txt", home) == b"mine"


@pytest.mark.parametrize("path", ["gone.txt", "plain/gone.txt"])
def test_a_file_that_is_not_there_is_said_to_be_missing(path: str, home: FakeHome) -> None:
    (home.path / "plain").write_bytes(b"")

    error = refusal(path, home)

    assert (error.code, error.details["attempted_path"]) == (Code.E_INVALID_RESULT, path)


def _sparse(path: Path, size: int) -> None:
    path.touch()
    os.truncate(path, size)


def test_the_hard_cap_itself_is_allowed_and_one_byte_more_is_not(home: FakeHome) -> None:
    _sparse(home.path / "at", MAX)
    _sparse(home.path / "above", 100 * 1024**3)

    error = refusal("above", home)

    assert len(content("at", home)) == MAX
    assert (error.code, error.details["file_size_bytes"]) == (Code.E_FILE_TOO_LARGE, 100 * 1024**3)


@given(st.text(alphabet=st.sampled_from("./ab\\\0 \ud800é"), max_size=20))
def test_no_text_leads_out_of_the_home(path: str) -> None:
    relative = relative_to_home(path, ALICE)

    if relative is not None:
        assert not relative.startswith("/")
        assert ".." not in relative.split("/")
        assert relative not in ("", ".")
