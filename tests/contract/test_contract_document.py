"""The page for authors says every field of the contract, and its examples are right."""

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel
from support import ROOT

from runner.contract.models import (
    Artifact,
    Canvas,
    DeferredArtifact,
    Display,
    ErrorFacts,
    Result,
    contract_schema,
)
from runner.contract.normalise import normalise

TEXT = (ROOT / "docs" / "contract.md").read_text()
EXAMPLES = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)]
PARTS: dict[str, type[BaseModel]] = {
    "Result": Result,
    "Artifacts": Artifact,
    "Deferred artifacts": DeferredArtifact,
    "Display": Display,
    "Canvas": Canvas,
    "Errors": ErrorFacts,
}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("title", PARTS)
def test_fields_all_stand_in_their_sections(title: str) -> None:
    text = section(title) + (section("Other forms that are read") if title == "Result" else "")

    assert [name for name in PARTS[title].model_fields if not re.search(rf"[`\"]{name}[`\"]", text)] == []


@pytest.mark.parametrize(
    ("title", "part"), [("Artifacts", "Artifact"), ("Display", "Display"), ("Canvas", "Canvas")]
)
def test_defaults_and_words_stand_beside_their_fields(title: str, part: str) -> None:
    rows = {
        row.split("|")[1].strip(" `"): row for row in section(title).splitlines() if row.startswith("| `")
    }
    fields: dict[str, Any] = contract_schema()["$defs"][part]["properties"]

    for name, field in fields.items():
        if name not in rows:
            continue
        if field.get("default") not in (None, ""):
            assert f"`{json.dumps(field['default']).strip(chr(34))}`" in rows[name], name
        if name not in ("viewer_hint",) and not (part == "Canvas" and name == "mode"):
            assert all(f"`{word}`" in rows[name] for word in field.get("enum", ())), name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: "-".join(example))
def test_examples_accepted_without_warning(example: dict[str, Any]) -> None:
    Result.model_validate(example)

    result = normalise({"structuredContent": example}, wrapped=False)

    assert result.warnings == ()
    assert result.refusals == ()
    assert result.speaks_contract
