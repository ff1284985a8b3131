"""Things planted for an attempt beside files: a stranger's process, sockets, queues, a key, a terminal.

Each is a context manager that takes away what it planted, and whatever an attempt left of the kind.

Source: credentials(7), sysvipc(7), mq_overview(7), keyrings(7), pty(7).
"""

import contextlib
import ctypes
import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host.process_stat import ProcessStat
from sandbox.selftest.calls import call, filled, libc, raised

__all__ = [
    "KEY_READ",
    "USER_KEYRING",
    "Ears",
    "Victim",
    "ipc",
    "key",
    "key_named",
    "leftovers",
    "message_queue_of",
    "number_of",
    "semaphore_value",
    "sockets",
    "terminal",
    "victim",
]

IPC_PRIVATE, IPC_CREAT, IPC_RMID, GETVAL, SETVAL = 0, 0o1000, 0, 12, 16
USER_KEYRING = -4
_KEY_FOR_ALL_OF_THE_USER = 0x3F3F_0000
_UNLINK, _SEARCH, _SET_PERMISSIONS, KEY_READ = 9, 10, 5, 11
_MOST_BYTES = 8192
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
    while b"WORD=" not in Path(f"/proc/{pid}/environ").read_bytes():
        if time.monotonic() > deadline:
            raise SandboxError("the program sleep did not start")
        time.sleep(0.001)


@dataclass(slots=True)
class Ears:
    """Sockets that listen, and a pipe with a name."""

    listening: list[socket.socket] = field(default_factory=list)
    datagrams: list[socket.socket] = field(default_factory=list)
    pipe: int = -1

    def reached(self) -> bool:
        """Return whether anything came in."""
        for each in self.listening:
            with contextlib.suppress(OSError):
                each.accept()[0].close()
                return True
        for each in self.datagrams:
            with contextlib.suppress(OSError):
                each.recv(100)
                return True
        with contextlib.suppress(BlockingIOError):
            return bool(os.read(self.pipe, 100))
        return False


@contextmanager
def sockets(folder: Path, word: str) -> Iterator[tuple[Ears, dict[str, object]]]:
    """Listen at every kind of address; yield the ears, and where they are."""
    ears = Ears()
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.socket())
        tcp.bind(("127.0.0.1", 0))
        with contextlib.suppress(OSError):
            tcp.setsockopt(socket.IPPROTO_TCP, _TCP_FASTOPEN, 5)
        udp = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        udp.bind(("127.0.0.1", 0))
        stream = stack.enter_context(socket.socket(socket.AF_UNIX))
        stream.bind(str(folder / "stream"))
        datagram = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        datagram.bind(str(folder / "datagram"))
        # Its name is a word to be found in lists of sockets; nobody is told of it.
        hidden = stack.enter_context(socket.socket(socket.AF_UNIX))
        hidden.bind(f"\0hidden-{word}")
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0toolcell-{os.getpid()}-{threading.get_ident()}-{tcp.getsockname()[1]}")
        for each in (tcp, stream, abstract):
            each.listen()
            ears.listening.append(each)
        ears.datagrams += [udp, datagram]
        for each in (*ears.listening, *ears.datagrams):
            each.settimeout(0)
        os.mkfifo(folder / "pipe", 0o600)
        ears.pipe = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, ears.pipe)
        yield (
            ears,
            {
                "port": tcp.getsockname()[1],
                "datagram_port": udp.getsockname()[1],
                "free_port": _free_port(),
                "stream": str(folder / "stream"),
                "datagram": str(folder / "datagram"),
                "abstract": abstract.getsockname().decode().removeprefix("\0"),
            },
        )


