"""Events for a user interface about one result: plain data, in the order in which they are sent.

Events never contain bytes, paths or keys of a store: a file is described, not included.

Source: requirement S0-68; rules D4, I1 and I2 of the conformance cases; document 001, section 2.1.
"""

from collections.abc import Mapping
from typing import Any

from runner.contract.display import Decision
from runner.contract.viewers import category_of, viewer_of

__all__ = ["announce", "listed_file", "shown_file"]

_SHOWN = ("name", "mime", "size", "description", "viewer", "category", "auto_open", "uri")


def announce(value: Mapping[str, Any], decision: Decision) -> list[dict[str, Any]]:
    """Return the events of a result.

    Args:
        value: The processed contract value.
        decision: Its display decision.
    """
    files = [listed_file(item, decision.category) for item in value.get("artifacts") or ()]
    events: list[dict[str, Any]] = []
    if files:
        events.append({"type": "files_update", "files": files, "display": _display(decision)})
        by_name = {file["name"]: file for file in files}
        shown = [by_name[name] for name in decision.order]
        events.append({"type": "canvas_files", "files": shown, **_display(decision)})
    if decision.panel is not None and decision.open:
        page = {"type": "iframe", "mode": decision.mode, **decision.panel.to_json()}
        events.append({"type": "canvas_content", "content": page})
    if decision.notification is not None:
        events.append({"type": "notification", "message": decision.notification})
    return events


def shown_file(artifact: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an artifact for a user: without its bytes, its path and its store key."""
    return {key: artifact[key] for key in _SHOWN if artifact.get(key) is not None}


def listed_file(artifact: Mapping[str, Any], category: str | None = None) -> dict[str, Any]:
    """Return a list entry of a file for a user interface; its default category is that of its type."""
    category = artifact.get("category") or category or category_of(artifact)
    return {**shown_file(artifact), "category": category, "showable": viewer_of(artifact) is not None}


def _display(decision: Decision) -> dict[str, Any]:
    first = decision.order[0] if decision.order else None
    return {"open": decision.open, "primary_file": first, "mode": decision.mode, "viewer": decision.viewer}
