"""View of a result for a person in a shell, as printed by `runner call`.

Source: `docs/cli.md`, "runner call".
"""

import json
from collections.abc import Mapping
from typing import Any

from runner.artifacts.accept import Processed
from runner.contract.jsonable import mapping_of
from runner.formats.human_numbers import human_size
from runner.steps.model_view import compact_json

__all__ = ["as_text"]


def as_text(processed: Processed) -> str:
    """Return the result as text for a shell, without a final line break."""
    value = processed.value
    if processed.is_error:
        return _error(value)
    results = value.get("results")
    lines = [results if isinstance(results, str) else json.dumps(results, ensure_ascii=False, indent=2)]
    lines += processed.texts
    lines += [f"{file.name}  ({human_size(file.size)}, {file.mime})" for file in processed.files]
    lines += [
        f"{entry['name']}  ({human_size(entry['size'])}, kept in My Files)"
        for entry in value.get("deferred_artifacts", [])
    ]
    lines += [f"not delivered: {refusal.name}: {refusal.error.message}" for refusal in processed.errors]
    for entry in processed.generated:
        outcome = "kept in My Files" if entry["kept"] else f"not kept: {entry['reason']}"
        lines.append(f"{entry['name']}  ({human_size(entry['size'])}, not returned by the tool; {outcome})")
    return "\n".join(lines)


def _error(value: Mapping[str, Any]) -> str:
    meta_data = mapping_of(value.get("meta_data"))
    details = mapping_of(meta_data.get("details"))
    results = value.get("results")
    what = results.get("error", results) if isinstance(results, Mapping) else results
    code = meta_data.get("error_code")
    lines = [f"Error: {what}" + (f" [{code}]" if code else "")]
    lines += [
        f"  {key.replace('_', ' ')}: {item if isinstance(item, str) else compact_json(item)}"
        for key, item in details.items()
        if key != "suggestion" and item not in (None, [], "")
    ]
    if details.get("suggestion"):
        lines.append(f"What to do: {details['suggestion']}")
    return "\n".join(lines)
