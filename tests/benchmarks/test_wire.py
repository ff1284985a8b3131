import socket
import threading
from contextlib import closing

import pytest

from benchmarks.wire import HttpConnection

LARGE = b'{"big": "' + b"x" * (5 << 20) + b'"}'


def chunked(*pieces: bytes) -> bytes:
    """Return an answer whose length nobody knew before, as HTTP/1.1 sends it."""
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks


def sized(body: bytes) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-LENGTH: {len(body)}\r\n\r\n".encode() + body


def answering(*answers: bytes) -> int:
    """Return the port of a server that answers each request with the next answer, in pieces."""
    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]

    def serve() -> None:
        with listening, listening.accept()[0] as connection:
            for answer in answers:
                connection.recv(1 << 16)
                for piece in (answer[:9], answer[9:60], answer[60:]):
                    connection.sendall(piece)

    threading.Thread(target=serve, daemon=True).start()
    return port


def ask(connection: HttpConnection) -> list[bytes]:
    connection.send(connection.frame(b"{}", "echo"))
    answers: list[bytes] = []
    while not answers:
        answers = connection.receive()
    return answers


def test_answers_in_pieces_are_joined_at_any_size() -> None:
    with closing(HttpConnection(answering(*map(sized, (b'{"a": 1}', LARGE, b'{"b": 2}'))))) as connection:
        answers = [ask(connection), ask(connection), ask(connection)]

    assert answers == [[b'{"a": 1}'], [LARGE], [b'{"b": 2}']]


def test_answer_after_notifications_is_returned_alone() -> None:
    events = (b'event: message\ndata: {"method": "notice"}\n\n', b"event: message\nda", b'ta: {"id": 1}\n\n')

    with closing(HttpConnection(answering(chunked(*events), sized(b'{"id": 2}')))) as connection:
        answers = [ask(connection), ask(connection)]

    assert answers == [[b'{"id": 1}'], [b'{"id": 2}']]


def test_server_hanging_up_is_an_error() -> None:
    with closing(HttpConnection(answering(sized(b"{}")))) as connection:
        ask(connection)

        with pytest.raises(ConnectionError):
            ask(connection)
