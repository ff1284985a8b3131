"""The published contract: its words and defaults, and that whatever leaves the runner satisfies it."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from result_fakes import Shelf, contract_like, json_values

from runner.artifacts.accept import process_artifacts
from runner.contract import error_messages
from runner.contract.error_messages import RefusedFile
from runner.contract.limit_errors import over_limit
from runner.contract.models import (
    CONTRACT_URI,
    Artifact,
    ArtifactError,
    Canvas,
    DeferredArtifact,
    Display,
    ErrorEnvelope,
    Result,
    contract_schema,
)
from runner.contract.normalise import normalise
from runner.errors import CallError
from sandbox.deadlines import Deadlines
from sandbox.outcome import Reached

DEADLINES = Deadlines(idle_s=30, total_s=600)
VALIDATOR = jsonschema.Draft202012Validator(contract_schema())
LARGEST = 2**60

SIMPLE = {"results": {"expression": "234*97", "result": 22698}}
REPORT = {
    "results": {"summary": "Report generated"},
    "meta_data": {"rows": 42, "elapsed_ms": 120},
    "artifacts": [
        {"name": "report.html", "b64": "PGgxPg==", "mime": "text/html", "size": 12345},
        {"name": "chart.png", "b64": "aGk=", "mime": "image/png", "size": 34567},
    ],
    "display": {
        "open_canvas": True,
        "primary_file": "report.html",
        "mode": "replace",
        "viewer_hint": "html",
    },
}
LEGACY = {
    "results": "Generated embeddings (see files)",
    "returned_file_names": ["vec1.json", "vec2.json"],
    "returned_file_contents": ["aGk=", "aGk="],
    "meta_data": {"dimension": 1536, "chunks": 2},
}
DASHBOARD = {
    "results": {"status": "opened"},
    "canvas": {
        "open": True,
        "id": "monitor-42",
        "persistence": "session",
        "type": "iframe",
        "url": "https://mcp.example.com/dash?session=abc",
        "token": "<capability-token>",
        "title": "Live Monitor",
    },
}
STORED = {
    "results": {"summary": "Analysis completed successfully"},
    "artifacts": [
        {
            "name": "quarterly_report.html",
            "s3_ref": {
                "bucket": "user-storage",
                "key": "alice/artifacts/20240827/quarterly_report.html",
                "internal": True,
            },
            "mime": "text/html",
            "size": 524288000,
            "description": "Q3 financial analysis report",
            "category": "report",
            "auto_open": True,
        }
    ],
}
DEFERRED = {
    "results": None,
    "deferred_artifacts": [
        {
            "name": "draft.docx",
            "path": "/tmp/alice/draft.docx",
            "mime": "application/msword",
            "description": "A draft",
            "reason": "needs_editing",
            "next_actions": ["Edit it"],
            "category": "draft",
            "expires_hours": 72,
        }
    ],
}
ERRORS: list[CallError] = [
    error_messages.timed_out(DEADLINES, limit="idle", last_progress="Processing chunk 45/200"),
    error_messages.timed_out(DEADLINES, limit="total", last_progress=None),
    error_messages.outside_home("/etc/passwd", Path("/tmp/alice")),
    error_messages.outside_home("/etc/passwd", None, problem="it is a FIFO"),
    error_messages.no_temporary_folder(),
    error_messages.too_large(2, 1),
    error_messages.too_large(None, 1),
    error_messages.artifact_missing("/tmp/alice/a"),
    error_messages.tool_raised("ValueError", "no", frames=["f"]),
    error_messages.tool_raised("ValueError", ""),
    error_messages.crashed(None),
    error_messages.crashed("signal 9", memory_peak_bytes=1, output="bye"),
    over_limit(Reached(limit="memory_bytes", value=1)),
    error_messages.tool_not_found("a", ["b"]),
    error_messages.invalid_argument("no", argument="a"),
    error_messages.file_not_found("a", []),
    error_messages.invalid_result("results", "no"),
    error_messages.network_denied("h", 1),
    error_messages.network_denied(None, None),
    error_messages.listening_denied("h", 1),
    error_messages.cancelled(),
    error_messages.out_of_descriptors(5, limit=1024),
    error_messages.busy(1.5, value=32),
]


def hints_of(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the keys of a part of the contract, and anything at all as their values."""
    words = st.sampled_from(["image", "split", "temporary", "pinned", "iframe", "https://e.x/", "a.txt", "x"])
    numbers = st.integers() | st.floats(allow_nan=False)
    values = st.none() | st.booleans() | words | numbers | st.lists(words, max_size=2)
    return st.dictionaries(st.sampled_from(sorted(model.model_fields)), values, max_size=6)


