"""The output guard in the host: what a client gets of long and binary results, and what it costs nobody."""

import base64
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from runner.errors import UsageError
from runner.guarding import GuardedCall, OutputGuard, config_of
from runner.my_files import Change, Library, MyFiles
from runner.output_guard.config import GuardConfig
from runner.schema_fit import fitted
from runner.sessions import Sessions
from runner.settings_sources import config_report, load
from runner.store.memory import MemoryStore

pytestmark = pytest.mark.anyio

PNG = base64.b64encode(bytes.fromhex("89504e470d0a1a0a") + bytes(3000)).decode()
GUARD = OutputGuard(GuardConfig())


@pytest.fixture
def heard() -> list[Change]:
    return []


@pytest.fixture
def files(tmp_path: Path, heard: list[Change]) -> MyFiles:
    return Library(store=MemoryStore(), sessions=Sessions(tmp_path), changed=heard.append).of("alice")


def message(**more: Any) -> dict[str, Any]:
    return {"content": [], "isError": False, **more}


def shown(result: dict[str, Any]) -> int:
    return len(
        json.dumps([result["content"], result.get("structuredContent")], ensure_ascii=False).replace("\\", "")
    )


async def test_a_small_result_passes_as_it_is_and_nothing_is_stored(files: MyFiles) -> None:
    given = message(content=[{"type": "text", "text": "x"}], structuredContent={"results": [1, 2]}, _meta={})
    guard = OutputGuard(GuardConfig())

    assert await guard.message(given, GuardedCall(tool="t", files=files), media_stay=True) == given
    assert await guard.results({"a": 1}, GuardedCall(tool="t", files=files)) == {"a": 1}
    assert guard.keepers == set()


async def test_text_and_structured_content_together_stay_within_the_limit(
    files: MyFiles, heard: list[Change]
) -> None:
    rows = [{"row": n, "text": "y" * 50} for n in range(2000)]
    given = message(content=[{"type": "text", "text": json.dumps(rows)}], structuredContent={"results": rows})
    guard = OutputGuard(GuardConfig())

    guarded = await guard.message(given, GuardedCall(tool="t", files=files), media_stay=True)

    assert shown(guarded) <= 50_000
    assert guard.keepers == {"alice"}
    assert {change.record.id for change in heard} == {
        record.id for record in await files.library.store.list(scope=files.scope)
    }


async def test_bytes_that_the_client_asked_for_and_pictures_that_stay_are_left_alone(files: MyFiles) -> None:
    entry = {"name": "a.png", "b64": PNG, "mime": "image/png"}
    picture = {"type": "image", "data": PNG, "mimeType": "image/png"}
    text = {"type": "text", "text": "z" * 20_000}
    given = message(content=[picture, text], structuredContent={"results": PNG, "artifacts": [entry]})
    call = GuardedCall(tool="t", files=files)

    guarded = await GUARD.message(given, call, media_stay=True)
    without = await GUARD.message(given, call, media_stay=False)

    assert guarded["content"][0] == picture
    assert guarded["structuredContent"]["artifacts"] == [entry]
    assert PNG not in json.dumps([guarded["content"][1], guarded["structuredContent"]["results"]])
    assert PNG[:1000] not in json.dumps(without)
    assert given["structuredContent"]["artifacts"] == [entry]


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
async def test_structured_content_satisfies_a_closed_schema_also_when_guarded(
    value: dict[str, Any], files: MyFiles
) -> None:
    call = GuardedCall(tool="t", files=files, schema=SCHEMA)
    given = message(content=[{"type": "text", "text": json.dumps(value)}], structuredContent=value)

    guarded = await GUARD.message(given, call, media_stay=True)

    jsonschema.validate(guarded["structuredContent"], SCHEMA)
    assert shown(guarded) <= 60_000
    assert "artifact" in json.dumps(guarded["content"])
    assert guarded["structuredContent"]["count"] == value["count"]


def test_what_cannot_satisfy_a_schema_is_left_out() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 5000}}}

    assert fitted({"x": "v" * 6000}, {"x": {"artifact": {}, "summary": "s"}}, schema) is None


def test_a_schema_that_is_none_checks_nothing() -> None:
    assert fitted({"x": 1}, {"x": 2}, {"type": "nonsense"}) == {"x": 2}


def test_the_section_of_the_file_sets_the_guard_up(tmp_path: Path) -> None:
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
            r"runner\.toml: output_guard\.max_inline is no setting; did you mean max_inline_size",
        ),
        ("max_inline_size = 0", r"output_guard\.max_inline_size: .*greater than 0.*'0'"),
        ('tool_fields = {"$preset" = "nope"}', "there is no preset 'nope'"),
    ],
)
def test_what_is_wrong_in_the_section_is_said_with_its_name(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "runner.toml"
    file.write_text(f"[output_guard]\n{line}\n")

    with pytest.raises(UsageError, match=words):
        config_of(load({}, config=file))


def test_a_variable_for_the_guard_is_sent_to_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_OUTPUT_GUARD__MAX_INLINE_SIZE", "3")

    with pytest.raises(UsageError, match=r"set up in runner\.toml, under \[output_guard\]"):
        load({})
