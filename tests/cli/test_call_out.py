"""`runner call --out`: what lies in the folder, and on standard output, after a failure of the store."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import TOOLS, environment_in

from runner.cli.app import app
from runner.errors import CallError, Code


@asynccontextmanager
async def half_read(*_: object) -> AsyncIterator[Any]:
    """Open a content whose second half cannot be read."""

    async def copy_to(fd: int) -> None:
        os.write(fd, b"half")
        raise CallError(Code.E_STORE, "the store does not answer")

    yield SimpleNamespace(copy_to=copy_to)


@pytest.mark.kernel
def test_failing_store_leaves_one_document_and_no_half_file(
    tmp_path: Path, user: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    for name, value in environment_in(tmp_path).items():
        monkeypatch.setenv(name, value)
    # It would change the log of later tests.
    monkeypatch.setattr("runner.cli.start.set_up", lambda *_: None)
    words = ["call", str(TOOLS / "files.py"), "make", "name=a.txt", "size=9", "--json", "--user", user]
    with pytest.raises(SystemExit) as ended:
        app([*words, "--out", str(tmp_path / "out")])
    assert (ended.value.code, (tmp_path / "out" / "a.txt").stat().st_size) == (0, 9)
    capsys.readouterr()
    monkeypatch.setattr("runner.files.my_files.MyFiles.open", half_read)

    with pytest.raises(SystemExit) as failed:
        app([*words, "--out", str(tmp_path / "again")])

    printed = capsys.readouterr()
    assert (failed.value.code, json.loads(printed.out)["results"]) == (2, {"written": 9})
    assert "the store does not answer" in printed.err
    assert os.listdir(tmp_path / "again") == []
