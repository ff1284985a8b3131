"""How commands talk to the supervisor: a line of JSON each way, on a socket in a folder that is ours alone.

Source: unix(7); the folder is named by a descriptor, since the name of a socket has 107 bytes at most.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.errors import RunnerError, StartError, UsageError
from runner.system.stop_signals import StopSignals
from runner.up.folders import Folders
from runner.up.supervisor import Supervisor

__all__ = ["NoSupervisor", "ask", "supervise"]

log = logging.getLogger(__name__)

_MOST_BYTES = 16 << 20
# A start takes a minute and a half at most, and the end before it as long as the file says.
_PATIENCE_S = 600.0

Asked = dict[str, Any]


class NoSupervisor(StartError):
    """No supervisor runs for this folder."""


def ask(folders: Folders, question: Asked) -> Asked:
    """Ask the supervisor something, and return its answer.

    Raises:
        NoSupervisor: None runs.
        UsageError: It says that what was asked cannot be.
        StartError: It does not answer, or cannot do it.
    """
    with _named(folders.supervisor) as address, socket.socket(socket.AF_UNIX) as line:
        line.settimeout(_PATIENCE_S)
        try:
            line.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NoSupervisor(f"no supervisor runs for {folders.top}") from error
        try:
            line.sendall(json.dumps(question).encode() + b"\n")
            with line.makefile("rb") as file:
                answer: Asked = json.loads(file.readline(_MOST_BYTES))
        except (OSError, ValueError) as error:
            raise StartError(
                f"the supervisor of {folders.top} does not answer ({error}). Its servers go on; if it hangs, "
                f"kill its process and call `runner up` again, which takes them over"
            ) from error
    if "wrong" in answer:
        raise UsageError(answer["wrong"])
    if "failed" in answer:
        raise StartError(answer["failed"])
    return answer


async def supervise(
    supervisor: Supervisor, folders: Folders, path: Path, told: Callable[[Asked], None]
) -> int:
    """Keep the servers of a file until a signal or `runner down` ends them; return the exit status.

    Args:
        supervisor: Keeps them.
        folders: Its folders.
        path: The file of users.
        told: Is told what the file came to.

    Raises:
        UsageError: The file is wrong.
    """
    signals = StopSignals.heard(signal.SIGHUP)
    supervisor.take_over()
    with _named(folders.supervisor) as address:
        before = os.umask(0o177)
        try:
            server = await asyncio.start_unix_server(
                _answering(supervisor, signals.stopped), address, limit=_MOST_BYTES
            )
        finally:
            os.umask(before)
        async with server:
            applying = asyncio.create_task(supervisor.up(path))
            waiting = asyncio.create_task(signals.stopped.wait())
            await asyncio.wait({applying, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if applying.done():
                told(applying.result())
                await waiting
            else:
                applying.cancel()
            await supervisor.down(())
            (folders.supervisor / "socket").unlink(missing_ok=True)
    return signals.exit_status


@contextmanager
def _named(folder: Path) -> Iterator[str]:
    """Yield the socket's address, which is short however long the folder's name is.

    Raises:
        NoSupervisor: There is no such folder.
    """
    try:
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NoSupervisor(f"`runner up` has never run with the folder {folder.parent}") from error
    except OSError as error:
        raise StartError(f"the folder {folder} cannot be used: {error.strerror}") from error
    try:
        yield f"/proc/self/fd/{fd}/socket"
    finally:
        os.close(fd)


def _answering(
    supervisor: Supervisor, over: asyncio.Event
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError):
            question = json.loads(await reader.readline())
            said = await _said(supervisor, question)
            writer.write(json.dumps({"supervisor": os.getpid(), **said}).encode() + b"\n")
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            if question["do"] == "down" and not question["names"]:
                over.set()

    return answer


async def _said(supervisor: Supervisor, question: Asked) -> Asked:
    try:
        match question["do"]:
            case "up":
                return await supervisor.up(Path(question["users"]))
            case "down":
                return await supervisor.down(question["names"])
            case _:
                return {"servers": await supervisor.shown()}
    except UsageError as error:
        return {"wrong": str(error)}
    except (RunnerError, OSError) as error:
        return {"failed": str(error)}
    except Exception as error:
        # Of whatever is wrong with one question, the servers of all users know nothing.
        log.exception("a question could not be answered")
        return {"failed": f"a fault of the runner itself: {type(error).__name__}: {error}"}
