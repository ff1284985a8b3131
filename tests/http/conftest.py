"""Servers in processes of their own, whose users are those that tokens name."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from issuer import FILE, Issuer, client_secret, issuing
from support import environment_in, until


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as one:
        yield one


@pytest.fixture
def serve_to(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start `runner serve` over HTTP with settings from the environment; returns the URL of its endpoint.

    Its log is `log` in the same folder.
    """
    tmp_path.chmod(0o700)
    (tmp_path / "homes").mkdir()
    (tmp_path / "homes").chmod(0o711)
    file = tmp_path / "identities.py"
    file.write_text(FILE)
    environment = environment_in(tmp_path)
    command = [sys.executable, "-m", "runner.cli.app", "serve", str(file), "--transport", "http"]
    with contextlib.ExitStack() as stack:

        def start(*arguments: str, **more: str) -> str:
            if "RUNNER_AUTH__CLIENT_ID" in more:
                more = {"RUNNER_AUTH__CLIENT_SECRET_FILE": client_secret(tmp_path), **more}
            log = tmp_path / "log"
            offset = log.stat().st_size if log.exists() else 0
            with log.open("a") as log_file:
                process = subprocess.Popen(
                    [*command, *(() if "--port" in arguments else ("--port", "0")), *arguments],
                    env={**environment, **more},
                    cwd=tmp_path,
                    stderr=log_file,
                )
            stack.callback(ended, process)

            def address() -> re.Match[str] | None:
                assert process.poll() is None, log.read_text()
                return re.search(r"https?://\S+/mcp", log.read_text()[offset:])

            assert until(lambda: address() is not None)
            found = address()
            assert found is not None
            return found.group()

        start.stop = stack.close  # type: ignore[attr-defined]
        yield start


def ended(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(timeout=180)
    finally:
        process.kill()
