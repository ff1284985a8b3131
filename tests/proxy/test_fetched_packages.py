"""Commands that fetch packages and run them: when they may, and from which folder."""

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from proxying import proxied, result
from support import settings_in

from runner.errors import UsageError
from runner.proxy.confined_command import check_command, fetches, package_folder, package_variables
from runner.proxy.targets import Target
from runner.proxy.upstreams import ways_to
from sandbox.errors import IsolationUnavailable

FETCHERS = [
    ("npx", "server"),
    ("/usr/bin/npx", "-y", "server"),
    ("npm", "--silent", "exec", "server"),
    ("uvx", "server"),
    ("uv", "--directory", "/opt/project", "run", "server.py"),
    ("uv", "tool", "run", "server"),
    ("pipx", "run", "server"),
    ("pnpm", "dlx", "server"),
]
# A server of an npm package, which returns its folder and how often it was called there.
SERVER = Path(__file__).parent / "fetched_server.js"


@pytest.mark.parametrize("command", FETCHERS, ids=" ".join)
def test_fetcher_without_network_is_refused_with_the_option(command: tuple[str, ...], folder: Path) -> None:
    with pytest.raises(UsageError, match=r"Start with --allow-fetch.*install the server before"):
        check_command(Target(name="fetched", command=command), settings_in(folder))


@pytest.mark.parametrize("command", FETCHERS, ids=" ".join)
def test_fetcher_may_fetch_with_either_option(command: tuple[str, ...], folder: Path) -> None:
    target = Target(name="fetched", command=command)

    assert fetches(target, settings_in(folder, allow_fetch=True))
    assert fetches(target, settings_in(folder, allow_net=("*",)))


@pytest.mark.parametrize(
    "command", [("npm", "run", "x"), ("uv", "pip", "x"), ("python", "npx")], ids=" ".join
)
def test_other_command_fetches_with_its_option_alone(command: tuple[str, ...], folder: Path) -> None:
    target = Target(name="other", command=command)

    assert not fetches(target, settings_in(folder, allow_net=("*",)))
    assert fetches(target, settings_in(folder, allow_fetch=True))


def test_named_programs_and_fetching_are_refused_together(folder: Path) -> None:
    settings = settings_in(folder, allow_fetch=True, allow_run=("npx",))

    with pytest.raises(UsageError, match="allow_run names the only programs"):
        check_command(Target(name="fetched", command=("npx", "x")), settings)


def test_fetching_in_a_weaker_tier_is_refused(folder: Path) -> None:
    program = folder / "server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    target = Target(name="x", command=("./server",), folder=folder)

    assert ways_to(settings_in(folder, isolation="process"), [target])
    with pytest.raises(IsolationUnavailable, match="--allow-fetch cannot be given in tier process"):
        ways_to(settings_in(folder, isolation="process", allow_fetch=True), [target])


def test_package_folder_is_separate_per_server_and_user(folder: Path) -> None:
    settings = settings_in(folder, allow_fetch=True)
    target = Target(name="memory", command=("npx", "memory"), source=folder / "mcp.json")
    others = [
        Target(name="memory", command=("npx", "evil"), source=folder / "mcp.json"),
        Target(name="memory", command=("npx", "memory"), source=folder / "other.json"),
        Target(name="notes", command=("npx", "memory"), source=folder / "mcp.json"),
    ]

    folders = {package_folder(each, settings, "ann", None) for each in (target, *others)}
    own = package_folder(target, settings, "ann", None)

    assert own in folders
    assert len({*folders, package_folder(target, settings, "bob", None)}) == 5
    assert own.stat().st_mode & 0o777 == 0o700
    assert any(own.is_relative_to(path) for path in settings.private_paths)


def test_package_variables_name_the_folder_alone(folder: Path) -> None:
    outer = {"SSL_CERT_FILE": "/etc/ssl/ca.crt", "NODE_EXTRA_CA_CERTS": "/home/ann/ca.pem", "KEY": "/etc/x"}

    values = package_variables(folder, outer)

    assert {name: value for name, value in values.items() if not value.startswith(f"{folder}/")} == {
        "SSL_CERT_FILE": "/etc/ssl/ca.crt",
        "UV_COMPILE_BYTECODE": "1",
        "npm_config_update_notifier": "false",
    }


@pytest.mark.anyio
@pytest.mark.kernel
@pytest.mark.release
@pytest.mark.needs_npm
async def test_npx_runs_fetched_package_and_keeps_it(folder: Path, user: str) -> None:
    package = folder / "package"
    package.mkdir()
    about = {"name": "tiny-server", "version": "1.0.0", "bin": {"tiny-server": "server.js"}}
    (package / "package.json").write_text(json.dumps(about))
    # Not executable: npm makes it so.
    (package / "server.js").write_bytes(SERVER.read_bytes())
    await anyio.run_process(["npm", "pack", "--silent", "./package"], cwd=folder)
    archive = folder / "tiny-server-1.0.0.tgz"
    for readable in (archive, folder):
        os.chmod(readable, 0o755)
    target = Target(name="tiny", command=("npx", "-y", f"--package={archive}", "tiny-server"), folder=folder)
    settings: dict[str, Any] = {
        "allow_fetch": True,
        "allow_read": (folder / "tiny-server-1.0.0.tgz",),
        "isolation": "namespace",
    }

    answers = []
    for _start in range(2):
        async with proxied(folder, user, target, **settings) as client:
            answers.append(await result(client, "count"))

    assert answers[0][0] == answers[1][0]
    assert "state-packages/" in answers[0][0]
    assert [starts for _folder, starts in answers] == [1, 2]
