"""Results as tools and servers may send them: content of the protocol, our contract, and near misses."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypothesis import strategies as st
from tools.odd_results import PNG, SCHEMAS

__all__ = ["EXAMPLES", "Example"]

T = TypeVar("T")

PDF = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n" + bytes(range(256)) * 12 + b"\n%%EOF\n"
WAV = b"RIFF\x24\x08\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x44\xac\0\0\x88\x58\1\0\2\0\x10\0data\0\x08\0\0" + bytes(
    2048
)
LARGE_PNG = PNG[:-12] + b"\0\0\x24\0tEXt" + bytes(9216) + bytes(4) + PNG[-12:]
CONTENTS = [PNG, PDF, WAV, LARGE_PNG, b"", b"a,b\n1,2\n", "ä".encode("latin-1"), b"{}"]


@dataclass(frozen=True)
class Example:
    """A result of a tool.

    Attributes:
        tool: Its name.
        text: The result in JSON.
    """

    tool: str
    text: str

    def __repr__(self) -> str:
        text = self.text
        return f"{self.tool}: {text if len(text) < 3000 else text[:1500] + ' ... ' + text[-1500:]}"


def one_of(values: Sequence[T]) -> st.SearchStrategy[T]:
    """Draw one of long values, which `sampled_from` would print."""
    return st.integers(0, len(values) - 1).map(lambda index: values[index])


def written(content: bytes) -> list[str]:
    plain = base64.b64encode(content).decode()
    lines = "\n".join(plain[start : start + 76] for start in range(0, len(plain), 76))
    forms = [plain, plain.rstrip("="), base64.urlsafe_b64encode(content).decode(), lines]
    return [*forms, f"data:application/octet-stream;base64,{plain}", content.hex()]


BASE64 = one_of([base64.b64encode(each).decode() for each in CONTENTS])
ENCODED = one_of([form for each in CONTENTS for form in written(each)])
URIS = one_of(
    [
        "file:///tmp/x.csv",
        "file://@HOME@/made.csv",
        "artifact://art_0123456789ab",
        "https://example.com/a b",
        "https://example.com/ä?q=1#x",
        "ui://page.html",
        "x:y",
        "mailto:a@example.com",
        "data:text/plain,hi",
        "https://example.com/" + "q" * 9000,
    ]
)
PATHS = st.sampled_from(
    [
        "@HOME@/made.csv",
        "@HOME@/made.png",
        "@HOME@/empty",
        "@HOME@/deep/made.json",
        "@HOME@/gone",
        "/etc/passwd",
        "made.csv",
        "",
    ]
)
WORDS = st.sampled_from(
    [
        "",
        " ",
        "a",
        "hello",
        "made.csv",
        "null",
        "true",
        "3",
        "{}",
        "[]",
        "<b>",
        "\x00",
        "\x1b[2J",
        "é",
        "😀",
        "\u2028",
    ]
)
LONG = one_of(["word " * 2_500, "x" * 11_000, "a,b\n" + "1,2\n" * 3_000, "ä\n" * 6_000, "word " * 14_000])
SHORT = (
    WORDS | st.text(max_size=12) | PATHS | URIS | st.builds("see {} and {}".format, PATHS | ENCODED, WORDS)
)
# Long ones are few: what takes them out is slow. The first kind is what Hypothesis shrinks to.
TEXTS = st.integers(0, 19).flatmap(lambda number: SHORT if number < 16 else ENCODED if number < 19 else LONG)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-9, 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
MIMES = st.sampled_from(
    [
        "text/csv",
        "image/png",
        "application/pdf",
        "audio/wav",
        "IMAGE/PNG",
        "text/html; charset=utf-8",
        "",
        "x",
        "image/*",
    ]
)
NAMES = one_of(
    [
        "made.csv",
        "a.png",
        "a b.pdf",
        "../x",
        "/x/y.csv",
        "",
        ".",
        "ä.txt",
        "con.txt",
        "a/b",
        "x" * 300,
        "a\nb",
        "image_1.png",
    ]
)
KEYS = st.sampled_from(
    [
        *(
            "results",
            "result",
            "artifacts",
            "deferred_artifacts",
            "links",
            "display",
            "canvas",
            "meta_data",
            "meta-data",
        ),
        *(
            "artifact_errors",
            "incomplete",
            "retryable",
            "name",
            "path",
            "b64",
            "mime",
            "type",
            "data",
            "text",
            "blob",
        ),
        *(
            "content",
            "structuredContent",
            "isError",
            "_meta",
            "uri",
            "summary",
            "artifact",
            "s3_ref",
            "a",
            "",
            "ä",
        ),
    ]
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


def members(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            key: each if isinstance(each, st.SearchStrategy) else st.just(each)
            for key, each in required.items()
        },
        optional=optional,
    )


ANNOTATIONS = members(
    {},
    {
        "audience": st.lists(st.sampled_from(["user", "assistant"]), max_size=2),
        "priority": st.sampled_from([0, 1, 0.5]),
        "lastModified": st.just("2025-01-12T15:00:58Z"),
    },
)
PROTOCOL_META = [
    "progressToken",
    *(
        f"io.modelcontextprotocol/{key}"
        for key in ("related-task", "serverInfo", "protocolVersion", "subscriptionId")
    ),
]
META = st.dictionaries(
    st.sampled_from(["example.com/a", "a", "toolcell/result", "fastmcp", "ui", *PROTOCOL_META]),
    JSON,
    max_size=3,
)
ICONS = st.lists(
    members(
        {"src": URIS | ENCODED},
        {"mimeType": MIMES, "sizes": st.just(["48x48"]), "theme": st.sampled_from(["dark", "light"])},
    ),
    max_size=2,
)
ABOUT = {"annotations": ANNOTATIONS, "_meta": META}
RESOURCE = {"uri": URIS}
BLOCKS = st.one_of(
    members({"type": "text", "text": TEXTS}, ABOUT),
    members({"type": "text", "text": (JSON | OBJECTS).map(json.dumps)}, {}),
    members({"type": "image", "data": BASE64, "mimeType": MIMES}, ABOUT),
    members({"type": "audio", "data": BASE64, "mimeType": MIMES}, ABOUT),
    members(
        {"type": "resource_link", "uri": URIS, "name": NAMES},
        {
            **ABOUT,
            "title": TEXTS,
            "description": TEXTS,
            "mimeType": MIMES,
            "size": st.integers(0, 2**40),
            "icons": ICONS,
        },
    ),
    members(
        {
            "type": "resource",
            "resource": members({**RESOURCE, "text": TEXTS}, {"mimeType": MIMES, "_meta": META}),
        },
        ABOUT,
    ),
    members(
        {
            "type": "resource",
            "resource": members({**RESOURCE, "blob": BASE64}, {"mimeType": MIMES, "_meta": META}),
        },
        ABOUT,
    ),
)


@st.composite
def near(draw: st.DrawFn, whole: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Draw an object with one member, at any depth, left out or of another kind."""
    value: dict[str, Any] = dict(draw(whole))
    key = draw(st.sampled_from([*value, draw(KEYS)]))
    if isinstance(value.get(key), dict) and value[key] and draw(st.booleans()):
        value[key] = draw(near(st.just(value[key])))
    elif draw(st.booleans()):
        value.pop(key, None)
    else:
        value[key] = draw(JSON)
    return value


