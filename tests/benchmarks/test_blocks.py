import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from benchmarks.blocks import Load, run_block
from benchmarks.wire import Connection, HttpConnection

CROWD = Load(name="3 clients", in_flight=3)


@dataclass
class Closing:
    """A server that closes each connection after one answer, or after none if it is told so."""

    listening: socket.socket
    answers: bool = True

    def serve(self) -> None:
        while True:
            try:
                connection = self.listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.answer, args=[connection], daemon=True).start()

    def answer(self, connection: socket.socket) -> None:
        with connection:
            request = connection.recv(1 << 16)
            if request and self.answers:
                number = json.loads(request.partition(b"\r\n\r\n")[2])["id"]
                body = json.dumps({"id": number, "result": {}}).encode()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def connect(self, in_flight: int) -> list[Connection]:
        return [HttpConnection(self.listening.getsockname()[1]) for _ in range(in_flight)]


@pytest.fixture
def closing() -> Iterator[Closing]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Closing(listening)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
        # A blocked accept ends with this, but not with a close.
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize("calls", [1, 3])
def test_connection_with_no_pending_requests_may_be_closed(closing: Closing, calls: int) -> None:
    block = run_block(closing, "echo", {}, calls=calls, load=CROWD)

    assert len(block.latencies_s) == calls
    assert 0 < min(block.latencies_s) <= max(block.latencies_s) <= block.elapsed_s


def test_connection_closed_before_answer_raises_connection_error(closing: Closing) -> None:
    closing.answers = False

    with pytest.raises(ConnectionError):
        run_block(closing, "echo", {}, calls=3, load=CROWD)
