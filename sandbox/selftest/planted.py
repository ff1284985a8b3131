"""Things planted for an attempt beside files: a stranger's process, sockets, kernel objects, a terminal.

Each is taken away again, and whatever an attempt left of the kind.

Source: credentials(7), sysvipc(7), mq_overview(7), keyrings(7), pty(7).
"""

import contextlib
import ctypes
import enum
import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host.process_stat import ProcessStat
from sandbox.selftest.calls import attached, call, libc, opened, put

__all__ = [
    "KernelObject",
    "Victim",
    "kernel_objects",
    "number_of",
    "removed",
    "sockets",
    "terminal",
    "victim",
]

_NEW_IPC, _NEW_FILE = 0o3600, os.O_CREAT | os.O_EXCL | os.O_RDWR
_IPC_RMID, _SETVAL = 0, 16
# Two messages of 64 bytes: a user may have a few queues of the usual size only.
_SMALL_QUEUE = struct.pack("@8l", 0, 2, 64, *(0,) * 5)
_USER_KEYRING, _KEY_FOR_ALL_OF_THE_USER = -4, 0x3F3F_0000
_SET_PERMISSIONS, _UNLINK, _SEARCH = 5, 9, 10
_TCP_FASTOPEN = 23
_START_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A stranger's process.

    Attributes:
        process: It sleeps, with the word in its environment and in its arguments.
        address: Where the word stands in its memory.
        descriptor: Its descriptor of a file that has no name any more and holds the word.
    """

    process: "subprocess.Popen[bytes]"
    address: int
    descriptor: int

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.process.pid

    @property
    def signalled(self) -> bool:
        """Return whether it was sent the signal that it does not take."""
        if self.process.poll() is not None:
            return True
        pending = [line.split()[1] for line in self._read("status").splitlines() if "Pnd:" in line]
        return any(int(mask, 16) & (1 << (signal.SIGUSR1 - 1)) for mask in pending)

    @property
    def word(self) -> str:
        """Return the word as it stands in its memory now."""
        return self._read("environ").partition("WORD=")[2].partition("\0")[0]

    def _read(self, name: str) -> str:
        return Path(f"/proc/{self.pid}/{name}").read_text()


@contextmanager
def victim(word: str, folder: Path) -> Iterator[Victim]:
    """Start a stranger that works in `folder`.

    Args:
        word: Digits, planted in its environment, arguments and memory.
        folder: Its working folder.

    Raises:
        SandboxError: The machine lacks the program `sleep`.
    """
    program = shutil.which("sleep")
    if program is None:
        raise SandboxError("the self-test needs the program sleep; install coreutils or busybox")
    secret = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(secret, word.encode())
    # A new process inherits the mask: what is sent to it stays pending, for everybody to see.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        process = subprocess.Popen(
            # Seconds are added up: a minute, and next to nothing.
            [program, "60", f"0.{word}"],
            env={"WORD": word},
            cwd=folder,
            pass_fds=[secret],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        _wait_for_memory(process.pid)
        address = ProcessStat.of(process.pid).environment_address + len("WORD=")
        yield Victim(process=process, address=address, descriptor=secret)
    finally:
        os.close(secret)
        process.kill()
        process.wait()


def _wait_for_memory(pid: int) -> None:
    """Wait until the program's memory is laid out, which is a moment after its start was reported."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        # Until then the kernel may take it for part of this process, whose memory is not readable.
        with contextlib.suppress(PermissionError):
            if b"WORD=" in Path(f"/proc/{pid}/environ").read_bytes():
                return
        time.sleep(0.001)
    raise SandboxError("the program sleep did not start")


@contextmanager
def sockets(folder: Path, word: str) -> Iterator[tuple[list[int], dict[str, object]]]:
    """Listen at an address of each kind; yield what can be read once one is reached, and the addresses."""
    with contextlib.ExitStack() as stack:
        tcp, stream, abstract, hidden, udp, datagram = (
            stack.enter_context(socket.socket(family, kind))
            for family, kind in (
                (socket.AF_INET, socket.SOCK_STREAM),
                *[(socket.AF_UNIX, socket.SOCK_STREAM)] * 3,
                (socket.AF_INET, socket.SOCK_DGRAM),
                (socket.AF_UNIX, socket.SOCK_DGRAM),
            )
        )
        tcp.bind(("127.0.0.1", 0))
        with contextlib.suppress(OSError):
            tcp.setsockopt(socket.IPPROTO_TCP, _TCP_FASTOPEN, 5)
        udp.bind(("127.0.0.1", 0))
        stream.bind(str(folder / "stream"))
        datagram.bind(str(folder / "datagram"))
        # Its name is a word to be found in lists of sockets; no act is given it.
        hidden.bind(f"\0hidden-{word}")
        abstract.bind(f"\0toolcell-{os.getpid()}-{threading.get_ident()}-{tcp.getsockname()[1]}")
        for each in (tcp, stream, abstract):
            each.listen()
        os.mkfifo(folder / "pipe", 0o600)
        pipe = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, pipe)
        yield (
            [pipe, *(each.fileno() for each in (tcp, stream, abstract, udp, datagram))],
            {
                "port": tcp.getsockname()[1],
                "datagram_port": udp.getsockname()[1],
                "free_port": _free_port(),
                "stream": str(folder / "stream"),
                "datagram": str(folder / "datagram"),
                "abstract": abstract.getsockname().decode().removeprefix("\0"),
            },
        )


