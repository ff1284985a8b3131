"""One user's server that is kept: what happens when its end is wanted while it is being started."""

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from support import becomes, settings_in

from runner.up.folders import Folders
from runner.up.plan import Server, ServerLimits
from runner.up.supervisor import Supervisor

pytestmark = pytest.mark.anyio

STOP_S = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def sleeping(port: int) -> Server:
    return Server(
        name="ann",
        segment="ann",
        port=port,
        host="127.0.0.1",
        uid=None,
        command=(sys.executable, "-c", "import time; time.sleep(600)"),
        environment={"PATH": os.environ["PATH"]},
        reads=(),
        bounds=ServerLimits(memory_mb=None, processes=None, cpus=None),
        stop_s=STOP_S,
    )


@pytest.mark.parametrize("is_starting", [False, True], ids=["runs", "starts"])
async def test_a_server_ends_at_once_and_nobody_waits_at_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_starting: bool
) -> None:
    begun, goes_on = threading.Event(), threading.Event()
    make = Folders.make_user

    def slowly(self: Folders, *arguments: Any) -> Any:
        begun.set()
        assert goes_on.wait(30)
        return make(self, *arguments)

    monkeypatch.setattr(Folders, "make_user", slowly)
    folders = Folders(tmp_path / "up")
    folders.make()
    supervisor, port = Supervisor(folders, settings_in(tmp_path)), free_port()
    supervisor._begin(sleeping(port))
    kept = supervisor._kept["ann"]
    assert await becomes(begun.is_set)
    if not is_starting:
        goes_on.set()
        assert await becomes(lambda: kept._life is not None)

    ending = asyncio.create_task(supervisor.down(["ann"]))
    assert await becomes(lambda: kept._ending)
    goes_on.set()
    # Far less than what a server has that does not listen: it was asked to end.
    await asyncio.wait_for(ending, STOP_S / 2)

    assert kept.entry.pid is None
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 5):
        pass