@contextmanager
def ipc(word: str) -> Iterator[dict[str, object]]:
    """Make shared memory and message queues that hold the word, and a semaphore; yield where they are."""
    name = f"toolcell-{word[-12:]}"
    shared = Path("/dev/shm", name)  # noqa: S108 - the place of POSIX shared memory
    with contextlib.ExitStack() as stack:
        segment = raised("shmget", libc.shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0o600))
        stack.callback(libc.shmctl, segment, IPC_RMID, None)
        at = libc.shmat(segment, None, 0)
        ctypes.memmove(at, word.encode(), len(word))
        libc.shmdt(ctypes.c_void_p(at))
        messages = raised("msgget", libc.msgget(IPC_PRIVATE, IPC_CREAT | 0o600))
        stack.callback(libc.msgctl, messages, IPC_RMID, None)
        raised("msgsnd", libc.msgsnd(messages, struct.pack("@l", 1) + word.encode(), len(word), 0))
        semaphores = raised("semget", libc.semget(IPC_PRIVATE, 1, IPC_CREAT | 0o600))
        stack.callback(libc.semctl, semaphores, 0, IPC_RMID)
        # Its value is a secret of its own: the first digits of the word.
        raised("semctl", libc.semctl(semaphores, 0, SETVAL, number_of(word)))
        queue = call("mq_open", name, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, 0o600, None)
        stack.callback(call, "mq_unlink", name)
        stack.callback(os.close, queue)
        call("mq_timedsend", queue, word.encode(), len(word), 0, None)
        shared.write_text(word)
        stack.callback(shared.unlink, missing_ok=True)
        yield {
            "segment": segment,
            "messages": messages,
            "semaphores": semaphores,
            "queue": name,
            "shared": str(shared),
        }


def number_of(word: str) -> int:
    """Return the small number that a semaphore keeps for a word."""
    return 10_000 + int(word[:4])


def semaphore_value(semaphores: int) -> int:
    """Return the value of a semaphore."""
    return int(libc.semctl(semaphores, 0, GETVAL))


def message_queue_of(name: str) -> list[bytes]:
    """Return the messages of a queue; none where there is no such queue. They are gone afterwards."""
    found: list[bytes] = []
    try:
        queue = call("mq_open", name, os.O_RDONLY | os.O_NONBLOCK, 0, None)
    except OSError:
        return found
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(filled("mq_timedreceive", queue, ..., _MOST_BYTES, None, None))
    os.close(queue)
    return found


@contextmanager
def key(word: str) -> Iterator[int]:
    """Put a key into the keyring that all processes of the user share; yield its number.

    Where a container's engine refuses keys to everybody there is none, -1: nothing can be shown of them.
    """
    name = f"toolcell-{word[-12:]}"
    try:
        number = call("add_key", b"user", name, word.encode(), len(word), USER_KEYRING)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS):
            raise
        yield -1
        return
    try:
        call("keyctl", _SET_PERMISSIONS, number, _KEY_FOR_ALL_OF_THE_USER)
        yield number
    finally:
        call("keyctl", _UNLINK, number, USER_KEYRING)


def key_named(name: str) -> bytes | None:
    """Return what the user's keyring has by a name, or None."""
    try:
        number = call("keyctl", _SEARCH, USER_KEYRING, b"user", name, 0)
    except OSError:
        return None
    return filled("keyctl", KEY_READ, number, ..., _MOST_BYTES)


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


@contextmanager
def leftovers(fresh: int) -> Iterator[None]:
    """Take away what an attempt has left under the free name and number it was given."""
    try:
        yield
    finally:
        name = f"toolcell-{fresh}"
        for get, control, arguments in (
            (libc.shmget, libc.shmctl, (0, 0)),
            (libc.msgget, libc.msgctl, (0,)),
            (libc.semget, libc.semctl, (0, 0)),
        ):
            found = get(fresh, *arguments)
            if found >= 0:
                control(found, 0 if get is libc.semget else IPC_RMID, IPC_RMID)
        with contextlib.suppress(OSError):
            call("mq_unlink", name)
        with contextlib.suppress(OSError):
            Path("/dev/shm", name).unlink()  # noqa: S108 - the place of POSIX shared memory
        with contextlib.suppress(OSError):
            found = call("keyctl", _SEARCH, USER_KEYRING, b"user", name, 0)
            call("keyctl", _UNLINK, found, USER_KEYRING)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
