"""Output schemas are written by strangers: they have the host read nothing, and take none of its time."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_time import cpu_s

from runner.output_guard.schema_fit import satisfies

DRAFT = "http://json-schema.org/draft-07/schema#"


@pytest.fixture
def schema_server() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a server, and the paths that it received."""
    paths: list[str] = []

    class Taker(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Discard the log line."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Taker) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/x", paths
        server.shutdown()


def test_no_address_of_a_schema_is_asked(schema_server: tuple[str, list[str]]) -> None:
    url, paths = schema_server

    # As for any schema that cannot be checked: the client cannot either.
    assert satisfies({"s": 1}, {"$ref": url})
    assert paths == []


def test_no_file_that_a_schema_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"properties": {"s": {"const": "right"}}}')
    schema = {"$ref": (tmp_path / "schema.json").as_uri()}

    # It would tell what the file says.
    assert satisfies({"s": "right"}, schema) == satisfies({"s": "wrong"}, schema)


def doubling(depth: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(depth)
    }
    return {"$defs": {**definitions, f"d{depth}": {"type": "object"}}, "$ref": "#/$defs/d0"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        # Each of them would take longer than anybody waits for a test.
        ({"properties": {"s": {"pattern": "^(a|a)+$"}}}, {"s": "a" * 60 + "!"}),
        ({"patternProperties": {"^(a|a)+$": {"type": "string"}}}, {"a" * 60 + "!": "x"}),
        # Its validator is another one there, and where a reference leads back to what names a dialect.
        ({"properties": {"s": {"$schema": DRAFT, "pattern": "^(a|a)+$"}}}, {"s": "a" * 60 + "!"}),
        (
            {"$schema": DRAFT, "properties": {"s": {"$ref": "#"}, "t": {"pattern": "^(a|a)+$"}}},
            {"s": {"t": "a" * 60 + "!"}},
        ),
        ({"$ref": "http://json-schema.org/draft-04/schema#"}, {"enum": [{"n": n} for n in range(20_000)]}),
        (doubling(60), {"s": "x"}),
        ({"properties": {"s": {"uniqueItems": True}}}, {"s": [{"n": n} for n in range(20_000)]}),
        # A validator searches with the expressions of another keyword, before that one is followed.
        (
            {"additionalProperties": False, "patternProperties": {"^(a|a)+$": {}}},
            {"a" * 60 + "!": 1},
        ),
        (
            {"unevaluatedProperties": False, "allOf": [{"patternProperties": {"^(a|a)+$": {}}}]},
            {"a" * 60 + "!": 1},
        ),
        ({"properties": {"s": {"items": {}}}}, {"s": [1] * 5_000_000}),
        ({"properties": {"s": {"items": {"enum": [str(n) for n in range(200_000)]}}}}, {"s": ["x"] * 9000}),
        ({"properties": {"s": {"items": {"const": [1] * 500_000}}}}, {"s": [[1] * 500_000] * 50}),
        (
            {"properties": {"s": {"items": {"properties": {str(n): {} for n in range(20_000)}}}}},
            {"s": [{}] * 9000},
        ),
        # The message of each error holds the value, written out.
        ({"properties": {"s": {"anyOf": [{"type": "null"}] * 5000}}}, {"s": "x" * 5_000_000}),
        # A reference by name: all of the schema is searched for it.
        (
            {
                "$defs": {f"d{n}": {"$anchor": f"d{n}"} for n in range(20_000)},
                "properties": {"s": {"items": {"$ref": "#d19999"}}},
            },
            {"s": [1] * 5000},
        ),
    ],
)
def test_schema_too_slow_to_check_does_not_fit(schema: dict[str, Any], value: dict[str, Any]) -> None:
    fits: list[bool] = []

    assert cpu_s(lambda: fits.append(satisfies(value, schema))) < 1
    assert fits == [False]


@pytest.mark.parametrize("schema", [{"type": 7}, {"properties": 5}, {"multipleOf": 0}, {"$ref": "#/nowhere"}])
def test_invalid_schema_refuses_nothing(schema: dict[str, Any]) -> None:
    assert satisfies({"s": 1}, schema)


def test_an_ordinary_schema_is_followed() -> None:
    schema = {**doubling(3), "properties": {"s": {"type": "string"}}, "required": ["s"]}

    assert satisfies({"s": "x"}, schema)
    assert not satisfies({"s": 1}, schema)
    assert not satisfies({}, schema)
