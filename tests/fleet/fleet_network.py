"""A network for a fleet: a namespace for each machine, on one bridge with Redis and a way to S3. As root."""

import contextlib
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr} (these tests run as root)"


@dataclass
class Network:
    """A bridge, and namespaces that hang on it."""

    token: str = field(default_factory=lambda: secrets.token_hex(3))
    third: int = field(default_factory=lambda: 1 + secrets.randbelow(250))
    machines: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of this side of the bridge."""
        return f"10.213.{self.third}.1"

    def machine(self) -> list[str]:
        """Make one more; return what a command line begins with that is to run there."""
        number = len(self.machines) + 2
        name, near, far = f"fl{self.token}{number}", f"n{self.token}{number}", f"f{self.token}{number}"
        ip("netns", "add", name)
        self.machines.append(name)
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", name)
        ip("link", "set", near, "master", f"b{self.token}", "up")
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "address", "add", f"10.213.{self.third}.{number}/24", "dev", far)
        ip("-n", name, "link", "set", far, "up")
        return ["ip", "netns", "exec", name]

    def cut(self, prefix: list[str]) -> None:
        """Cut the cable of a machine."""
        ip("link", "set", f"n{prefix[-1][2:]}", "down")

    def reconnect(self, prefix: list[str]) -> None:
        ip("link", "set", f"n{prefix[-1][2:]}", "up")


@contextmanager
def network() -> Iterator[Network]:
    made = Network()
    ip("link", "add", f"b{made.token}", "type", "bridge")
    try:
        ip("address", "add", f"{made.address}/24", "dev", f"b{made.token}")
        ip("link", "set", f"b{made.token}", "up")
        yield made
    finally:
        for name in made.machines:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", f"b{made.token}"], check=False)


class Relay:
    """Passes connections on to a server of this machine, until it is told to stop for a while."""

    def __init__(self, address: str, target: tuple[str, int]) -> None:
        self._target = target
        self._listener = socket.create_server((address, 0))
        self._ends: list[socket.socket] = []
        self.closed = False
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def cut(self) -> None:
        """End all connections, and answer no new ones."""
        self.closed = True
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()

    def reopen(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.cut()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.closed:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._ends += [client, server]
                thread = threading.Thread(target=self._join, args=(client, server), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            back = threading.Thread(target=self._carry, args=(server, client), daemon=True)
            back.start()
            self._carry(client, server)
            back.join()

    @staticmethod
    def _carry(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                sink.sendall(piece)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
