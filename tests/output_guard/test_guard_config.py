"""The guard's settings: the document's names and defaults, and a clear sentence for each mistake."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from runner.errors import UsageError
from runner.output_guard.artifact_field import ArtifactField, preset_names
from runner.output_guard.config import Budget, GuardConfig, from_mapping


def test_the_defaults_are_those_of_the_document() -> None:
    """Source: S4-40 and S4-47 to S4-61."""
    config = GuardConfig()

    assert (config.max_inline_size, config.auto_artifact_large_content) == (10_000, True)
    assert config.binary_detection.model_dump() == {
        "enabled": True,
        "signatures": {
            "JVBERi": ("pdf", "application/pdf"),
            "iVBORw": ("png", "image/png"),
            "/9j/": ("jpeg", "image/jpeg"),
            "UEsDB": ("zip", "application/zip"),
        },
        "min_size_for_detection": 1000,
        "max_decode_bytes": 5_000_000,
        "require_magic_bytes": True,
    }
    assert config.resources.model_dump() == {
        "enabled": True,
        "auto_read_if_size_under_bytes": 0,
        "inline_text_if_under_chars": 10_000,
        "cache_reads_to_artifacts": True,
    }
    assert config.tool_fields == {}
    assert config.default_summary_template == "Binary content stored as artifact ({size} bytes)"
    assert config.max_observation_chars == 50_000


def test_the_older_names_mean_the_same() -> None:
    fields = {"t": [{"field_path": "a"}]}

    older = from_mapping({"auto_artifact_enabled": False, "artifact_fields": fields})

    assert older == from_mapping({"auto_artifact_large_content": False, "tool_fields": fields})


def test_own_fields_replace_those_of_a_preset() -> None:
    own = {"$preset": ["tableau"], "download_workbook": [{"field_path": "x"}]}

    config = from_mapping({"tool_fields": own})

    assert [field.field_path for field in config.tool_fields["download_workbook"]] == ["x"]
    assert "get_view_as_pdf" in config.tool_fields


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_valid(name: str) -> None:
    assert from_mapping({"tool_fields": {"$preset": name}}).tool_fields


@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ({"max_inlin_size": 1}, ["output_guard.max_inlin_size", "did you mean max_inline_size"]),
        ({"max_observation_chars": 0}, ["output_guard.max_observation_chars", "greater than 0", "0"]),
        ({"binary_detection": {"min_size_for_detection": "x"}}, ["min_size_for_detection", "'x'"]),
        ({"tool_fields": {"t": [{"field_path": "a[?(@.b)]"}]}}, ["field_path", "is not a field path"]),
        ({"tool_fields": {"t": [{"field_path": "$"}]}}, ["field_path", "is not a field path"]),
        ({"tool_fields": {"t": [{"field_path": "a", "mime_type": "pdf"}]}}, ["'pdf' is not a MIME type"]),
        ({"tool_fields": {"$preset": "tablo"}}, ["no preset 'tablo'", "tableau"]),
        ({"tool_fields": {"t": [{}]}}, ["field_path", "required"]),
        ({"retention": {"max_trace_bytes": 1}}, ["retention.max_trace_bytes", "removed: set output_guard"]),
        ({"retention": {"cleanup_strategy": "fifo"}}, ["retention.cleanup_strategy", "is fixed"]),
        ({"retention": {"max_artifacts_per_trace": 1}}, ["retention.max_artifacts_per_trace", "is fixed"]),
    ],
)
def test_a_mistake_is_answered_with_a_sentence(value: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        from_mapping(value)

    assert [part for part in messages if part not in str(caught.value)] == []


def named(model: type[BaseModel], above: str = "") -> list[str]:
    found = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found += named(inner, f"{above}{name}.")
        else:
            found.append(f"{above}{name}")
    return found


def test_every_setting_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "output-guard.md").read_text()

    names = [*named(GuardConfig), *named(ArtifactField), *named(Budget)]
    assert len(names) > 20
    assert [name for name in names if f"`{name}`" not in text and f"{name} =" not in text] == []


def test_every_preset_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "output-guard.md").read_text()

    assert [name for name in preset_names() if f"| `{name}` |" not in text] == []


def test_the_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        GuardConfig().max_inline_size = 1
