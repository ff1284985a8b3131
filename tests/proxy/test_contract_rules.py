"""Which contract a call of another server's tool has, and what a server may not say in our name."""

from typing import Any

import pytest

from runner.proxy.contract import contract_of
from runner.proxy.foreign_words import without_our_words
from runner.proxy.remote_call import created_task, task_message


def test_an_identity_of_any_name_is_never_passed_on_to_a_tool_that_is_not_listed() -> None:
    forged = {"user_id": "bob"}

    assert contract_of("auto", None, forged, identity="user_id") == "full"
    assert contract_of("auto", None, forged, identity="username") == "guard"
    assert contract_of("guard", None, forged, identity="user_id") == "guard"


def test_a_task_that_was_begun_brings_no_result_and_no_word_of_ours() -> None:
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
def test_what_has_no_name_of_a_task_is_none(named: dict[str, Any]) -> None:
    assert created_task({"task": named}) is None
    assert created_task({"resultType": "task", **named}) is None


def test_a_message_without_meta_stays_as_it_is() -> None:
    assert without_our_words({"content": []}) == {"content": []}
    assert without_our_words({"_meta": None}) == {"_meta": None}
