"""A client says itself what it is called: however many names one user has, others keep their connections.

A client without sessions names itself with each request, and has a connection for each name.
"""

import json
import sys
from collections.abc import Iterator

import httpx2
import pytest
from contracting import Front, front_of
from mcp_requests import META, modern, usual
from proxying import BARE

pytestmark = [pytest.mark.release, pytest.mark.kernel, pytest.mark.timeout(400)]

ANN, BOB = "token-of-ann-0123456789", "token-of-bob-0123456789"


@pytest.fixture(scope="module")
def front() -> Iterator[Front]:
    with front_of("--", sys.executable, str(BARE), tokens={ANN: "t-kinds-ann", BOB: "t-kinds-bob"}) as front:
        yield front


def remember(front: Front, token: str, value: int, client: str) -> list[int]:
    """Return the values in the memory of the user's server."""
    envelope = {**META, "io.modelcontextprotocol/clientInfo": {"name": client, "version": "1"}}
    request = modern("remember", {"value": value}, params={"_meta": envelope})
    headers = dict(usual("remember", authorization=f"Bearer {token}"))
    reply = httpx2.post(front.url, json=request, headers=headers, timeout=120)
    assert reply.status_code == 200, reply.text
    text = (
        reply.text.rpartition("data: ")[2]
        if reply.text.startswith(("event", "data", "id", ":"))
        else reply.text
    )
    remembered: list[int] = json.loads(json.loads(text)["result"]["content"][0]["text"])
    return remembered


def test_user_with_many_client_names_ends_no_other_connections(front: Front) -> None:
    assert remember(front, BOB, 1, "editor") == [1]
    assert [remember(front, ANN, number, f"name-{number}") for number in range(70)] == [
        [n] for n in range(70)
    ]

    assert remember(front, BOB, 2, "editor") == [1, 2]
    # Hers are those that were used last.
    assert remember(front, ANN, 100, "name-69") == [69, 100]
    assert remember(front, ANN, 101, "name-0") == [101]
