"""Rules on tools and pages as clients get them."""

import time
from typing import Any

import pytest

from runner.check.dry_run import MALFORMED, example
from runner.check.source import SourceFile
from runner.check.wire_rules import page_faults, tool_faults

SOURCE = SourceFile("@mcp.tool\ndef show(\n    text,\n    ctx: Context,\n):\n    pass\n")


def of_tool(**more: Any) -> list[tuple[int, str]]:
    tool = {"name": "show", "description": "Show.", "inputSchema": {}, **more}
    return [(finding.line, finding.rule) for finding in tool_faults(tool, SOURCE)]


def of_page(html: str, meta: dict[str, Any] | None = None) -> list[str]:
    page = {"uri": "ui://a", "mimeType": "text/html;profile=mcp-app", "text": html, "_meta": meta or {}}
    return [finding.message.split()[3].rstrip(",") for finding in page_faults(page, [], 1)]


@pytest.mark.parametrize(
    ("schema", "rules"),
    [
        ({"type": "string"}, []),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, []),
        ({}, []),
        ({"$ref": "#/$defs/Name"}, []),
        ({"$ref": "#/$defs/Level"}, ["username-type"]),
        ({"type": "integer"}, ["username-type"]),
        ({"type": "string", "format": "uuid"}, ["username-type"]),
        ({"anyOf": [{"enum": ["a"], "type": "string"}, {"type": "null"}]}, ["username-type"]),
    ],
)
def test_username_needs_type_that_accepts_text(schema: dict[str, Any], rules: list[str]) -> None:
    defs = {"Name": {"type": "string"}, "Level": {"type": "string", "enum": ["a"]}}
    found = of_tool(inputSchema={"properties": {"username": schema}, "$defs": defs})

    assert [rule for _, rule in found] == rules


def test_argument_found_at_its_own_line() -> None:
    properties: dict[str, Any] = {"text": {}, "filenames": {"type": "array"}}

    assert of_tool(inputSchema={"properties": properties}) == [
        (3, "unannotated-parameter"),
        (2, "filename-without-username"),
    ]
    assert of_tool(description="") == [(2, "missing-docstring")]


@pytest.mark.parametrize(
    ("meta", "rules"),
    [
        ({"ui": {"resourceUri": "ui://a", "visibility": ["model"]}}, []),
        ({"ui": {"resourceUri": "ui://a"}}, ["widget-visibility"]),
        ({"ui/resourceUri": "ui://a"}, ["widget-visibility"]),
        ({"openai/outputTemplate": "ui://a"}, []),
        ({"openai/widgetCSP": {"connect_domains": []}}, ["widget-csp-on-tool"]),
        ({"ui": {"permissions": {"camera": {}}}}, ["widget-csp-on-tool"]),
        ({"openai/toolInvocation/invoked": "x"}, []),
        ({"openai/toolInvocation/invoked": ""}, ["widget-invocation-text"]),
        ({"openai/toolInvocation/invoking": "x" * 65}, ["widget-invocation-text"]),
        ({"ui": 5}, []),
        ({"ui": []}, []),
        ({"openai/toolInvocation/invoked": 5}, []),
        (None, []),
    ],
)
def test_tool_metadata_is_checked(meta: object, rules: list[str]) -> None:
    assert [rule for _, rule in of_tool(_meta=meta)] == rules


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        ("<p>text https://e.org</p><a href='https://e.org'>link</a>", []),
        ("<script>import 'https://e.org/a.js'</script>", ["https://e.org/a.js"]),
        ('<script type=module>import {a} from "https://e.org/a.js"</script>', ["https://e.org/a.js"]),
        ("<script>import('https://e.org/a.js')</script>", ["https://e.org/a.js"]),
        ("<script>fetch('https://e.org/data')</script>", []),
        ("<script>const from = 'https://e.org'</script>", []),
        ("<SCRIPT SRC='HTTPS://E.ORG/a.js'></SCRIPT>", ["HTTPS://E.ORG/a.js"]),
        ("<script src='local.js'></script><script src='data:text/javascript,1'></script>", []),
        ("<link rel='preload stylesheet' href='//e.org/a.css'>", ["//e.org/a.css"]),
        ("<link href='//e.org/a.css' rel=stylesheet>", ["//e.org/a.css"]),
        ("<link rel=icon href='https://e.org/i.png'>", []),
        ("<style>@font-face { src: url( 'https://e.org/f.woff2' ) }</style>", ["https://e.org/f.woff2"]),
        ("<p style='background: url(https://e.org/b.png)'>x</p>", ["https://e.org/b.png"]),
        ("<style>p { color: red }</style>", []),
        ("<script>/* url(https://e.org) */</script>", []),
    ],
)
def test_code_from_undeclared_host_is_found(html: str, loads: list[str]) -> None:
    declared = {"ui": {"csp": {"resourceDomains": ["https://e.org"]}}}

    assert of_page(html) == loads
    assert of_page(html, declared) == []


