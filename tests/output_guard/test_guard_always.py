"""Properties that hold for every input, tried on inputs that try to break them."""

import json
import math
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pybase64
import pytest
from guard_samples import ENCODINGS, FORMATS, PDF, b64, noise
from guard_shelf import SCOPE, Refusing, Shelf, guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.files.my_files import Library
from runner.files.sessions import Sessions
from runner.formats.magic import identify
from runner.output_guard.config import GuardConfig
from runner.output_guard.guard import GuardedCall, OutputGuard
from runner.output_guard.json_view import text_of
from runner.output_guard.message import guard_message
from runner.output_guard.pipeline import Guarded
from runner.output_guard.storing import Keeper
from runner.store.store import BlobStore

# Examples are the same in each run, so that a change is judged by what it changes.
RUN = re.compile(r"[A-Za-z0-9+/_-]{1000,}")
LIMIT = 50_000


def leaks(text: str) -> list[str]:
    """Return the beginnings of base64 in `text` that decodes to a known binary."""
    found = []
    for run in RUN.findall(text):
        if len(run) % 4 == 1:
            # No base64 has this length, though the decoder takes it.
            continue
        body = run.replace("-", "+").replace("_", "/")
        try:
            content = pybase64.b64decode(body + "=" * (-len(body) % 4), validate=True)
        except ValueError:
            continue
        found += [run[:40]] if identify(content) else []
    return found


def strict(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    text.encode()
    return text


FILES = {name: make() for name, (_, make) in FORMATS.items() if len(make()) < 6000}
# By name, so that a failure can be printed.
WRITTEN = st.builds(
    lambda encoding, name: ENCODINGS[encoding](FILES[name]),
    st.sampled_from(list(ENCODINGS)),
    st.sampled_from(list(FILES)),
)
GLUE = st.sampled_from(
    ["", " ", "x", "\n", "=", "==", "/", "_", "\\", '"', ",", "{", "data:a/b;base64,", "\ud83d"]
)
MIXED = st.builds("".join, st.lists(GLUE | WRITTEN | st.text(max_size=20), max_size=6))
NESTED_TEXT = st.builds(lambda value: json.dumps(json.dumps({"a": value})), MIXED)
BIG = st.builds(lambda unit, count: unit * count, st.text(max_size=5), st.integers(0, 30_000))
NUMBERS = st.integers() | st.just(10**4000) | st.floats() | st.just(-math.inf)
# As Node writes a buffer.
NUMBERED = st.sampled_from(list(FILES)).map(lambda name: list(FILES[name]))
DEEP = st.integers(90, 3000).map(
    lambda depth: json.loads("[" * depth + "]" * depth) if depth < 900 else "[" * depth
)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text() | MIXED | NESTED_TEXT | BIG
KEYS = st.text(max_size=10) | st.sampled_from(
    ["type", "data", "text", "blob", "resource", "content", b64(PDF)]
)
KINDS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["image", "audio", "resource", "text"]),
        "data": MIXED,
        "mimeType": st.text(max_size=9),
    }
)
ANYTHING = st.recursive(
    PLAIN | KINDS | NUMBERED | DEEP | st.binary(max_size=50),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=5) | st.tuples(inner),
    max_leaves=15,
)
# A result on the wire is parsed JSON.
PARSED = st.recursive(
    PLAIN | KINDS | NUMBERED | DEEP,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=15,
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(ANYTHING, st.sampled_from(["shelf", "none", "full"]))
def test_any_input_gives_little_text_and_no_binary(value: Any, kind: str) -> None:
    store = {"shelf": Shelf(), "none": None, "full": Refusing()}[kind]

    done = guarded(value, store=store)

    assert len(text_of(done.value)) <= LIMIT
    assert leaks(strict(done.value) if not isinstance(done.value, str) else done.value) == []


@settings(max_examples=40, deadline=None, derandomize=True)
@given(ANYTHING, st.integers(1, 3000))
def test_any_limit_holds(value: Any, limit: int) -> None:
    done = guarded(value, store=Shelf(), max_observation_chars=limit)

    assert len(text_of(done.value)) <= limit


BLOCKS = (
    KINDS
    | st.builds(lambda text: {"type": "text", "text": text}, MIXED | NESTED_TEXT | BIG)
    | st.builds(
        lambda uri, text, key: {"type": "resource", "resource": {"uri": f"t://{uri}", key: text}},
        st.integers(),
        MIXED,
        st.sampled_from(["blob", "text"]),
    )
)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.lists(BLOCKS, max_size=4), st.dictionaries(KEYS, ANYTHING, max_size=3), st.booleans())
def test_a_whole_message_is_within_the_limit_and_free_of_files(
    content: list[Any], structured: dict[str, Any], stored: bool
) -> None:
    message = {"content": content, "structuredContent": structured}

    async def run() -> Guarded:
        store = Shelf() if stored else None
        keeper = Keeper(config=GuardConfig(), store=store, scope=SCOPE, tool="t")
        return await guard_message(message, keeper)

    value = anyio.run(run).value

    # A block that had no text gets none.
    texts = [block.get("text", "") for block in value["content"] if block["type"] == "text"]
    strict(value)
    assert isinstance(value["structuredContent"], dict)
    assert all(isinstance(text, str) for text in texts)
    assert sum(map(len, texts)) + len(strict(value["structuredContent"])) <= LIMIT
    assert [found for text in texts for found in leaks(text)] == []
    assert leaks(strict(value["structuredContent"])) == []


