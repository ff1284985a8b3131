"""A program for tests of workers that stay: each act leaves something behind for the next call to meet."""

import contextlib
import ctypes
import fcntl
import inspect
import mmap
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sandbox.frames import FrameKind, encode
from sandbox.inside.program import CallOver, Channel

__all__ = ["PROGRAM", "Keeping"]

_F_SETSIG = 10


class Keeping:
    """Remembers how often it was called, and does as it is told."""

    def begin(self) -> None:
        """Nothing is the same for all that will be loaded."""

    def load(self, config: Mapping[str, object]) -> object:
        self.warm_bytes = int(str(config.get("warm_bytes", 0)))
        if config.get("threads"):
            threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        return {}

    def warm_up(self) -> None:
        """Take as much memory as the order says."""
        self.warm = bytearray(os.urandom(1 << 20)) * (self.warm_bytes >> 20)

    def prepare(self, *, warm: bool) -> None:
        self.calls = 0
        self.objects: list[object] = []
        for mark in Path().glob("unready-*"):
            try:
                mark.unlink()
            except FileNotFoundError:
                # Another worker has taken it.
                continue
            raise RuntimeError("it is not ready")

    def finish(self) -> None:
        """Leave all as it is."""

    def wait(self, connection: socket.socket) -> None:
        """Threads go on by themselves."""

    def serve(self, call: object, channel: Channel) -> object:
        assert isinstance(call, dict)
        self.calls += 1
        return {"value": getattr(self, str(call["act"]))(channel, *call.get("args", ()))}

    def count(self, _channel: Channel) -> object:
        return {"calls": self.calls, "pid": os.getpid()}

    def whose(self, _channel: Channel, name: str, token: int) -> object:
        """Return the callers of this process so far, this caller the last."""
        self.objects.append(name)
        return {
            "names": [name for name in self.objects if isinstance(name, str)],
            "token": token,
            "pid": os.getpid(),
        }

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

    def connect(self, _channel: Channel) -> object:
        return _connect()

    def look_up(self, _channel: Channel) -> object:
        return _look_up()

    def hold(self, _channel: Channel, size: int) -> object:
        self.objects.append(bytearray(os.urandom(1 << 20)) * (size >> 20))
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
        self.objects += [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
        return None

    def child(self, _channel: Channel) -> object:
        self.objects.append(subprocess.Popen(["sleep", "3600"]))
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

    def begins(self, channel: Channel, what: str, *args: object) -> object:
        """Begin something that does what it does once the answer is out."""
        acts: dict[str, Callable[..., object]] = {
            "grow": _grow,
            "fork": _fork_without_end,
            "run_on": _run_on,
            "burn": _burn,
            "burn_in_children": _burn_in_children,
            "fill": _fill,
            "litter": _litter,
            "print": _print_without_end,
            "write": _write_without_end,
            "end": lambda: os._exit(0),
            "speak": lambda: channel.connection.sendall(encode(FrameKind.NOTIFY, {"id": 1})),
            "shut": lambda: channel.connection.shutdown(socket.SHUT_WR),
            "connect": _connect,
            "look_up": _look_up,
            "denied": lambda: Path("/usr/x").write_text("x"),
        }
        return _afterwards(channel, lambda: acts[what](*args))

    def timer(self, channel: Channel, path: str) -> object:
        """Set a timer once the answer is out: one that was set before ends with the call."""
        signal.signal(signal.SIGALRM, lambda *_: Path(path).write_text("fired"))
        return _afterwards(channel, lambda: signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05))

    def wakes_itself(self, _channel: Channel, how: str, path: str) -> object:
        """Arrange for SIGCONT to this process when it is stopped; return the ways that exist."""
        ways = {"timer": _continuing_timer, "descriptor": _continuing_descriptor}
        try:
            self.objects.append(ways[how]())
        except OSError as error:
            return error.strerror
        self.ticks(_channel, path)
        return None

    def answers_and_goes_on(self, channel: Channel, kind: str) -> object:
        value: object = {"value": "forged"}
        if kind == "ANSWER_AND_READY":
            value = {"number": _number_of_the_call(), "answer": value}
        channel.connection.sendall(encode(FrameKind[kind], value))
        time.sleep(3600)
        return None

    def answers_twice(self, channel: Channel, wait: float) -> object:
        forged = {"number": _number_of_the_call(), "answer": {"value": "forged"}}
        channel.connection.sendall(encode(FrameKind.ANSWER_AND_READY, forged))
        time.sleep(wait)
        return "mine"

    def loses_its_environment(self, _channel: Channel) -> object:
        vars(os)["environ"] = None
        return "lost"

    def hides(self, _channel: Channel, folder: str, size: int, mapped: bool) -> object:
        file = os.open(f"{folder}/hidden", os.O_RDWR | os.O_CREAT, 0o600)
        os.unlink(f"{folder}/hidden")
        os.write(file, bytes(size))
        if mapped:
            self.map = mmap.mmap(file, size)
            os.close(file)
        return size

    def breaks_output(self, _channel: Channel) -> object:
        class Broken:
            def flush(self) -> None:
                raise RuntimeError("it is broken")

        sys.stdout = Broken()
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

    def alarms(self, _channel: Channel, timer: str) -> object:
        """Leave a timer behind that would end a call that runs a moment later."""
        signal.setitimer(getattr(signal, timer), 0.02)
        return None

    def lasts(self, _channel: Channel) -> object:
        """Run, and use the processor, for longer than that timer."""
        ends = time.monotonic() + 0.1
        while time.monotonic() < ends:
            pass
        return "lasted"

    def narrows(self, _channel: Channel, limit: str, hard: bool) -> object:
        """Leave less of a limit of the kernel than a call is to have."""
        which = getattr(resource, limit)
        soft, most = resource.getrlimit(which)
        less = 64 << 20 if soft == resource.RLIM_INFINITY else soft // 2
        resource.setrlimit(which, (less, less if hard else most))
        return list(resource.getrlimit(which))

    def limit(self, _channel: Channel, limit: str) -> object:
        return list(resource.getrlimit(getattr(resource, limit)))

    def travels(self, _channel: Channel) -> object:
        os.environ["TZ"] = "XYZ-9"
        time.tzset()
        return time.tzname[0]

    def zone(self, _channel: Channel) -> object:
        return time.tzname[0]

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
                    channel.send(FrameKind[kind], {"id": 1, "late": True})

        return _afterwards(channel, speak)

    def shuts_late(self, channel: Channel) -> object:
        return _afterwards(channel, lambda: channel.connection.shutdown(socket.SHUT_WR))

    def asks_and_answers(self, channel: Channel) -> object:
        channel.send(FrameKind.REQUEST, {"id": 1})
        return None

    def asks_and_waits_for_the_reply(self, channel: Channel) -> object:
        """Send a request, and answer once the reply is there, which nothing reads."""
        channel.send(FrameKind.REQUEST, {"id": 1})
        return bool(select.select([channel.connection], [], [], 60)[0])

    def loses_its_first_thread(self, channel: Channel) -> object:
        """End the thread that serves calls after the answer, while another one continues."""
        thread = threading.get_ident()
        signal.signal(signal.SIGUSR1, lambda *_: ctypes.CDLL(None).syscall(_exit_of_a_thread()))

        def end() -> None:
            signal.pthread_kill(thread, signal.SIGUSR1)
            time.sleep(3600)

        return _afterwards(channel, end)

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


