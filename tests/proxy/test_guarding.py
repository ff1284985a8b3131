"""The output guard in the host: what a client gets of long and binary results, and what it costs nobody."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runner.errors import UsageError
from runner.files.my_files import FileChange, Library, MyFiles
from runner.files.sessions import Sessions
from runner.output_guard.config import GuardConfig
from runner.output_guard.guard import LEFT_OUT_META, GuardedCall, OutputGuard, config_of
from runner.settings.sources import config_report, load
from runner.store.retention import Budgets, budgets_of
from runner.store.store import BlobStore

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a") + bytes(3000)).decode()
GUARD = OutputGuard(GuardConfig())


@pytest.fixture
def changes() -> list[FileChange]:
    return []


@pytest.fixture
def files(tmp_path: Path, changes: list[FileChange]) -> MyFiles:
    return Library(store=BlobStore(), sessions=Sessions(tmp_path), changed=changes.append).of("alice")


def message(**more: Any) -> dict[str, Any]:
    return {"content": [], "isError": False, **more}


def shown(result: dict[str, Any]) -> int:
    return len(
        json.dumps([result["content"], result.get("structuredContent")], ensure_ascii=False).replace("\\", "")
    )


async def test_small_result_unchanged_and_nothing_stored(files: MyFiles, changes: list[FileChange]) -> None:
    result = message(content=[{"type": "text", "text": "x"}], structuredContent={"results": [1, 2]}, _meta={})
    guard = OutputGuard(GuardConfig())

    assert await guard.message(result, GuardedCall(tool="t", files=files), media_stay=True) == result
    assert await guard.results({"a": 1}, GuardedCall(tool="t", files=files)) == {"a": 1}
    assert changes == []


async def test_text_and_structured_content_together_within_limit(
    files: MyFiles, changes: list[FileChange]
) -> None:
    rows = [{"row": n, "text": "y" * 50} for n in range(2000)]
    texts = [{"type": "text", "text": json.dumps(rows)}]
    result = message(content=texts, structuredContent={"results": rows})
    guard = OutputGuard(GuardConfig())

    guarded = await guard.message(result, GuardedCall(tool="t", files=files), media_stay=True)

    assert shown(guarded) <= 50_000
    assert {change.user for change in changes} == {"alice"}
    assert {change.record.id for change in changes} == {
        record.id for record in await files.library.store.list(scope=files.scope)
    }


async def test_rows_left_out_of_structured_content_are_counted(files: MyFiles) -> None:
    rows = [{"row": n} for n in range(20_000)]
    schema = {"type": "object", "properties": {"result": {"type": "array"}}, "required": ["result"]}
    call = GuardedCall(tool="t", files=files, schema=schema)

    guarded = await GUARD.message(
        message(structuredContent={"result": rows}, _meta={"own": 1}), call, media_stay=True
    )
    whole = await GUARD.message(message(structuredContent={"result": rows[:9]}), call, media_stay=True)

    part = guarded["structuredContent"]["result"]
    assert part == rows[: len(part)]
    assert guarded["_meta"] == {"own": 1, LEFT_OUT_META: {"/result": {"kept": len(part), "of": 20_000}}}
    assert "_meta" not in whole


async def test_requested_bytes_and_kept_pictures_unchanged(files: MyFiles) -> None:
    entry = {"name": "a.png", "b64": PNG, "mime": "image/png"}
    picture = {"type": "image", "data": PNG, "mimeType": "image/png"}
    text = {"type": "text", "text": "z" * 20_000}
    result = message(content=[picture, text], structuredContent={"results": PNG, "artifacts": [entry]})
    call = GuardedCall(tool="t", files=files)

    guarded = await GUARD.message(result, call, media_stay=True)
    without = await GUARD.message(result, call, media_stay=False)

    assert guarded["content"][0] == picture
    assert guarded["structuredContent"]["artifacts"] == [entry]
    assert PNG not in json.dumps([guarded["content"][1], guarded["structuredContent"]["results"]])
    assert PNG[:1000] not in json.dumps(without)
    assert result["structuredContent"]["artifacts"] == [entry]


SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "rows": {"type": "array", "items": {"type": "object", "required": ["n"]}},
        "count": {"type": "integer"},
    },
    "required": ["title", "rows", "count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "value",
    [
        {"title": PNG, "rows": [], "count": 0},
        {"title": "t" * 30_000, "rows": [{"n": 1}], "count": 1},
        {"title": "t", "rows": [{"n": n, "text": "u" * 100} for n in range(3000)], "count": 3000},
    ],
)
async def test_closed_schema_satisfied_after_guarding(value: dict[str, Any], files: MyFiles) -> None:
    call = GuardedCall(tool="t", files=files, schema=SCHEMA)
    result = message(content=[{"type": "text", "text": json.dumps(value)}], structuredContent=value)

    guarded = await GUARD.message(result, call, media_stay=True)

    jsonschema.validate(guarded["structuredContent"], SCHEMA)
    assert shown(guarded) <= 50_000
    assert "artifact" in json.dumps(guarded["content"])
    assert guarded["structuredContent"]["count"] == value["count"]


async def test_result_without_a_fit_is_an_error_that_names_it(files: MyFiles) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(v){60000}$"}}}
    value = {"x": "v" * 60_000}
    call = GuardedCall(tool="t", files=files, schema={**schema, "required": ["x"]})
    result = message(content=[{"type": "text", "text": json.dumps(value)}], structuredContent=value)

    guarded = await GUARD.message(result, call, media_stay=True)

    assert guarded["isError"] is True
    assert "structuredContent" not in guarded
    assert "artifact" in guarded["content"][0]["text"]
    assert "output schema" in guarded["content"][1]["text"]


async def test_reference_without_room_is_named_beside(files: MyFiles) -> None:
    value = {"title": "t" * 20_000, "rows": [{"n": n, "text": "u" * 100} for n in range(3000)], "count": 1}
    call = GuardedCall(tool="t", files=files, schema=SCHEMA)
    result = message(content=[{"type": "text", "text": "done"}], structuredContent=value)

    guarded = await GUARD.message(result, call, media_stay=True)

    jsonschema.validate(guarded["structuredContent"], SCHEMA)
    records = await files.library.store.list(scope=files.scope)
    assert any(record.id in block["text"] for record in records for block in guarded["content"][1:])


def test_guard_section_of_file_is_applied(tmp_path: Path) -> None:
    file = tmp_path / "runner.toml"
    file.write_text(
        "[output_guard]\nauto_artifact_enabled = false\n"
        '[output_guard.tool_fields]\n"$preset" = "tableau"\n'
        '[[output_guard.tool_fields."reports.export"]]\nfield_path = "a"\n'
    )

    settings = load({}, config=file)

    config = config_of(settings)
    assert config.auto_artifact_large_content is False
    assert {"download_workbook", "reports.export"} <= set(config.tool_fields)
    assert config_report(settings)["output_guard.auto_artifact_enabled"] == {
        "value": False,
        "origin": str(file),
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "max_inline = 3",
            r"runner\.toml, line 2: output_guard\.max_inline is not a setting; did you mean max_inline_size",
        ),
        ("max_inline_size = 0", r", line 2: output_guard\.max_inline_size: .*greater than 0.*'0'"),
        ('tool_fields = {"$preset" = "nope"}', ", line 2: .*there is no preset 'nope'"),
        ("\n[output_guard.tools.a]\n\nmax_inline = 3", r", line 5: output_guard\.tools\.a\.max_inline is"),
        ("\nbinary_detection.enabled = 3", r", line 3: output_guard\.binary_detection\.enabled: "),
        (
            "[[output_guard.tool_fields.a]]\nfield_path = 'a'\n"
            "[[output_guard.tool_fields.a]]\nfield_path = 'b'\nmime_type = 'pdf'",
            r", line 6: output_guard\.tool_fields\.a\.1\.mime_type: ",
        ),
        (
            "[[output_guard.tool_fields.a]]\nfield_path = 'a'\n[[output_guard.tool_fields.a]]\n",
            r", line 4: output_guard\.tool_fields\.a\.1\.field_path: ",
        ),
        ("artifact_fields.a = [\n  {field_path = 3},\n]", r", line 2: output_guard\.artifact_fields\.a\.0"),
    ],
)
def test_faults_in_guard_section_reported_by_name(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "runner.toml"
    file.write_text(f"[output_guard]\n{line}\n")

    with pytest.raises(UsageError, match=words):
        config_of(load({}, config=file))


def test_guard_variable_refused_with_pointer_to_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_OUTPUT_GUARD__MAX_INLINE_SIZE", "3")

    with pytest.raises(UsageError, match=r"this is set in runner\.toml, under \[output_guard\]"):
        load({})


OPERATOR = """
import time