@pytest.mark.parametrize(
    ("host", "covered"),
    [
        ("cdn.example.com", True),
        ("a.b.example.com", True),
        ("example.com", False),
        ("evilexample.com", False),
    ],
)
def test_wildcard_covers_hosts_below_it(host: str, covered: bool) -> None:
    html = f"<script src=https://{host}/a.js></script>"

    assert (of_page(html, {"openai/widgetCSP": {"resource_domains": ["*.Example.com"]}}) == []) is covered


@pytest.mark.parametrize(
    ("mime", "meta", "rules"),
    [
        ("text/html+skybridge", {}, []),
        ("text/html; profile=mcp-app", {}, ["widget-mime"]),
        ("text/html+skybridge", {"openai/outputTemplate": "ui://a"}, []),
        ("text/html+skybridge", {"ui/resourceUri": "ui://a"}, ["widget-mime"]),
        ("text/html+skybridge", {"ui": {"resourceUri": "ui://a"}}, ["widget-mime"]),
    ],
)
def test_page_needs_media_type_of_its_hosts(mime: str, meta: dict[str, Any], rules: list[str]) -> None:
    found = page_faults({"uri": "ui://a", "mimeType": mime, "text": "<p>"}, [{"_meta": meta}], 1)

    assert [finding.rule for finding in found] == rules


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "example"),
        ({"type": "string", "minLength": 9}, "exampleee"),
        ({"type": "string", "maxLength": 2}, "ex"),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 7}, 8),
        ({"enum": ["b", "a"]}, "b"),
        ({"examples": [3], "type": "integer"}, 3),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"$ref": "#/$defs/T", "$defs": {"T": {"type": "array", "items": {"$ref": "#/$defs/T"}}}},
         ["example"]),
        ({"type": "object", "properties": {"filename": {}}, "required": ["filename"]},
         {"filename": "example.csv"}),
    ],
)  # fmt: skip
def test_example_satisfies_its_schema(schema: dict[str, Any], value: object) -> None:
    assert example(schema) == value


def _each_in_each(count: int) -> dict[str, Any]:
    names = [str(number) for number in range(count)]
    properties = {name: {"$ref": f"#/$defs/{name}"} for name in names}
    return {name: {"type": "object", "required": names, "properties": properties} for name in names}


# Each has a small form that is called, and one for which no machine has the memory or the time.
@pytest.mark.parametrize(
    ("small", "large"),
    [
        ({"type": "array", "minItems": 3}, {"type": "array", "minItems": 10**12}),
        ({"type": "string", "minLength": 3}, {"type": "string", "minLength": 10**12}),
        ({"default": "a" * 100}, {"type": "array", "minItems": 900, "items": {"default": "a" * 10**6}}),
        ({"$ref": "#/$defs/0", "$defs": _each_in_each(1)}, {"$ref": "#/$defs/0", "$defs": _each_in_each(10)}),
    ],
)  # fmt: skip
def test_example_of_a_huge_schema_is_refused(small: dict[str, Any], large: dict[str, Any]) -> None:
    assert example(small)
    with pytest.raises(ValueError, match="more than"):
        example(large)


@pytest.mark.parametrize(
    "schema",
    [{"type": "string", "minLength": "x"}, {"examples": {"a": 1}}, {"minimum": "7", "type": "integer"}, 7],
)
def test_example_of_no_schema_is_malformed(schema: Any) -> None:
    with pytest.raises(MALFORMED):
        example(schema)


@pytest.mark.parametrize(
    "piece",
    [
        "<style>url(" + " " * 999,
        "<script",
        "<" + " style=" * 570,
        "<link rel=stylesheet" + " rel=preload" * 99,
    ],
)
def test_page_that_repeats_a_tag_takes_no_time(piece: str) -> None:
    page = {"uri": "ui://a", "mimeType": "text/html+skybridge", "text": piece * (2**20 // len(piece))}
    began = time.process_time()
    assert list(page_faults({**page, "text": "<script src=https://a.example/a.js>" + page["text"]}, [], 1))
    assert time.process_time() - began < 3
