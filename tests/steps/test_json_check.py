"""Values that JSON does not have, found anywhere in the params of a request."""

import math
from typing import Any

import pytest

from runner.errors import CallError, Code
from runner.steps.inputs import check_json


def nested(depth: int, inmost: Any) -> Any:
    for _ in range(depth):
        inmost = [inmost]
    return inmost


@pytest.mark.parametrize(
    ("params", "where"),
    [
        ({"arguments": {"x": math.nan}}, "x is NaN"),
        ({"name": "t", "arguments": {"x": [1, {}, {"y": [], "z": -math.inf}]}}, "x[2].z is -Infinity"),
        ({"arguments": {}, "_meta": {"arguments": [math.inf]}}, "_meta.arguments[0] is Infinity"),
    ],
)
def test_invalid_number_named_by_its_place(params: dict[str, Any], where: str) -> None:
    with pytest.raises(CallError) as refused:
        check_json(params)

    assert refused.value.code is Code.E_INVALID_ARGUMENT
    assert refused.value.message == f"{where}, which is not a JSON value; send a finite number, null or text"
    assert refused.value.details == {"argument": where.split(" ")[0]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (nested(50_000, math.nan), "… is NaN, which is not a JSON value"),
        ({"k" * 1_000_000: [*[0] * 100_000, math.nan]}, "… is NaN, which is not a JSON value"),
        (nested(100_000, 1), "cannot be written as JSON"),
        (10**5000, "cannot be written as JSON"),
    ],
    ids=["deep", "wide", "too deep", "too long"],
)
def test_deep_or_long_value_refused_in_a_sentence(arguments: Any, words: str) -> None:
    with pytest.raises(CallError) as refused:
        check_json({"arguments": {"x": arguments}})

    assert words in refused.value.message
    assert len(refused.value.message) < 500


def test_json_values_pass() -> None:
    check_json({"arguments": {"x": [1, 1.5, 1e308, None, True, "NaN", "\ud800"]}})
