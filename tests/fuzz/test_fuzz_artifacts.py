"""Whatever a result says of files, only plain files of the home are kept, in bounds; no path leaves."""

import asyncio
import base64
import json
from datetime import datetime
from typing import Any

from fuzz_tree import SECRET, Tree, paths, plant
from hypothesis import example, given
from hypothesis import strategies as st
from result_fakes import Shelf, contract_like, json_values

from runner.artifacts.accept import Processed, process_artifacts
from runner.artifacts.deferred import deferral
from runner.contract.display import decide
from runner.contract.interface_events import announce
from runner.contract.normalise import Normalised, normalise
from runner.steps.client_message import referenced

TREE: Tree = plant()
INLINE, LARGEST = 1000, 100_000

_b64 = st.one_of(
    st.binary(max_size=60).map(lambda content: base64.b64encode(content).decode()),
    st.sampled_from(
        ("aGk=", "aGk", "a", "====", "data:text/plain;base64,aGk=", "aGk=\n", "_-_-", "A" * 200_000)
    ),
)
_name = st.sampled_from(
    ("a.txt", "a.TXT", "../a", "", "a" * 300, "\ud800", "a\0b", "nul", "x/../y.csv")
) | st.text(st.characters(), max_size=10)
_hint = st.one_of(
    json_values, st.sampled_from(("image/png", "text/html; charset=x", "a/b\r\nc", "draft", 72, -1))
)
_entry = st.fixed_dictionaries(
    {},
    optional={
        "name": _name | json_values,
        "path": paths(TREE) | paths(TREE) | json_values,
        "b64": _b64 | json_values,
        "mime": _hint,
        "size": _hint,
        "s3_ref": _hint,
        "uri": _hint,
        "type": _hint,
        "reason": _hint,
        "expires_hours": st.floats() | st.integers() | _hint,
        "next_actions": st.lists(_hint, max_size=3),
        "status": _hint,
        "description": _hint,
    },
)
# One that is right in all but its path, so that most of the work is really done.
_plain = st.builds(lambda name, path: {"name": name, "path": path, "mime": "text/plain"}, _name, paths(TREE))
_entries = st.lists(_plain | _plain | _entry | contract_like, max_size=6)
_envelope = st.fixed_dictionaries(
    {"results": json_values},
    optional={
        "artifacts": _entries | json_values,
        "deferred_artifacts": _entries | json_values,
        "returned_file_names": st.lists(_name | json_values, max_size=3),
        "returned_file_contents": st.lists(_b64 | _entry, max_size=3),
        "display": st.fixed_dictionaries(
            {},
            optional={
                "primary_file": _name,
                "storage_action": st.sampled_from(("temporary", "x")),
                "x": _hint,
            },
        ),
        "canvas": json_values,
        "links": json_values,
        "meta_data": json_values,
        "retryable": json_values,
        "incomplete": json_values,
    },
)
_blob = st.fixed_dictionaries(
    {"type": st.just("resource")},
    optional={"resource": st.fixed_dictionaries({}, optional={"blob": _b64, "uri": _name})},
)
_block = _blob | st.fixed_dictionaries({"type": st.sampled_from(("image", "audio", "text", "x"))}, optional={
    "data": _b64, "mimeType": _hint, "text": _name}) | contract_like  # fmt: skip
wires = st.fixed_dictionaries(
    {},
    optional={
        "structuredContent": _envelope | _envelope | contract_like,
        "content": st.lists(_block, max_size=3) | json_values,
        "isError": st.booleans(),
    },
)


def taken(normalised: Normalised, *, with_home: bool) -> tuple[Processed, Shelf]:
    shelf = Shelf()
    processed = asyncio.run(
        process_artifacts(
            normalised,
            home=TREE.home if with_home else None,
            inline_max_bytes=INLINE,
            max_bytes=LARGEST,
            keep=shelf,
        )
    )
    return processed, shelf


@given(wires, st.booleans(), st.booleans())
def test_fuzzed_result_stores_own_files_and_exposes_no_path(
    wire: dict[str, Any], wrapped: bool, with_home: bool
) -> None:
    normalised = normalise(wire, wrapped=wrapped)

    processed, shelf = taken(normalised, with_home=with_home)

    assert [name for name, content in shelf.files.items() if SECRET in content] == []
    assert sum(file.size for file in (*processed.files, *processed.deferred)) <= LARGEST
    value = json.loads(json.dumps(processed.value, allow_nan=False, ensure_ascii=False).encode())
    files = [*value.get("artifacts", ()), *value.get("deferred_artifacts", ())]
    assert [item for item in files if "path" in item] == []
    inlined = [len(base64.b64decode(item["b64"])) for item in files if "b64" in item]
    assert sum(inlined) <= INLINE
    assert len(processed.files) == len(value.get("artifacts", ()))
    shown = referenced(processed)
    for event in announce(shown, decide(shown)):
        json.dumps(event, allow_nan=False, ensure_ascii=False).encode()


@given(st.lists(_plain, min_size=1, max_size=12))
def test_files_that_are_accepted_are_the_homes_own(entries: list[dict[str, Any]]) -> None:
    normalised = normalise({"structuredContent": {"results": None, "artifacts": entries}}, wrapped=False)

    processed, shelf = taken(normalised, with_home=True)

    assert set(shelf.files.values()) <= {b"mine"}
    assert len(processed.files) + len(processed.errors) == len(entries)
    names = [file.name for file in processed.files]
    assert len(set(names)) == len(names)


@given(_entry)
@example({"expires_hours": 2.674700098901952e-200})
def test_deferral_never_ends_before_it_starts(entry: dict[str, Any]) -> None:
    now = datetime(2024, 8, 27).astimezone()

    assert deferral({"name": "x", **entry}, now=now).expires_at >= now


PROPERTIES = (
    test_fuzzed_result_stores_own_files_and_exposes_no_path,
    test_files_that_are_accepted_are_the_homes_own,
    test_deferral_never_ends_before_it_starts,
)