class KernelObject(enum.Enum):
    """Kind of an object that the kernel keeps when a process has ended."""

    SEGMENT = "segment"
    MESSAGES = "messages"
    SEMAPHORE = "semaphore"
    QUEUE = "queue"
    SHARED = "shared"
    KEY = "key"

    def make(self, number: int, word: str) -> int | str:
        """Make one that holds digits, under a free number; return where it is."""
        return _MADE[self](number, word)

    def is_there(self, number: int) -> bool:
        """Return whether there is one under a number, where this process stands."""
        try:
            _FOUND[self](number)
        except OSError:
            return False
        return True

    def remove(self, number: int) -> None:
        """Remove the one under a number, if there is one that this process may remove."""
        with contextlib.suppress(OSError):
            _REMOVED[self](number)


def _name(number: int) -> str:
    return f"toolcell-{number}"


def _path(number: int) -> str:
    return f"/dev/shm/{_name(number)}"  # noqa: S108 - what shm_open(3) does


def _segment(number: int, word: str) -> int:
    segment = call("shmget", number, 4096, _NEW_IPC)
    at = attached(segment, 0)
    ctypes.memmove(at, word.encode(), len(word))
    libc.shmdt(ctypes.c_void_p(at))
    return segment


def _messages(number: int, word: str) -> int:
    messages = call("msgget", number, _NEW_IPC)
    call("msgsnd", messages, struct.pack("@l", 1) + word.encode(), len(word), 0)
    return messages


def _semaphore(number: int, word: str) -> int:
    semaphore = call("semget", number, 1, _NEW_IPC)
    # Its value is a secret of its own: the first digits of the word.
    call("semctl", semaphore, 0, _SETVAL, number_of(word))
    return semaphore


def _queue(number: int, word: str) -> str:
    queue = call("mq_open", _name(number), _NEW_FILE, 0o600, _SMALL_QUEUE)
    call("mq_timedsend", queue, word.encode(), len(word), 0, None)
    os.close(queue)
    return _name(number)


def _shared(number: int, word: str) -> str:
    put(opened(_path(number), _NEW_FILE, 0o600), word.encode())
    return _path(number)


def _key(number: int, word: str) -> int:
    key = call("add_key", b"user", _name(number), word.encode(), len(word), _USER_KEYRING)
    call("keyctl", _SET_PERMISSIONS, key, _KEY_FOR_ALL_OF_THE_USER)
    return key


def _key_of(number: int) -> int:
    return call("keyctl", _SEARCH, _USER_KEYRING, b"user", _name(number), 0)


_MADE: Mapping[KernelObject, Callable[[int, str], int | str]] = {
    KernelObject.SEGMENT: _segment,
    KernelObject.MESSAGES: _messages,
    KernelObject.SEMAPHORE: _semaphore,
    KernelObject.QUEUE: _queue,
    KernelObject.SHARED: _shared,
    KernelObject.KEY: _key,
}
_FOUND: Mapping[KernelObject, Callable[[int], object]] = {
    KernelObject.SEGMENT: lambda number: call("shmget", number, 0, 0),
    KernelObject.MESSAGES: lambda number: call("msgget", number, 0),
    KernelObject.SEMAPHORE: lambda number: call("semget", number, 0, 0),
    KernelObject.QUEUE: lambda number: os.close(call("mq_open", _name(number), os.O_RDONLY, 0, None)),
    KernelObject.SHARED: lambda number: os.stat(_path(number)),
    KernelObject.KEY: _key_of,
}
_REMOVED: Mapping[KernelObject, Callable[[int], object]] = {
    KernelObject.SEGMENT: lambda number: call("shmctl", call("shmget", number, 0, 0), _IPC_RMID, None),
    KernelObject.MESSAGES: lambda number: call("msgctl", call("msgget", number, 0), _IPC_RMID, None),
    KernelObject.SEMAPHORE: lambda number: call("semctl", call("semget", number, 0, 0), 0, _IPC_RMID),
    KernelObject.QUEUE: lambda number: call("mq_unlink", _name(number)),
    KernelObject.SHARED: lambda number: os.unlink(_path(number)),
    KernelObject.KEY: lambda number: call("keyctl", _UNLINK, _key_of(number), _USER_KEYRING),
}


def kernel_objects(number: int, word: str) -> dict[str, object]:
    """Make one object of each kind that holds the word; return where they are, by kind.

    An engine may refuse a kind to everybody: -1, and what needs it is not provable there.
    """
    places: dict[str, object] = {}
    for kind in KernelObject:
        try:
            places[kind.value] = kind.make(number, word)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOSYS):
                raise
            places[kind.value] = -1
    return places


@contextmanager
def removed(*numbers: int) -> Iterator[None]:
    """Remove all objects under numbers that were free, at the end."""
    try:
        yield
    finally:
        for number in numbers:
            for kind in KernelObject:
                kind.remove(number)


def number_of(word: str) -> int:
    """Return the small number that a semaphore keeps for a word."""
    return 10_000 + int(word[:4])


@contextmanager
def terminal() -> Iterator[tuple[int, str]]:
    """Open a terminal; yield the descriptor of its far end, and its name."""
    far, near = os.openpty()
    os.set_blocking(far, False)
    os.set_blocking(near, False)
    try:
        yield far, os.ttyname(near)
    finally:
        os.close(far)
        os.close(near)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