def files_of(model: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    named = st.fixed_dictionaries({"name": st.text(min_size=1), "path": st.just("/tmp/alice/a.txt")})
    return st.tuples(hints_of(model), named).map(lambda pair: pair[0] | pair[1])


results = st.fixed_dictionaries(
    {"results": json_values},
    optional={
        "meta_data": json_values,
        "retryable": json_values,
        "artifacts": st.lists(hints_of(Artifact) | files_of(Artifact), max_size=3),
        "deferred_artifacts": st.lists(hints_of(DeferredArtifact) | files_of(DeferredArtifact), max_size=3),
        "display": hints_of(Display),
        "canvas": hints_of(Canvas),
        "links": json_values,
        "incomplete": json_values,
        "meta_data_truncated": json_values,
        "returned_file_names": json_values,
        "returned_file_contents": json_values,
    },
)


def assert_fits(value: dict[str, Any]) -> None:
    Result.model_validate(value)
    VALIDATOR.validate(value)


# the published schema


def test_schema_is_single_and_names_itself() -> None:
    """Source: S2-30."""
    schema = contract_schema()

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == CONTRACT_URI == "runner://contract/2.1"
    assert schema["required"] == ["results"]


@pytest.mark.parametrize(
    "value", [SIMPLE, REPORT, LEGACY, DASHBOARD, STORED, DEFERRED], ids=lambda value: "-".join(value)
)
def test_documented_examples_satisfy_schema(value: dict[str, Any]) -> None:
    """Source: S0-10, S0-14, S0-35, S0-63 to S0-66, S1-64, S1-79, S1-81, S1-82, S1-89 and S2-17 to S2-19."""
    assert_fits(value)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"results": 1, "artifacts": {}},
        {"results": 1, "artifacts": [{"name": "a.txt", "mime": "text/plain"}]},
        {"results": 1, "artifacts": [{"name": "", "b64": "", "mime": "text/plain"}]},
        {"results": 1, "artifacts": [{"name": "a.txt", "b64": ""}]},
        {"results": 1, "artifacts": [{"name": "a", "b64": "", "mime": "a/b", "viewer": "hologram"}]},
        {"results": 1, "artifacts": [{"name": "a", "b64": "", "mime": "a/b", "size": -1}]},
        {"results": 1, "deferred_artifacts": [{"name": "a", "mime": "a/b", "expires_hours": 0}]},
        {"results": 1, "display": {"mode": "diagonal"}},
        {"results": 1, "display": {"storage_action": "burn"}},
        {"results": 1, "canvas": {"persistence": "for ever"}},
        {"results": 1, "retryable": "yes"},
        {"results": 1, "meta_data": []},
    ],
    ids=json.dumps,
)
def test_contract_violations_fail_in_schema_and_types_alike(value: dict[str, Any]) -> None:
    """Source: S0-3, S0-6, S0-8 and S1-76 to S1-78."""
    assert not VALIDATOR.is_valid(value)
    with pytest.raises(ValidationError):
        Result.model_validate(value)


