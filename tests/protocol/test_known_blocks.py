"""Content blocks that a version of the protocol does not know."""

from typing import Any

import pytest

from runner.protocol.result_messages import known_to

LINK = {"type": "resource_link", "uri": "artifact://1", "name": "a.csv", "mimeType": "text/csv", "size": 5}
TEXT = {"type": "text", "text": "done"}


@pytest.mark.parametrize("protocol", ["2025-06-18", "2025-11-25", "2026-07-28"])
def test_link_reaches_client_that_knows_links(protocol: str) -> None:
    message = {"content": [TEXT, LINK], "isError": False}

    assert known_to(protocol, message) is message


@pytest.mark.parametrize("protocol", ["2024-11-05", "2025-03-26"])
def test_link_is_text_for_client_that_knows_none(protocol: str) -> None:
    assert known_to(
        protocol, {"content": [TEXT, LINK, {"type": "resource_link", "uri": "u", "name": "n"}]}
    ) == {
        "content": [
            TEXT,
            {"type": "text", "text": "a.csv (text/csv, 5 bytes): read it as resource artifact://1"},
            {"type": "text", "text": "n: read it as resource u"},
        ]
    }


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"progressToken": {}, "a": 1}, {"a": 1}),
        ({"progressToken": 1.5}, {}),
        ({"progressToken": "t", "io.modelcontextprotocol/related-task": {"taskId": "1"}}, None),
        ({"io.modelcontextprotocol/related-task": "1", "progressToken": 3}, {"progressToken": 3}),
    ],
)
def test_protocol_member_with_other_value_left_out(
    meta: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    message = {"content": [], "_meta": meta}

    assert known_to("2025-11-25", message)["_meta"] == (meta if expected is None else expected)
