"""Objects other than files planted for an attempt: a stranger's process and sockets, removed with it.

Source: credentials(7), unix(7).
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.errors import SandboxError
from sandbox.host.process_stat import ProcessStat

__all__ = ["Victim", "sockets", "victim"]

_TCP_FASTOPEN = 23
_START_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A stranger's process."""

    process: "subprocess.Popen[bytes]"  # It sleeps, with the word in its environment and in its arguments.
    address: int  # Address of the word in its memory.
    descriptor: int  # Its descriptor of an unlinked file that contains the word.

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self.process.pid

    @property
    def signalled(self) -> bool:
        """Return whether it was sent the signal that it blocks."""
        if self.process.poll() is not None:
            return True
        pending = [line.split()[1] for line in self._read("status").splitlines() if "Pnd:" in line]
        return any(int(mask, 16) & (1 << (signal.SIGUSR1 - 1)) for mask in pending)

    @property
    def word(self) -> str:
        """Return the current word in its memory."""
        return self._read("environ").partition("WORD=")[2].partition("\0")[0]

    def _read(self, name: str) -> str:
        return Path(f"/proc/{self.pid}/{name}").read_text()


@contextmanager
def victim(word: str, folder: Path) -> Iterator[Victim]:
    """Start a stranger that works in `folder`, with digits in its environment, arguments and memory.

    Raises:
        SandboxError: The machine lacks the program `sleep`.
    """
    program = shutil.which("sleep")
    if program is None:
        raise SandboxError("the self-test needs the program sleep; install coreutils or busybox")
    secret = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    os.write(secret, word.encode())
    # A new process inherits the mask, so a signal sent to it stays pending and visible.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        process = subprocess.Popen(
            # `sleep` adds its arguments: a minute, and a fraction that contains the word.
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
        # Its memory is set up shortly after its start was reported. Until then the kernel may treat it as
        # part of this process, whose memory is not readable.
        deadline = time.monotonic() + _START_S
        while not _has_word(process.pid):
            if time.monotonic() > deadline:
                raise SandboxError("the program sleep did not start")
            time.sleep(0.001)
        address = ProcessStat.of(process.pid).environment_address + len("WORD=")
        yield Victim(process=process, address=address, descriptor=secret)
    finally:
        os.close(secret)
        process.kill()
        process.wait()


def _has_word(pid: int) -> bool:
    with contextlib.suppress(PermissionError):
        return b"WORD=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


@contextmanager
def sockets(folder: Path, word: str) -> Iterator[tuple[list[int], dict[str, object]]]:
    """Listen on an address of each kind; yield the descriptors that become readable, and the addresses."""
    with contextlib.ExitStack() as stack:

        def bound(family: int, kind: int, address: tuple[str, int] | str) -> socket.socket:
            made = stack.enter_context(socket.socket(family, kind))
            made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen()
            return made

        with socket.create_server(("127.0.0.1", 0)) as probe:
            free_port = probe.getsockname()[1]
        tcp = bound(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        with contextlib.suppress(OSError):
            tcp.setsockopt(socket.IPPROTO_TCP, _TCP_FASTOPEN, 5)
        udp = bound(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0))
        stream = bound(socket.AF_UNIX, socket.SOCK_STREAM, str(folder / "stream"))
        datagram = bound(socket.AF_UNIX, socket.SOCK_DGRAM, str(folder / "datagram"))
        abstract = bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0toolcell-{secrets.token_hex(8)}")
        # Its name contains the word, to be found in lists of sockets; acts do not receive it.
        bound(socket.AF_UNIX, socket.SOCK_STREAM, f"\0hidden-{word}")
        os.mkfifo(folder / "pipe", 0o600)
        pipe = os.open(folder / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        stack.callback(os.close, pipe)
        yield (
            [pipe, *(each.fileno() for each in (tcp, stream, abstract, udp, datagram))],
            {
                "port": tcp.getsockname()[1],
                "datagram_port": udp.getsockname()[1],
                "free_port": free_port,
                "stream": stream.getsockname(),
                "datagram": datagram.getsockname(),
                "abstract": abstract.getsockname().decode().removeprefix("\0"),
            },
        )
