"""Long text and large structures are stored and described; what a model reads never exceeds the limit."""

import json
from typing import Any

import pytest
from guard_shelf import Refusing, Shelf, clamped, guarded

from runner.output_guard.json_view import text_of

LONG = "word " * 2001


def test_text_above_the_limit_is_stored_as_text_and_previewed(shelf: Shelf) -> None:
    """Source: S2-32, S4-13, S4-15 and S4-16."""
    value = guarded({"note": "n", "log": LONG}, store=shelf).value

    assert shelf.contents == [LONG.encode()]
    assert (shelf.records[0].mime, shelf.records[0].name) == ("text/plain", "tool-output.txt")
    assert value["note"] == "n"
    assert value["log"]["summary"] == "Large text stored as artifact (10005 chars)"
    assert value["log"]["preview"] == LONG[:200] + "..."
    assert shelf.records[0].id in value["log"]["read"]


@pytest.mark.parametrize(("chars", "stays"), [(10_000, True), (10_001, False)])
def test_the_limit_is_in_characters_and_inclusive(shelf: Shelf, chars: int, stays: bool) -> None:
    value = guarded("é" * chars, store=shelf).value

    assert (value == "é" * chars) == stays
    assert [record.size for record in shelf.records] == ([] if stays else [2 * chars])


def test_long_text_stays_where_the_net_is_switched_off(shelf: Shelf) -> None:
    assert guarded("x" * 20_000, store=shelf, auto_artifact_large_content=False).value == "x" * 20_000


@pytest.mark.parametrize(
    "result",
    [
        {"rows": [{"v": "x" * 9000}] * 50, "title": "kept"},
        {"title": "kept", **{f"k{n}": "x" * 9000 for n in range(20)}},
        {"title": "kept", "deep": {"er": {"rows": [{"v": n, "w": "a b c"} for n in range(5000)]}}},
        {"title": "kept", "numbers": list(range(30_000))},
    ],
    ids=["many rows", "many fields", "deep rows", "numbers"],
)
def test_many_medium_values_are_stored_and_small_ones_stay(shelf: Shelf, result: Any) -> None:
    value = guarded(result, store=shelf).value

    assert len(text_of(value)) <= 50_000
    assert value["title"] == "kept"
    assert len(shelf.records) >= 1


def test_stored_structure_equals_the_original(shelf: Shelf) -> None:
    rows = [{"id": n, "name": f"row {n}"} for n in range(5000)]

    value = guarded({"rows": rows}, store=shelf).value

    assert json.loads(shelf.contents[0]) == rows
    assert value["rows"]["shape"] == {"kind": "table", "rows": 5000, "columns": ["id", "name"]}


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("a,b,c\n" + "1,2,3\n" * 4000, {"kind": "table", "rows": 4000, "columns": ["a", "b", "c"]}),
        # As many rows as a reader of CSV finds: not one for each line.
        ("a,b\n" + '1,"two\nlines"\n\n' * 4000, {"kind": "table", "rows": 4000, "columns": ["a", "b"]}),
        (
            "a,b\n" + "1,2\n" * 2_500_000,
            {"kind": "table", "rows": 2_500_000, "rows_estimated": True, "columns": ["a", "b"]},
        ),
        (
            'a,b\n1,2\n3,4\n5,"' + "a long field\n" * 4000 + '"\n',
            {"kind": "table", "rows": 3, "columns": ["a", "b"]},
        ),
        ('a,b\n1,2\n3,"not\n' * 4000, {"kind": "text", "lines": 12_000}),
        ("a\tb\n" + "1\t2\n" * 4000, {"kind": "table", "rows": 4000, "columns": ["a", "b"]}),
        (json.dumps({"k": 1, "t": "x y " * 3000}), {"kind": "object", "keys": ["k", "t"], "key_count": 2}),
        (json.dumps([[1, 2]] * 3000), {"kind": "table", "rows": 3000, "width": 2}),
        ("some line\n" * 2000, {"kind": "text", "lines": 2000}),
    ],
)
def test_reference_has_the_shape_of_its_content(shelf: Shelf, text: str, shape: Any) -> None:
    """Source: S4-75 and S4-76."""
    assert guarded(text, store=shelf).value["shape"] == shape