ARTIFACT = members(
    {"name": NAMES},
    {
        "b64": ENCODED,
        "path": PATHS,
        "mime": MIMES,
        "size": st.integers(0, 99),
        "category": WORDS,
        "title": TEXTS,
    },
)
LEGACY = {
    "returned_file_names": st.lists(NAMES, max_size=3),
    "returned_file_contents": st.lists(
        ENCODED | members({"name": NAMES}, {"b64": ENCODED, "path": PATHS}), max_size=3
    ),
}
CONTRACT = members(
    {"results": JSON},
    {
        "artifacts": st.lists(ARTIFACT, max_size=3),
        "deferred_artifacts": st.lists(
            members({"name": NAMES}, {"path": PATHS, "mime": MIMES, "reason": WORDS, "s3_ref": OBJECTS}),
            max_size=2,
        ),
        "links": st.lists(members({"url": URIS}, {"title": TEXTS, "name": NAMES}), max_size=2),
        "display": members(
            {},
            {
                "primary_file": NAMES,
                "order": st.lists(NAMES, max_size=3),
                "url": URIS,
                "token": WORDS,
                "mode": WORDS,
            },
        ),
        "canvas": members({}, {"url": URIS, "token": WORDS, "title": TEXTS, "height": st.integers(0, 900)}),
        "meta_data": OBJECTS,
        "meta-data": OBJECTS,
        "artifact_errors": st.lists(OBJECTS, max_size=2),
        "incomplete": st.lists(TEXTS, max_size=2),
        "retryable": st.booleans(),
        **LEGACY,
    },
)
PAYLOADS = CONTRACT | near(CONTRACT) | members({}, LEGACY) | near(members({}, LEGACY)) | OBJECTS
LONG_TEXTS = LONG | ENCODED.filter(lambda text: len(text) > 300) | one_of(["see @HOME@/made.csv " * 20])
TREE = st.recursive(
    members({"value": TEXTS}, {}),
    lambda inner: members({"value": TEXTS, "children": st.lists(inner, max_size=3)}, {}),
    max_leaves=6,
)
_BASE64_ONLY = ENCODED.filter(lambda text: not set(text) & set("-_:;,\n"))
FITTING: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "any_object": PAYLOADS,
    "typed": members(
        {"name": TEXTS.filter(lambda text: len(text) <= 20_000), "count": st.integers(0, 2**53)},
        {"rows": st.lists(OBJECTS, max_size=3), "note": st.none() | TEXTS},
    ),
    "pattern": members({"id": _BASE64_ONLY | one_of(["A" * 60_000])}, {"text": TEXTS}),
    "path": members({"path": PATHS.filter(lambda path: path.startswith(("/", "@")))}, {"b64": ENCODED}),
    "least": members({"text": LONG_TEXTS, "items": st.lists(TEXTS, min_size=3, max_size=9)}, {}),
    "set": members({"set": st.lists(TEXTS, unique=True, max_size=9)}, {}),
    "map": st.dictionaries(KEYS | TEXTS, TEXTS, max_size=5),
    "map_of_lists": st.dictionaries(
        st.sampled_from(["a", "artifacts", "results", "z"]),
        st.lists(TEXTS | st.integers(), max_size=4),
        min_size=1,
    ),
    "numbers": members(
        {"bytes": one_of([list(each) for each in CONTENTS[:3]]) | st.lists(st.integers(0, 255))}, {}
    ),
    "tuple": members({"pair": st.tuples(TEXTS, st.integers(-9, 9)).map(list)}, {}),
    "referenced": members({"tree": TREE}, {"place": members({"x": st.integers(-9, 9)}, {"y": TEXTS})}),
    "either": members({"ok": TEXTS}, {"error": OBJECTS}) | members({"error": OBJECTS}, {}),
    "one_of": members({"value": st.integers() | TEXTS.filter(bool) | st.lists(JSON, max_size=4)}, {}),
    "constants": members({"type": "image", "data": TEXTS}, {"kind": st.sampled_from(["a", "b", None])}),
    "formats": members(
        {},
        {
            "when": st.just("2025-01-12T15:00:58Z"),
            "where": one_of(["https://example.com/x", "https://example.com/" + "q" * 60_000]),
            "mail": st.just("a@example.com"),
            "bytes": BASE64,
        },
    ),
    "wrapped": members({"result": st.lists(TEXTS, max_size=5)}, {}),
    "contract": members(
        {"results": JSON},
        {
            "artifacts": st.lists(
                members({"name": NAMES.filter(bool)}, {"path": PATHS, "b64": ENCODED, "mime": MIMES}),
                max_size=3,
            ),
            "meta_data": st.dictionaries(KEYS, TEXTS | st.integers(-9, 9), max_size=3),
        },
    ),
}
assert FITTING.keys() == SCHEMAS.keys()


