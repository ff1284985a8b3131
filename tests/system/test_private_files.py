"""Files that settings name are read, or refused in words that say which, why and what to do."""

import os
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from unprivileged import run_here

from runner.errors import UsageError
from runner.fleet.seal import FleetKey
from runner.proxy.targets import read_targets
from runner.settings.auth import Auth
from runner.settings.secrets import SecretSettings
from runner.settings.settings import Settings
from runner.settings.sources import load
from runner.system.private_files import read_private, read_public
from runner.up.users_file import planned
from runner.users.gateway_tls import GatewayTls
from runner.users.tokens_file import users_by_token
from runner.users.tool_secrets import read_secret

pytestmark = pytest.mark.needs_root


def _file(folder: Path, mode: int) -> Path:
    path = folder / "key"
    path.write_bytes(b"12345678")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o640])
def test_private_file_is_read_if_owner_or_group_may_read_it(tmp_path: Path, mode: int) -> None:
    assert read_private("a.key", _file(tmp_path, mode), most_bytes=8) == b"12345678"


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o602])
def test_private_file_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = _file(tmp_path, mode)
    assert read_public("a.key", path, most_bytes=8) == b"12345678"

    with pytest.raises(UsageError) as refused:
        read_private("a.key", path, most_bytes=8)

    assert str(refused.value) == f"a.key {path} is open to other users; chmod 600 {path}"


def test_missing_or_long_file_or_folder_error_names_its_setting(tmp_path: Path) -> None:
    path = _file(tmp_path, 0o600)

    with pytest.raises(UsageError, match=r"^a\.key .*/none does not exist; write it there, with mode 0600$"):
        read_private("a.key", tmp_path / "none", most_bytes=8)
    with pytest.raises(UsageError, match=r"^a\.key .*/key has more than 7 bytes"):
        read_private("a.key", path, most_bytes=7)
    with pytest.raises(
        UsageError, match=r"^a\.key .* cannot be read: it is a folder, and has to be a regular file$"
    ):
        read_private("a.key", tmp_path, most_bytes=8)


@pytest.fixture
def odd(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Names of irregular files, by file type."""
    pipe, unheard, linked = tmp_path / "pipe.json", tmp_path / "socket", tmp_path / "link"
    os.mkfifo(pipe, 0o600)
    linked.symlink_to(pipe)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(unheard))
        unheard.chmod(0o600)
        yield {"a pipe": pipe, "a socket": unheard, "a device": Path("/dev/zero"), "a pipe by a link": linked}


@pytest.mark.parametrize("kind", ["a pipe", "a socket", "a device", "a pipe by a link"])
def test_irregular_file_is_refused_at_once_and_named(odd: dict[str, Path], kind: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_private("a.key", odd[kind], most_bytes=8)

    name = kind.removesuffix(" by a link")
    assert str(refused.value).endswith(f"cannot be read: it is {name}, and has to be a regular file")


def test_kubernetes_secret_link_chain_is_read(tmp_path: Path) -> None:
    (tmp_path / "..2026_11_26").mkdir()
    _file(tmp_path / "..2026_11_26", 0o440)
    (tmp_path / "..data").symlink_to("..2026_11_26")
    (tmp_path / "key").symlink_to("..data/key")

    assert read_private("a.key", tmp_path / "key", most_bytes=8) == b"12345678"


def _gateway(path: Path) -> object:
    folder = path.with_suffix(".tls")
    folder.mkdir()
    (folder / "tls.crt").symlink_to(path)
    return GatewayTls.of(Settings(auth=Auth(kind="gateway", gateway_names=("a",), gateway_tls=folder)))


EVERY_FILE: dict[str, Callable[[Path], object]] = {
    "config": lambda path: load({}, config=path),
    "tokens": users_by_token,
    "secret": lambda path: read_secret("A", SecretSettings(file=path, tools=("t",))),
    "key of the fleet": partial(FleetKey.read, record_max_bytes=1000),
    "certificates": _gateway,
    "users": lambda path: planned(path, {}),
    "servers": lambda path: read_targets([str(path)]),
}


@pytest.mark.parametrize("what", EVERY_FILE)
def test_no_file_of_a_setting_is_waited_for(odd: dict[str, Path], what: str) -> None:
    with pytest.raises(UsageError, match="it is a pipe, and has to be a regular file"):
        EVERY_FILE[what](odd["a pipe"])


def test_command_given_a_pipe_reports_it_and_exits(odd: dict[str, Path]) -> None:
    pipe = odd["a pipe"]

    ended = run_here(["up", "--users", str(pipe)])

    assert ended.returncode == 2
    assert f"the users file {pipe} cannot be read: it is a pipe" in ended.stderr
