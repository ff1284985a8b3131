"""A program for tests of workers that stay: each act leaves something behind for the next call to meet."""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sandbox.frames import Kind
from sandbox.inside.program import CallOver, Channel

__all__ = ["PROGRAM", "Keeping"]


class Keeping:
    """Remembers how often it was called, and does as it is told."""

    def begin(self) -> None:
        """Nothing is the same for all that will be loaded."""

    def load(self, config: Mapping[str, object]) -> object:
        if config.get("threads"):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return {}

    def warm_up(self) -> None:
        """Nothing is to be warmed up."""

    def prepare(self, *, rehearse: bool) -> None:
        self.calls = 0
        self.kept: list[object] = []

    def serve(self, call: object, channel: Channel) -> object:
        assert isinstance(call, dict)
        self.calls += 1
        return {"value": getattr(self, str(call["act"]))(channel, *call.get("args", ()))}

    def count(self, _channel: Channel) -> object:
        return {"calls": self.calls, "pid": os.getpid()}

    def crash(self, _channel: Channel) -> object:
        os._exit(3)

    def raises(self, _channel: Channel) -> object:
        raise RuntimeError("a fault")

    def sleep(self, _channel: Channel) -> object:
        time.sleep(3600)
        return None

    def print(self, _channel: Channel, text: str) -> object:
        print(text)
        return None

    def deny(self, channel: Channel, path: str) -> object:
        with contextlib.suppress(OSError):
            Path(path).write_text("x")
        return None

    def hold(self, _channel: Channel, size: int) -> object:
        self.kept.append(bytearray(os.urandom(1 << 20)) * (size >> 20))
        return None

    def burn(self, _channel: Channel, seconds: float) -> object:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return resource.getrlimit(resource.RLIMIT_CPU)[0]

    def burn_on(self, _channel: Channel) -> object:
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (3600, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        while True:
            pass

    def limits(self, _channel: Channel) -> object:
        names = ("CPU", "DATA", "FSIZE", "NOFILE")
        return {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in names}

    def threads(self, _channel: Channel, count: int) -> object:
        for _ in range(count):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return None

    def descriptors(self, _channel: Channel, count: int) -> object:
        self.kept += [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        return None

    def child(self, _channel: Channel) -> object:
        self.kept.append(subprocess.Popen(["sleep", "3600"]))
        return None

    def orphan(self, _channel: Channel) -> object:
        if os.fork() == 0:
            if os.fork() == 0:
                time.sleep(3600)
            os._exit(0)
        os.wait()
        return None

    def fork_late(self, channel: Channel) -> object:
        def fork() -> None:
            if os.fork() == 0:
                time.sleep(3600)

        return _afterwards(channel, fork)

    def ticks(self, _channel: Channel, path: str) -> object:
        """Write to a file as often as a thread can, for as long as this process is let."""
        file = Path(path)

        def tick() -> None:
            number = 0
            while True:
                number += 1
                file.write_text(str(number))

        threading.Thread(target=tick, daemon=True).start()
        while not file.exists() or not file.read_text():
            time.sleep(0.001)
        return None

    def timer(self, _channel: Channel, path: str) -> object:
        signal.signal(signal.SIGALRM, lambda *_: Path(path).write_text("fired"))
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        return None

    def blocks_signals(self, _channel: Channel) -> object:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.signal(signal.SIGCONT, signal.SIG_IGN)
        return None

    def moves(self, _channel: Channel, folder: str) -> object:
        os.chdir(folder)
        os.umask(0)
        os.environ["PLANTED"] = "1"
        os.environ.pop("ONLY", None)
        sys.argv.append("planted")
        tempfile.tempdir = folder
        return None

    def where(self, _channel: Channel) -> object:
        umask = os.umask(0o077)
        planted = [name for name in ("PLANTED", "ONLY") if name in os.environ]
        return [os.getcwd(), umask, planted, sys.argv[-1:] == ["planted"], tempfile.tempdir]

    def speaks_late(self, channel: Channel, kind: str, raw: bool) -> object:
        """Answer, and say something when the answer is out."""

        def speak() -> None:
            with contextlib.suppress(CallOver, OSError):
                if raw:
                    channel.connection.sendall(bytes.fromhex(kind))
                else:
                    channel.send(Kind[kind], {"id": 1, "late": True})

        return _afterwards(channel, speak)

    def shuts_late(self, channel: Channel) -> object:
        return _afterwards(channel, lambda: channel.connection.shutdown(socket.SHUT_WR))

    def asks_and_answers(self, channel: Channel) -> object:
        channel.send(Kind.REQUEST, {"id": 1})
        return None

    def prints_late(self, channel: Channel) -> object:
        return _afterwards(channel, lambda: os.write(1, b"printed after the answer"))

    def poisons(self, _channel: Channel) -> object:
        """Spoil what the next call of this process would need."""
        import json

        json.JSONEncoder.encode = lambda *_: '{"value":"poisoned"}'  # type: ignore[method-assign]
        sys.modules["os"] = sys.modules["json"]
        libc = ctypes.CDLL(None)
        libc.close(2)
        return None


def _afterwards(channel: Channel, act: Callable[[], object]) -> None:
    """Do something once the answer is out, and make a file `done` in the home when it is done."""

    def run() -> None:
        while not channel._is_over:
            time.sleep(0.0005)
        act()
        Path("done").touch()

    threading.Thread(target=run, daemon=True).start()


PROGRAM = Keeping()