def shorten(tool_name, result, ctx):
    return {"tool": tool_name, "server": ctx.server, "was": result} if tool_name == "export" else None

def fails(tool_name, result, ctx):
    raise ValueError("no idea")

def two(tool_name, result):
    return None

number = 7
"""


def written(folder: Path, toml: str) -> OutputGuard:
    (folder / "my_outputs.py").write_text(OPERATOR)
    file = folder / "runner.toml"
    file.write_text(toml)
    return OutputGuard.of(load({}, config=file))


async def test_operator_transformer_sees_own_and_remote_results_first(files: MyFiles, tmp_path: Path) -> None:
    guard = written(tmp_path, '[output_guard]\noutput_transformer = "my_outputs:shorten"\n')
    remote = message(content=[{"type": "text", "text": '{"rows": 3}'}])

    own = await guard.results({"rows": 3}, GuardedCall(tool="export", files=files))
    theirs = await guard.message(
        remote, GuardedCall(tool="export", files=files, server="s"), media_stay=False
    )
    other = await guard.message(remote, GuardedCall(tool="other", files=files, server="s"), media_stay=False)

    assert own == {"tool": "export", "server": None, "was": {"rows": 3}}
    assert json.loads(theirs["content"][0]["text"]) == {"tool": "export", "server": "s", "was": {"rows": 3}}
    assert other == remote


async def test_tool_may_have_its_own_transformer(files: MyFiles, tmp_path: Path) -> None:
    toml = '[output_guard.tools.export]\noutput_transformer = "my_outputs:shorten"\n'
    guard = written(tmp_path, toml)

    with_own = await guard.results(1, GuardedCall(tool="export", files=files))
    without = await guard.results(1, GuardedCall(tool="import", files=files))

    assert (with_own["was"], without) == (1, 1)


async def test_transformed_structured_content_stays_structured(files: MyFiles, tmp_path: Path) -> None:
    guard = written(tmp_path, '[output_guard]\noutput_transformer = "my_outputs:shorten"\n')
    result = message(content=[{"type": "text", "text": "[1]"}], structuredContent={"result": [1]})
    call = GuardedCall(tool="export", files=files, server="s")

    made = await guard.message(result, call, media_stay=False)

    assert made["structuredContent"] == {"result": {"tool": "export", "server": "s", "was": [1]}}
    assert json.loads(made["content"][0]["text"]) == made["structuredContent"]["result"]


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("my_outputs:none", "has no function 'none'"),
        ("my_outputs:number", "has no function 'number'"),
        ("my_outputs:two", r"must take \(tool_name, result, ctx\)"),
        ("nowhere_at_all:f", "there is no module nowhere_at_all"),
        ("nowhere.at.all:f", "there is no module nowhere.at.all"),
        ("broken:f", "cannot be imported: RuntimeError: at once"),
        ("leaves:f", "cannot be imported: SystemExit"),
    ],
)
def test_missing_transformer_refused_at_start_with_place(named: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('at once')\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")

    words = rf"runner\.toml, line \d: output_guard.output_transformer: {named}.*{error}"
    with pytest.raises(UsageError, match=words):
        written(tmp_path, f'[output_guard]\n\noutput_transformer = "{named}"\n')


def test_guard_setting_outside_its_table_names_table(tmp_path: Path) -> None:
    file = tmp_path / "runner.toml"
    file.write_text('output_transformer = "a:b"\n')

    with pytest.raises(UsageError, match=r"no setting output_transformer; it stands under \[output_guard\]"):
        load({}, config=file)


INTEGER = {"type": "object", "properties": {"result": {"type": "integer"}}, "required": ["result"]}
OBJECT = {"type": "object", "properties": {"result": {"type": "object"}}, "required": ["result"]}


@pytest.mark.parametrize(("schema", "stays"), [(INTEGER, False), (OBJECT, True)])
async def test_fields_removed_by_transformer_not_restored_for_schema(
    schema: dict[str, Any], stays: bool, files: MyFiles, tmp_path: Path
) -> None:
    guard = written(tmp_path, '[output_guard]\noutput_transformer = "my_outputs:shorten"\n')
    result = message(content=[{"type": "text", "text": "7"}], structuredContent={"result": 7})
    call = GuardedCall(tool="export", files=files, schema=schema)

    before = await guard.results(7, call)
    made = await guard.message(result, call, media_stay=True)

    assert before == 7
    assert json.loads(made["content"][0]["text"]) == {"tool": "export", "server": None, "was": 7}
    assert ("structuredContent" in made) == stays
    assert bool(made.get("isError")) != stays


WIDE = {
    "type": "object",
    "properties": {f"p{n}": {"type": "string"} for n in range(400)},
    "required": [f"p{n}" for n in range(400)],
}


async def test_schema_of_many_fields_does_not_lift_limit(files: MyFiles) -> None:
    value = {f"p{n}": "word " * 75 for n in range(400)}
    result = message(content=[{"type": "text", "text": "see there"}], structuredContent=value)

    guarded = await GUARD.message(result, GuardedCall(tool="t", files=files, schema=WIDE), media_stay=True)

    assert len(json.dumps(guarded)) <= 50_000
    assert "structuredContent" not in guarded


@pytest.mark.parametrize(
    ("section", "budgets"),
    [
        ({}, Budgets()),
        (
            {"retention": {"ttl_seconds": 5}},
            Budgets(ttl_seconds=5),
        ),
        (
            {"retention": {"max_session_bytes": 100}},
            Budgets(max_session_bytes=100, max_trace_bytes=20, max_artifact_bytes=10),
        ),
    ],
)
def test_store_budgets_are_those_of_retention(section: dict[str, Any], budgets: Budgets) -> None:
    assert budgets_of(section) == budgets
