"""A program for tests of the sandbox: does what its call says, without any framework."""

import ctypes
import hashlib
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from sandbox.errors import LoadError
from sandbox.frames import FrameKind, encode
from sandbox.inside.program import Channel

__all__ = ["PROGRAM", "Small"]


def _written(path: Path) -> object:
    try:
        path.write_text("written at import")
    except OSError as error:
        return {"errno": error.errno}
    return {}


def _breed(*_: object) -> None:
    if os.fork() == 0:
        time.sleep(3600)


def _breed_in_a_group(*_: object) -> None:
    """Start a process in the group of one that has ended."""
    if os.fork() == 0:
        os.setpgid(0, 0)
        if os.fork():
            os._exit(0)
        time.sleep(3600)


def _bred(config: Mapping[str, object]) -> Mapping[str, object]:
    if not config.get("breeds"):
        return {}
    # Raw, since a library function passes SIGCHLD as the exit signal.
    clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    child = os.fork() if config["breeds"] == "fork" else ctypes.CDLL(None).syscall(clone, 0, 0, 0, 0, 0)
    if child == 0:
        time.sleep(3600)
    return {"child": child}


def _map_unnamed(path: str) -> None:
    """Keep a file of 8 MiB by nothing but a private mapping."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink(path)
    os.write(descriptor, bytes(8 << 20))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap(None, ctypes.c_size_t(8 << 20), mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, ctypes.c_long(0))
    os.close(descriptor)


class Small:
    """Loads, prepares and serves as its configuration and calls tell it."""

    def begin(self) -> None:
        """Nothing is the same for all that will be loaded."""

    def load(self, config: Mapping[str, object]) -> object:
        hello = self._loaded(config)
        if config.get("stays"):
            time.sleep(3600)
        return hello

    def _loaded(self, config: Mapping[str, object]) -> object:
        match config.get("load"):
            case "fails":
                raise LoadError("line 3 is wrong", 3)
            case "exits":
                print("usage: small\n\nerror: --root is required\n", file=sys.stderr)
                raise LoadError("it exits", is_exit=True)
            case "hangs":
                time.sleep(3600)
            case "dies":
                os._exit(9)
            case "threads":
                threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
            case "process later" | "process in a group later":
                breed = _breed if config["load"] == "process later" else _breed_in_a_group
                signal.signal(signal.SIGALRM, breed)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
            case "grows":
                self._data = bytearray(os.urandom(1 << 20)) * 300
            case "maps":
                _map_unnamed(str(config["path"]))
            case "prints":
                print("printed at import", flush=True)
            case "writes":
                return _written(Path(str(config["path"])))
        self._prepare = config.get("prepare")
        digest = hashlib.sha256(self._data).hexdigest() if config.get("load") == "grows" else None
        return {"pid": os.getpid(), "digest": digest, **_bred(config)}

    def warm_up(self) -> None:
        self.warmed_up = os.getpid()

    def prepare(self, *, warm: bool) -> None:
        self.warmed = warm
        if self._prepare == "fails":
            raise LoadError("cannot get ready")

    def finish(self) -> None:
        """Leave all as it is."""

    def wait(self, connection: socket.socket) -> None:
        """Threads go on by themselves."""

    def serve(self, call: object, channel: Channel) -> object:
        assert isinstance(call, dict)
        act = getattr(self, str(call["act"]))
        return {"value": act(channel, *call.get("args", ()))}

    def references(self, _channel: Channel) -> object:
        """Count the references to a function that was imported before any fork."""
        return sys.getrefcount(_written)

    def echo(self, _channel: Channel, value: object) -> object:
        return value

    def pid(self, _channel: Channel) -> object:
        return {"pid": os.getpid(), "group": os.getpgrp(), "session": os.getsid(0), "parent": os.getppid()}

    def digest(self, _channel: Channel) -> object:
        return hashlib.sha256(self._data).hexdigest()

    def warmth(self, _channel: Channel) -> object:
        return self.warmed

    def write(self, _channel: Channel, path: str) -> object:
        try:
            Path(path).write_text("written")
        except OSError as error:
            return error.errno
        return 0

    def environment(self, _channel: Channel) -> object:
        return dict(os.environ)

    def notify(self, channel: Channel, count: int) -> object:
        for number in range(count):
            channel.send(FrameKind.NOTIFY, {"number": number})
        return count

    def ask_and_sleep(self, channel: Channel, question: str) -> object:
        self.ask(channel, question)
        time.sleep(3600)
        return None

    def ask(self, channel: Channel, question: str) -> object:
        channel.send(FrameKind.REQUEST, {"id": 1, "question": question})
        frame = channel.receive()
        return frame[1] if frame else None

    def ask_at_once(self, channel: Channel, count: int) -> object:
        """Send many requests before the first reply is read."""
        channel.connection.sendall(b"".join(encode(FrameKind.REQUEST, {"id": 1}) for _ in range(count)))
        return sum(channel.receive() is not None for _ in range(count))

    def say_values(self, channel: Channel, count: int) -> object:
        channel.send(FrameKind.NOTIFY, {"values": [0] * count})
        return count

    def sleep(self, _channel: Channel) -> object:
        time.sleep(3600)
        return None

    def not_json(self, _channel: Channel) -> object:
        return {1, 2}

    def nan(self, _channel: Channel) -> object:
        return float("nan")

    def raw(self, channel: Channel, data: str) -> object:
        channel.connection.sendall(bytes.fromhex(data))
        time.sleep(3600)
        return None

    def long_frame(self, channel: Channel, size: int) -> object:
        channel.connection.sendall(struct.pack(">Ic", size, b"A") + b"[")
        time.sleep(3600)
        return None

    def answers_twice(self, channel: Channel) -> object:
        channel.send(FrameKind.ANSWER, {"value": "first"})
        return "second"

    def sends_kind(self, channel: Channel, kind: str) -> object:
        channel.send(FrameKind[kind], {"forged": True})
        time.sleep(3600)
        return None

    def fetch(self, _channel: Channel, host: str, port: int) -> object:
        try:
            with socket.create_connection((host, port), timeout=120) as connection:
                return connection.recv(100).decode()
        except OSError as error:
            return error.errno

    def held_socket(self, channel: Channel) -> object:
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(5)

    def answers_and_leaves_a_child(self, _channel: Channel) -> object:
        child = os.fork()
        if child == 0:
            time.sleep(3600)
        return child

    def limits(self, _channel: Channel) -> object:
        names = ("CPU", "FSIZE", "NOFILE")
        return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names}

    def prints(self, _channel: Channel, size: int) -> object:
        os.write(1, b"begin")
        for _ in range(size // 65536):
            os.write(2, b"x" * 65536)
        os.write(1, b"end")
        return None

    def denies(self, channel: Channel, count: int) -> object:
        for number in range(count):
            channel.send(FrameKind.DENIED, {"operation": "open", "path": f"/{number}", "layer": "guard"})
        return None

    def descriptors(self, channel: Channel) -> object:
        found = []
        for fd in range(3, 256):
            try:
                os.fstat(fd)
            except OSError:
                continue
            if fd != channel.connection.fileno():
                found.append(fd)
        return found


PROGRAM = Small()
