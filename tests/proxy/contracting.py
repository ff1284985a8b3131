"""Shared by tests of the contract behind the proxy: `runner proxy` as a process, and real clients of it."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from eras import NEWEST, SESSION, proposed
from fastmcp import Client
from support import ROOT, outer_environment, put_file, settings_in, stop, until

from runner.files.my_files import open_library

UPSTREAM = Path(__file__).parent / "upstream.py"
VERSIONS = pytest.mark.parametrize("version", [SESSION, NEWEST])
MARKS = [
    pytest.mark.anyio,
    pytest.mark.kernel,
    # Each front is a process with a server of its own, and a busy machine takes minutes to start one.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]


@dataclass(frozen=True)
class Front:
    """A running `runner proxy` over HTTP.

    Attributes:
        url: Its address.
        user: Whom it serves.
        folder: Where its state and its store are.
    """

    url: str
    user: str
    folder: Path

    async def put(self, name: str, content: bytes, *, user: str | None = None) -> str:
        """Put a file into somebody's My Files; return its id."""
        return await put_file(self.folder, user or self.user, name, content)

    async def files(self) -> set[str]:
        """Return the names of the user's My Files."""
        records = await open_library(settings_in(self.folder)).of(self.user).all()
        return {record.shown for record in records}

    def log(self) -> str:
        """Return what it has said on standard error."""
        return (self.folder / "log").read_text()


@contextmanager
def front_of(
    *words: str, settings: str = "", user: str | None = None, tokens: Mapping[str, str] | None = None
) -> Iterator[Front]:
    """Run `runner proxy WORD...` over HTTP, for one user, or for those who have tokens."""
    name = user or f"t-{uuid.uuid4().hex[:12]}"
    with tempfile.TemporaryDirectory(prefix="toolcell-front-", dir="/var/tmp") as made:
        folder = Path(made)
        if tokens is not None:
            users = folder / "users.json"
            users.touch(0o600)
            users.write_text(json.dumps(tokens))
            settings += f'[auth]\nkind = "static"\ntokens_file = "{users}"\n'
        (folder / "runner.toml").write_text(settings)
        log = folder / "log"
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "RUNNER_CONFIG": str(folder / "runner.toml"),
            "RUNNER_STATE_DIR": str(folder / "state"),
            "RUNNER_STORE": (folder / "store").as_uri(),
        }
        options = ["--transport", "http", "--port", "0"]
        options += ["--user", name] if tokens is None else []
        with log.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "runner", "proxy", *options, *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
            )
        try:
            yield Front(url=_address(process, log, r"http://\S+/mcp"), user=name, folder=folder)
        finally:
            stop(process)
            shutil.rmtree(f"/tmp/{name}", ignore_errors=True)


@contextmanager
def upstream_over_http(folder: Path) -> Iterator[str]:
    """Serve the upstream over HTTP, as its author would; yield the address of its endpoint."""
    log = folder / "upstream.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(UPSTREAM), "0"],
            env=outer_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )
    try:
        yield _address(process, log, r"(?<=running on )http://\S+") + "/mcp"
    finally:
        stop(process)


def _address(process: "subprocess.Popen[str]", log: Path, pattern: str) -> str:
    def match() -> "re.Match[str] | None":
        return re.search(pattern, log.read_text())

    def is_up_or_gone() -> bool:
        return match() is not None or process.poll() is not None

    # A server may take minutes to start on a machine that is busy with many others.
    assert any(until(is_up_or_gone) for _minute in range(5)), f"it does not start:\n{log.read_text()}"
    found = match()
    assert found is not None, f"it ended with {process.poll()} before it served:\n{log.read_text()}"
    return found.group()


def command(*, isolation: str | None = None) -> list[str]:
    """The words that put `runner proxy` in front of the upstream as a command."""
    options = [] if isolation is None else ["--isolation", isolation]
    return [*options, "--", sys.executable, str(UPSTREAM)]


@asynccontextmanager
async def client_of(front: Front, version: str, **options: Any) -> AsyncIterator[Any]:
    """A client of the SDK that speaks one version of the protocol."""
    mode = "legacy" if version < "2026" else version
    with proposed(version):
        async with Client(front.url, mode=mode, **options) as client:
            assert client.session.protocol_version == version
            yield client


async def value_of(client: Any, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return the contract value that its client gets."""
    called = await client.call_tool_mcp(tool, arguments)
    value: dict[str, Any] | None = called.structured_content or (called.meta or {}).get("toolcell/result")
    assert value is not None, called
    return value


def read_by_model(called: Any) -> str:
    """Return all that a model reads of a result: its texts, and its structured content."""
    texts = [block.text for block in called.content if block.type == "text"]
    return "\n".join([*texts, json.dumps(called.structured_content)])
