"""A stdio server without any library, of the handshake era, that starts at once and hears no cancellation."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

MEMORY: list[int] = []
KEPT: list[shared_memory.SharedMemory] = []


def attempt(act: Callable[[], Any]) -> str:
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "done"


def remember(value: int) -> list[int]:
    MEMORY.append(value)
    return MEMORY


def refuse(words: str) -> None:
    """Answer the call with a JSON-RPC error."""
    raise LookupError(words)


def connect(host: str, port: int) -> None:
    socket.create_connection((host, port), 2).close()


def lock_among_processes() -> list[str]:
    """Return whether another process gets a lock, a POSIX semaphore, while it is held here and after."""
    lock = multiprocessing.get_context("spawn").Lock()

    def taken() -> str:
        child = os.fork()
        if child == 0:
            os._exit(0 if lock.acquire(block=False) else 1)
        return str(os.waitpid(child, 0)[1] == 0)

    with lock:
        held = taken()
    return [held, taken()]


def locked() -> list[str] | str:
    try:
        return lock_among_processes()
    except OSError as error:
        return f"SemLock: {error}"


def share(name: str, words: str) -> None:
    KEPT.append(shared_memory.SharedMemory(name, create=True, size=len(words)))
    memory = KEPT[-1].buf
    assert memory is not None
    memory[: len(words)] = words.encode()


def run(path: str) -> None:
    Path(path).write_text("#!/bin/sh\n")
    os.chmod(path, 0o755)
    subprocess.run([path], check=True)


def names(folder: str, number: int) -> None:
    for each in range(number):
        Path(folder, str(each)).touch()


TOOLS: dict[str, Callable[..., Any]] = {
    "pid": os.getpid,
    "cwd": os.getcwd,
    "child": lambda: subprocess.Popen(["sleep", "600"]).pid,
    "detached": lambda: subprocess.Popen(["sleep", "600"], start_new_session=True).pid,
    "crash": lambda: os._exit(3),
    "silent": lambda seconds: time.sleep(seconds),
    "see": lambda path: attempt(lambda: Path(path).read_bytes()),
    "leave": lambda path: attempt(lambda: Path(path).write_text("left")),
    "surroundings": lambda: dict(os.environ),
    "reach": lambda host, port: attempt(lambda: connect(host, port)),
    "remember": remember,
    "refuse": refuse,
    "lock": locked,
    "share": lambda name, words: attempt(lambda: share(name, words)),
    "shared": lambda: sorted(entry.name for entry in Path("/dev/shm").iterdir()),
    "fill": lambda path, mib: attempt(lambda: Path(path).write_bytes(bytes(mib << 20))),
    "names": lambda folder, number: attempt(lambda: names(folder, number)),
    "run": lambda path: attempt(lambda: run(path)),
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            able: dict[str, Any] = {"tools": {}}
            about = {"name": "bare", "version": "1"}
            return {
                "protocolVersion": params["protocolVersion"],
                "capabilities": able,
                "serverInfo": about,
            }
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        case "tools/call":
            value = TOOLS[params["name"]](**params.get("arguments", {}))
            return {"content": [{"type": "text", "text": json.dumps(value)}]}
    raise LookupError(method)


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = answer(request["method"], request.get("params", {}))
    except LookupError as unknown:
        reply["error"] = {"code": -32601, "message": f"no {unknown}"}
    print(json.dumps(reply), flush=True)
