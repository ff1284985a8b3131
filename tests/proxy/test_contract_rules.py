"""Contract of a call of another server's tool, and fields a server may not set in our name."""

from typing import Any

import pytest

from runner.proxy.answers import without_our_words
from runner.proxy.calls import created_task, task_message
from runner.proxy.targets import contract_of


def test_identity_not_passed_to_unlisted_tool() -> None:
    forged = {"user_id": "bob"}

    assert contract_of("auto", None, forged, identity="user_id") == "full"
    assert contract_of("auto", None, forged, identity="username") == "guard"
    assert contract_of("guard", None, forged, identity="user_id") == "guard"


def test_started_task_has_no_result_and_no_metadata_of_ours() -> None:
    wire = {
        "task": {"taskId": "1"},
        "content": [{"type": "text", "text": "x" * 1000}],
        "structuredContent": {"result": 1},
        "isError": False,
        "_meta": {"toolcell/display": {"open": True}, "theirs": 1},
    }

    assert created_task(wire) == {"taskId": "1"}
    assert task_message(wire) == {"task": {"taskId": "1"}, "_meta": {"theirs": 1}}


@pytest.mark.parametrize("named", [{}, {"taskId": [1]}, {"taskId": 7}, {"taskId": None}])
def test_task_without_id_is_no_task(named: dict[str, Any]) -> None:
    assert created_task({"task": named}) is None
    assert created_task({"resultType": "task", **named}) is None


def test_message_without_meta_unchanged() -> None:
    assert without_our_words({"content": []}) == {"content": []}
    assert without_our_words({"_meta": None}) == {"_meta": None}