def _exit_of_a_thread() -> int:
    return {"x86_64": 60, "aarch64": 93}[os.uname().machine]


def _number_of_the_call() -> object:
    frame = inspect.currentframe()
    assert frame is not None
    while "number" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_locals["number"]


def _continuing_timer() -> object:
    """Make a POSIX timer that sends SIGCONT when this process has been stopped."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = (ctypes.c_int * 16)(0, 0, signal.SIGCONT, 0)
    timer = ctypes.c_void_p()
    if libc.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    # Of a signal that is ignored, a timer is not wound up again.
    signal.signal(signal.SIGCONT, lambda *_: None)
    libc.timer_settime(timer, 0, (ctypes.c_long * 4)(0, 0, 0, 300_000_000), None)
    return timer


def _continuing_descriptor() -> object:
    """Send SIGCONT when a socket can be read."""
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(ours, _F_SETSIG, signal.SIGCONT)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    return ours, theirs


def _connect() -> object:
    with contextlib.suppress(OSError), socket.socket() as ours:
        ours.settimeout(10)
        ours.connect(("192.0.2.1", 80))
    return None


def _look_up() -> object:
    """Look up a name as a C library does, on a connection for that."""
    question = bytes.fromhex("0001 0100 0001 0000 0000 0000 06") + b"denied" + b"\x04test\0" + b"\0\1\0\1"
    with contextlib.suppress(OSError), socket.socket() as ours:
        ours.settimeout(10)
        ours.connect(("127.0.0.53", 53))
        ours.sendall(len(question).to_bytes(2) + question)
        ours.recv(512)
    return None


def _grow() -> None:
    blocks = []
    while True:
        blocks.append(bytearray(os.urandom(1 << 20)) * 4)
        time.sleep(0.001)


def _fork_without_end() -> None:
    while True:
        subprocess.Popen(["sleep", "3600"])


def _run_on() -> None:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        time.sleep(0.001)


def _burn() -> None:
    while True:
        pass


def _burn_in_children() -> None:
    while True:
        subprocess.run([sys.executable, "-c", "for _ in range(20_000_000): pass"], check=False)


def _fill() -> None:
    with open("filled", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
            time.sleep(0.001)


def _litter() -> None:
    for number in range(1_000_000):
        Path(f"litter{number}").touch()


def _print_without_end() -> None:
    Path("printing").touch()
    for _ in range(10):
        os.write(1, b"x" * 65536)
    Path("printed").touch()


def _write_without_end(path: str) -> None:
    """Start a child that writes to a file as often as it can."""
    number = "i=0; while :; do i=$((i+1)); echo $i > "
    subprocess.Popen(["sh", "-c", f"{number}{path}; done"])


def _afterwards(channel: Channel, act: Callable[[], object]) -> object:
    """Do something once the answer is out, and make a file `done` in the home when it is done."""

    def run() -> None:
        while not channel.is_over:
            time.sleep(0.0005)
        act()
        Path("done").touch()

    threading.Thread(target=run, daemon=True).start()
    return None


PROGRAM = Keeping()