def test_documented_words_and_defaults_are_in_schema() -> None:
    """Source: S0-11 to S0-13, S0-15, S0-16, S0-34, S0-36, S0-37, S1-65, S1-66, S1-88, S1-90 and S1-91."""
    defs = contract_schema()["$defs"]

    def described(name: str, field: str) -> tuple[Any, Any]:
        found = defs[name]["properties"][field]
        return found.get("enum"), found.get("default")

    viewers = ["image", "pdf", "html", "code", "data", "auto"]
    modes = ["replace", "append", "split"]
    assert described("Artifact", "viewer") == (viewers, "auto")
    assert described("Artifact", "auto_open") == (None, False)
    assert described("Display", "viewer_hint") == (viewers, "auto")
    assert described("Display", "mode") == (modes, "replace")
    assert described("Display", "open_canvas") == (None, False)
    assert described("Display", "storage_action") == (["store", "store_and_open", "temporary"], "store")
    assert described("Canvas", "persistence") == (["session", "ephemeral", "pinned"], "session")
    assert described("Canvas", "mode") == (modes, "replace")
    assert described("DeferredArtifact", "expires_hours") == (None, 72)
    assert defs["Artifact"]["properties"]["category"]["examples"] == [
        "report", "dataset", "visualization", "draft",
    ]  # fmt: skip
    assert defs["DeferredArtifact"]["properties"]["reason"]["examples"] == [
        "needs_editing", "draft", "incomplete", "awaiting_approval",
    ]  # fmt: skip


def test_fields_all_have_descriptions() -> None:
    schema = contract_schema()
    parts = {"Result": schema, **schema["$defs"]}

    assert [
        f"{name}.{field}"
        for name, part in parts.items()
        for field, schema in part["properties"].items()
        if not schema.get("description") and name not in ("ErrorEnvelope", "ErrorFacts")
    ] == []


# what leaves the runner


@pytest.mark.parametrize("error", ERRORS, ids=range(len(ERRORS)))
def test_errors_all_are_contract_envelopes(error: CallError) -> None:
    value = error_messages.envelope(error)

    ErrorEnvelope.model_validate(value)
    assert_fits(value)


def test_refused_file_listed_as_contract_requires() -> None:
    refusal = RefusedFile(name="a", reason="invalid_path", error=error_messages.outside_home("/x", None))

    ArtifactError.model_validate(refusal.entry())


@given(results | contract_like, st.booleans(), st.booleans())
def test_any_tool_value_normalises_to_valid_contract(payload: Any, wrapped: bool, is_error: bool) -> None:
    wire = {"structuredContent": payload, "isError": is_error}

    normalised = normalise(wire, wrapped=wrapped)
    processed = asyncio.run(
        process_artifacts(normalised, home=None, inline_max_bytes=LARGEST, max_bytes=LARGEST, keep=Shelf())
    )

    assert_fits(normalised.value)
    assert_fits(processed.value)


@given(results)
def test_correction_is_idempotent(payload: dict[str, Any]) -> None:
    once = normalise({"structuredContent": payload}, wrapped=False)
    twice = normalise({"structuredContent": once.value}, wrapped=False)

    assert twice.value == once.value
    assert [warning for warning in twice.warnings if "taken as" in warning] == []


@given(st.sampled_from([SIMPLE, REPORT, DASHBOARD, DEFERRED]), json_values)
def test_valid_contract_value_forwarded_unchanged(value: dict[str, Any], extra: Any) -> None:
    """Source: S2-24."""
    sizes = [{**item, "size": {"PGgxPg==": 4, "aGk=": 2}[item["b64"]]} for item in value.get("artifacts", [])]
    payload = {**value, "own": extra, **({"artifacts": sizes} if sizes else {})}

    result = normalise({"structuredContent": payload}, wrapped=False)

    assert json.dumps(result.value["results"]) == json.dumps(value["results"])
    assert {key: result.value[key] for key in value} == {key: payload[key] for key in value}
    assert result.warnings == ()


def test_schema_command_prints_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "runner.cli.app", "schema"],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )

    assert json.loads(ended.stdout) == contract_schema()
    assert ended.stderr == ""