SCHEMAS = st.sampled_from(
    [
        {"type": "object"},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
        {"type": "object", "properties": {"content": {"type": "string"}}, "required": ["content"]},
    ]
)
MANY = st.builds(
    lambda count, text: {f"key {n}": text for n in range(count)}, st.integers(0, 900), st.text(max_size=399)
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(BLOCKS, max_size=3),
    st.dictionaries(KEYS, PARSED, max_size=3) | MANY,
    st.none() | SCHEMAS,
    st.booleans(),
)
def test_host_answers_obey_guard_with_schema_and_as_error(
    content: list[Any], structured: dict[str, Any], schema: dict[str, Any] | None, failed: bool
) -> None:
    message = {"content": content, "structuredContent": structured, "isError": failed, "_meta": {"own": 1}}
    files = Library(store=BlobStore(), sessions=Sessions(Path("nowhere"))).of("alice")
    call = GuardedCall(tool="t", server="s", files=files, schema=schema)

    async def run() -> dict[str, Any]:
        return await OutputGuard(GuardConfig()).message(message, call, media_stay=False)

    made = anyio.run(run)

    shown = [block.get("text", "") for block in made["content"] if block["type"] == "text"]
    if "structuredContent" in made:
        assert isinstance(made["structuredContent"], dict)
        shown.append(strict(made["structuredContent"]))
    assert sum(map(len, shown)) <= LIMIT
    assert [found for text in shown for found in leaks(text)] == []
    # Clients throw at a result without the content that its schema promises, unless it is an error.
    assert made["isError"] == (failed or "structuredContent" not in made)
    assert made["_meta"] == {"own": 1}


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=5), MIXED, max_size=3))
def test_json_text_stays_json_text(value: dict[str, Any]) -> None:
    clean = {key: item.encode("utf-8", "replace").decode() for key, item in value.items()}

    done = guarded(json.dumps(clean), store=Shelf()).value

    json.loads(text_of(done))


def cycle() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


MONSTERS: dict[str, Any] = {
    "a cycle": cycle(),
    "an object in a cycle": {"self": cycle()},
    "open brackets": ["[" * 200_000],
    "deep JSON text": "[" * 200_000 + "]" * 200_000,
    "wide JSON text": "[" + "[]," * 200_000 + "[]]",
    "a long name": {"a" * 200_000: 1},
    "names and items of odd types": {n: {(1, 2): {3.5}} for n in range(50)},
    "huge numbers": {"n": 10**9000, "m": -(10**4000)},
    "halves of characters": ["\ud800" * 20_000],
    "wide and empty": [[[]] * 99] * 990,
    "a block in a block": {"type": "image", "data": {"type": "image"}, "mimeType": 5},
    "no value at all": object(),
    "bytes": [b"\0" * 100_000],
}


@pytest.mark.parametrize("name", MONSTERS)
@pytest.mark.parametrize("stored", [True, False])
def test_extreme_values_stay_within_the_limit(name: str, stored: bool) -> None:
    done = guarded(MONSTERS[name], store=Shelf() if stored else None)

    assert len(text_of(done.value)) <= LIMIT
    strict(done.value)


HUGE: dict[str, Callable[[], Any]] = {
    "one file": lambda: {"d": b64(PDF + noise(15_000_000))},
    "wrapped": lambda: {"d": ENCODINGS["in lines"](PDF + noise(12_000_000))},
    "small files": lambda: [b64(PDF) for _ in range(7000)],
    "texts": lambda: ["lorem ipsum " * 90] * 18_000,
    "long texts": lambda: ['lorem "ipsum" ' * 1500] * 950,
    "one text": lambda: "lorem ipsum dolor " * 1_100_000,
    "JSON text": lambda: json.dumps([b64(PDF + noise(1_000_000)) for _ in range(12)]),
}


@pytest.mark.release
@pytest.mark.parametrize("name", HUGE)
def test_memory_stays_below_three_times_the_result(name: str) -> None:
    value = HUGE[name]()
    size = len(text_of(value))
    store = Shelf()

    tracemalloc.start()
    done = guarded(value, store=store)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert size > 15_000_000
    assert len(text_of(done.value)) <= LIMIT
    # The result itself is there already, and counts.
    assert (peak + size) / size < 3