def examples(tools: Sequence[str]) -> st.SearchStrategy[Example]:
    @st.composite
    def one(draw: st.DrawFn) -> Example:
        tool = draw(st.sampled_from(tools))
        # A tool without a schema is called half of the time.
        tool = tool if draw(st.booleans()) else "plain"
        content = draw(st.lists(BLOCKS, max_size=3))
        result: dict[str, Any] = {"content": content}
        if tool != "plain":
            result["structuredContent"] = draw(FITTING[tool])
        elif draw(st.booleans()):
            result["structuredContent"] = draw(PAYLOADS)
        if "structuredContent" in result and draw(st.booleans()):
            result["content"] = [{"type": "text", "text": json.dumps(result["structuredContent"])}, *content]
        if draw(st.booleans()):
            result |= draw(members({}, {"isError": st.booleans(), "_meta": META}))
        if draw(st.integers(0, 3)) == 0:
            faulty = draw(st.sampled_from(["block", "other", "member", "structured"]))
            if faulty == "block":
                result["content"].insert(0, draw(near(BLOCKS)))
            elif faulty == "other":
                result["content"] = draw(st.lists(JSON, max_size=3) | JSON)
            elif faulty == "structured" and tool == "plain":
                result["structuredContent"] = draw(JSON)
            else:
                member = draw(st.sampled_from(["isError", "_meta", "resultType", "content"]))
                result[member] = draw(JSON)
        return Example(tool, json.dumps(result))

    return one()


EXAMPLES = examples(list(SCHEMAS))
"""Results of all tools, most of them valid."""
