"""Messages of a server beside its results are relayed in a form that a client can show."""

from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from runner.proxy.answers import legible_error, legible_message

MANY: list[Any] = [[[]] * 10_000, {f"{n}": 0 for n in range(10_000)}, [[[0] * 1000]] * 10]


@pytest.mark.parametrize("value", MANY)
def test_member_of_many_values_is_left_out(value: Any) -> None:
    made = legible_message({"x": value, "few": [[1], {"a": 2}], "content": value}, "content")

    assert made["x"].startswith("left out: ")
    assert made["few"] == [[1], {"a": 2}]
    assert made["content"] is value


@pytest.mark.parametrize("value", MANY)
def test_error_data_of_many_values_is_left_out(value: Any) -> None:
    assert legible_error(MCPError(code=1, message="no", data=value)).error.data.startswith("left out: ")
    assert legible_error(MCPError(code=1, message="no", data={"a": [1]})).error.data == {"a": [1]}


def test_result_of_many_members_keeps_those_of_the_protocol() -> None:
    made = legible_message({"content": [], "nextCursor": "c", **MANY[1]}, "content")

    assert made == {"content": [], "nextCursor": "c"}