def test_file_count_above_store_limit_is_stored_in_larger_parts(shelf: Shelf) -> None:
    block = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}

    value = guarded({"note": "kept", "images": [block] * 5000}, store=shelf).value

    assert value["note"] == "kept"
    assert len(json.loads(shelf.contents[-1])) == 5000
    assert len(shelf.records) <= 102


def test_a_structure_of_too_many_items_is_stored_unparsed(shelf: Shelf) -> None:
    rows = [[n, n] for n in range(40_000)]

    done = guarded(rows, store=shelf)

    assert json.loads(shelf.contents[0]) == rows
    assert done.value["artifact"]["id"] == shelf.records[0].id


def test_a_structure_nested_too_deep_is_stored_whole(shelf: Shelf) -> None:
    deep: Any = "bottom"
    for _ in range(900):
        deep = [deep]

    value = guarded({"a": deep}, store=shelf).value

    assert shelf.contents[0] == b'{"a": ' + b"[" * 900 + b'"bottom"' + b"]" * 900 + b"}"
    assert value["artifact"]["id"] == shelf.records[0].id


def test_an_observation_within_the_limit_is_left_alone(shelf: Shelf) -> None:
    value = {"a": 1}

    done = clamped(value, store=shelf)

    assert done.value is value
    assert (done.stored, done.events, done.warnings) == ((), (), ())


def test_an_observation_above_the_limit_is_stored_and_referenced(shelf: Shelf) -> None:
    """Source: S4-46 and S4-90."""
    value = {"t": "x" * 60_000}

    done = clamped(value, store=shelf)

    assert json.loads(shelf.contents[0]) == value
    assert {"artifact", "summary", "preview"} <= set(done.value)
    assert [(event["type"], event["method"]) for event in done.events] == [
        ("observation_clamped", "artifact")
    ]


@pytest.mark.parametrize("store", [None, Refusing()], ids=["no store", "a full store"])
@pytest.mark.parametrize("observation", [{"t": "x" * 60_000}, "😀" * 60_000, [1.5] * 60_000])
def test_observation_without_store_room_is_shortened(store: Shelf | None, observation: Any) -> None:
    """Source: S4-91."""
    done = clamped(observation, store=store)

    text = json.dumps(done.value, ensure_ascii=False)
    text.encode()
    assert 40_000 < len(text) <= 50_000
    assert "truncated" in text
    assert [event["method"] for event in done.events] == ["truncate"]
    assert any("truncated" in warning for warning in done.warnings)


@pytest.mark.parametrize("limit", [1, 10, 20, 60, 100, 150, 300, 700, 2000])
@pytest.mark.parametrize("stored", [True, False])
def test_no_limit_is_too_small(shelf: Shelf, limit: int, stored: bool) -> None:
    value = {"quotes": '"\n\\' * 2000}

    done = clamped(value, store=shelf if stored else None, max_observation_chars=limit)

    assert len(text_of(done.value)) <= limit


@pytest.mark.parametrize("store", [None, Refusing()], ids=["no store", "a full store"])
def test_long_text_without_store_is_cut_with_a_note(store: Shelf | None) -> None:
    """Source: S4-91 and S4-107."""
    done = guarded({"log": LONG, "json": json.dumps(["x y"] * 4000)}, store=store)

    assert done.value["log"].startswith(LONG[:10_000])
    assert "[truncated: 5 of 10005 characters" in done.value["log"]
    assert done.value["json"]["truncated"] is True
    assert len(done.warnings) == 2


def test_limits_can_differ_by_server_and_by_tool(shelf: Shelf) -> None:
    limits = {
        "tools": {"s.t": {"max_observation_chars": 3000}, "s.*": {"max_observation_chars": 2000}},
    }
    value = {f"k{n}": "x y " * 150 for n in range(40)}

    sizes = [
        len(text_of(guarded(value, store=shelf, server=server, tool=tool, **limits).value))
        for server, tool in (("s", "t"), ("s", "u"), ("x", "u"))
    ]

    assert sizes[0] <= 3000
    assert sizes[1] <= 2000
    assert sizes[2] == len(text_of(value))
