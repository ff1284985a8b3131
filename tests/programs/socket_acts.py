"""Attempts of a confined command with UNIX sockets: `python socket_acts.py ACT WORD...` prints JSON."""

import errno
import json
import mmap
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

HOME = Path(os.environ.get("HOME", "/"))


def attempt(act: Callable[[], object]) -> object:
    """Return what `act` returns, or the name of its error."""
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def listening(path: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(path)
    server.listen()
    return server


def talk(path: str, kind: int) -> list[object]:
    """Listen at a path, let a child connect and talk, and say what each of them heard."""
    with listening(path, kind) as server:
        child = os.fork()
        if child == 0:
            with socket.socket(socket.AF_UNIX, kind) as mine:
                mine.connect(path)
                mine.send(b"ping")
                mine.send(mine.recv(9).upper())
            os._exit(0)
        ours, _ = server.accept()
        with ours:
            replies = [ours.recv(4).decode()]
            ours.send(b"pong")
            replies.append(ours.recv(4).decode())
        os.waitpid(child, 0)
    return [*replies]


def reach(path: str, kind: int = socket.SOCK_STREAM) -> object:
    def act() -> None:
        with socket.socket(socket.AF_UNIX, kind) as mine:
            mine.connect(path.replace("@", "\0") if path.startswith("@") else path)

    return attempt(act)


def bind(path: str) -> object:
    return attempt(lambda: listening(path).close())


def exchange(foreign: str, tries: int) -> dict[str, int]:
    """Connect by a name that is exchanged meanwhile, for one's own socket and somebody else's."""
    own, name = str(HOME / "own"), str(HOME / "name")
    found: dict[str, int] = {}
    with listening(own) as server, mmap.mmap(-1, 8) as exchanged:
        server.setblocking(False)
        child = os.fork()
        done = 0
        while child == 0:
            for target in (own, foreign):
                os.symlink(target, f"{name}.new")
                os.rename(f"{name}.new", name)
            done += 1
            exchanged[:] = done.to_bytes(8, "little")
        for _ in range(tries):
            # On a busy machine all tries might come between two exchanges.
            before = exchanged[:]
            while exchanged[:] == before:
                os.sched_yield()
            ended = str(reach(name))
            found[ended] = found.get(ended, 0) + 1
            attempt(lambda: server.accept()[0].close())
        os.kill(child, 9)
        os.waitpid(child, 0)
    return found


def left_behind() -> object:
    """Connect where the process that began to listen has ended, and a child of it has its socket."""
    path = str(HOME / "left")
    read, write = os.pipe()
    first = os.fork()
    if first == 0:
        server = listening(path)
        if os.fork() == 0:
            os.close(read)
            os.write(write, b".")
            server.accept()
        os._exit(0)
    os.waitpid(first, 0)
    os.read(read, 1)
    return reach(path)


def after_reset(host: str, port: str) -> list[object]:
    """Try to bind and to listen on a connection of the host after it is lost; return the outcomes."""
    with socket.create_connection((host, int(port))) as mine:
        first = attempt(mine.listen)
        mine.sendall(b"go")
        lost = attempt(lambda: mine.recv(1))
        shut = attempt(lambda: mine.shutdown(socket.SHUT_RDWR))
        return [first, lost, shut, attempt(mine.listen), attempt(lambda: mine.bind(("0.0.0.0", 0)))]


def make(family: int, kind: int) -> None:
    socket.socket(family, kind).close()


def kinds() -> list[object]:
    wanted = [(socket.AF_UNIX, socket.SOCK_DGRAM), (socket.AF_UNIX, socket.SOCK_RAW)]
    wanted += [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]
    return [attempt(partial(make, *each)) for each in wanted]


def main() -> None:
    act, *words = sys.argv[1:]
    stream, packets = socket.SOCK_STREAM, socket.SOCK_SEQPACKET
    acts: dict[str, Callable[[], object]] = {
        "talk": lambda: [attempt(partial(talk, str(HOME / f"talk-{k}"), k)) for k in (stream, packets)],
        "reach": lambda: [reach(word) for word in words],
        "bind": lambda: [bind(word) for word in words],
        "exchange": lambda: exchange(words[0], int(words[1])),
        "left": left_behind,
        "reset": lambda: after_reset(*words),
        "kinds": kinds,
    }
    print(json.dumps(acts[act]()))


if __name__ == "__main__":
    main()
