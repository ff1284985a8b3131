"""Results: operations of chapter 3 of the conformance README, by the project's own functions."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from conformance_arguments import prepare
from conformance_world import World, described, hear, instant

from runner.artifacts.accept import Processed, process_artifacts
from runner.contract.display import decide
from runner.contract.error_messages import envelope
from runner.contract.interface_events import announce, shown_file
from runner.contract.normalise import Normalised, normalise
from runner.formats.filenames import safe_name
from runner.settings.settings import Settings
from runner.steps.client_message import Delivery, render
from runner.users.usernames import home_segment
from sandbox.policy import MIB

__all__ = ["OPERATIONS", "accept"]

Observation = dict[str, Any]


def _wire(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client library's view of a result as it was on the wire."""
    names = {"structured_content": "structuredContent", "content": "content", "is_error": "isError"}
    wire = {ours: result[theirs] for theirs, ours in names.items() if result.get(theirs) is not None}
    data = result.get("data")
    if data is not None and data != wire.get("structuredContent"):
        # What a library parsed has come as the JSON of a text block, if not as structured content.
        block = {"type": "text", "text": json.dumps(data)}
        wire["content"] = [block, *wire.get("content", [])]
    return {"_meta": result["meta"], **wire} if result.get("meta") else wire


def accept(world: World, normalised: Normalised, config: Mapping[str, Any] | None = None) -> Processed:
    """Take the files of a result into the store of a world."""
    limits = dict(config or {})
    return asyncio.run(
        process_artifacts(
            normalised,
            home=world.home,
            inline_max_bytes=int(limits.get("base64_size_limit_mb", _default("base64_size_limit_mb")) * MIB),
            max_bytes=limits.get("max_artifact_bytes", _default("max_artifact_bytes")),
            keep=world.keep,
            now=world.now,
        )
    )


def _default(setting: str) -> int:
    return int(Settings.model_fields[setting].default)


def _prompt(message: Mapping[str, Any]) -> str:
    """Return all that a model reads of a rendered result."""
    return "\n".join(part for block in message["content"] for part in _parts(block))


def _parts(block: Mapping[str, Any]) -> list[str]:
    match block["type"]:
        case "text":
            return [block["text"]]
        case "resource":
            return [str(block["resource"].get("uri")), str(block["resource"].get("text", ""))]
        case "resource_link":
            return [f"{block.get('name')} {block.get('uri')}"]
        case _:
            return []


def _normalize(case: Mapping[str, Any]) -> Observation:
    result = case["mcp_result"]
    wire = _wire(result)
    with hear() as logs, World.of(case.get("user", "alice")) as world:
        normalised = normalise(wire, wrapped=False)
        processed = accept(world, normalised)
        message = render(processed, wire=wire, output_schema=None, delivery=Delivery.REFERENCE)
    return {
        "output": processed.value,
        "prompt": _prompt(message),
        "artifacts": [described(file) for file in processed.files],
        "incomplete": processed.value.get("incomplete", []),
        "logs": logs,
        # A result is read, never asked about: what takes results has no way to send a request.
        "calls": [],
    }


def _ingest_and_display(case: Mapping[str, Any]) -> Observation:
    result = case["mcp_result"]
    with World.of(case["user"]) as world:
        value = accept(world, normalise(_wire(result), wrapped=False)).value
    decision = decide(value)
    events = announce(value, decision)
    shown = [file["name"] for event in events if event["type"] == "canvas_files" for file in event["files"]]
    return {"output": {"canvas": {"open": decision.open, "files": shown}}, "events": events}


def _route_artifact(case: Mapping[str, Any]) -> Observation:
    artifact = case["artifact"]
    with World.of(case["user"], case.get("now")) as world:
        world.tie(case.get("setup", {}).get("symlink", {}))
        if "file" in case:
            world.lay(artifact["path"], case["file"])
        if "stat_override" in case:
            world.stretch(artifact["path"], case["stat_override"]["size"])
        wire = {"structuredContent": {"artifacts": [artifact]}}
        processed = accept(world, normalise(wire, wrapped=False), case.get("config"))
    refused = processed.errors
    return {"output": envelope(refused[0].error) if refused else processed.value["artifacts"][0]}


def _deferred(case: Mapping[str, Any]) -> Observation:
    config = case.get("config", {})
    persist = config.get("persist_files_across_sessions", True)
    with hear() as logs, World.of(case["user"], case.get("now"), persist=persist) as world:
        for item in case["items"]:
            if "file" in case and isinstance(item.get("path"), str):
                world.lay(item["path"], case["file"])
        wire = {"structuredContent": {"deferred_artifacts": case["items"]}}
        value = accept(world, normalise(wire, wrapped=False), config).value
        output: dict[str, Any] = {"stored": value.get("deferred_artifacts", [])}
        if "meta_data" in value:
            output["meta_data"] = value["meta_data"]
        if "then" in case:
            output = asyncio.run(_later(world, case["then"]))
    return {"output": output, "logs": logs}


async def _later(world: World, step: Mapping[str, Any]) -> dict[str, Any]:
    """Take the step that follows in the same session."""
    if "now" in step:
        world.now = instant(step["now"])
    if step["op"] == "resolve":
        return {"found": await world.files.find(step["name"]) is not None}
    if step["op"] == "end_session":
        await world.files.end_session()
        return {"remaining": [record.shown for record in await world.files.all()]}
    schema = {"type": "object", "properties": {name: {} for name in step["args"]}}
    prepared = await prepare(world, step["args"], schema, step["file_delivery"])
    return dict(prepared["output"])


def _display_plan(case: Mapping[str, Any]) -> Observation:
    value = {"artifacts": case["artifacts"]}
    if case.get("display") is not None:
        value["display"] = case["display"]
    decision = decide(value, allowed_origins=case.get("config", {}).get("iframe_allowlist", ()))
    return {"output": decision.to_json(), "events": announce(value, decision)}


def _folder(username: str) -> str:
    return f"/tmp/{home_segment(username)}/"


OPERATIONS = {
    "normalize": _normalize,
    "ingest_and_display": _ingest_and_display,
    "sanitize_filename": lambda case: {"output": safe_name(case["name"])},
    "route_artifact": _route_artifact,
    "render_for_user": lambda case: {"output": shown_file(case["artifact"])},
    "user_dir": lambda case: {"output": _folder(case["username"])},
    "user_dirs_distinct": lambda case: {"output": [_folder(name) for name in case["usernames"]]},
    "display_plan": _display_plan,
    "deferred": _deferred,
}
