"""Arguments: the operation `prepare_args` of the conformance README, by the project's own functions."""

import asyncio
from collections.abc import Mapping
from typing import Any

from conformance_world import World

from runner.errors import CallError
from runner.settings.settings import Settings
from runner.steps.inputs import FileDelivery, prepare_inputs, read_arguments
from runner.store.protocol import Origin
from runner.toolset.catalog import ToolSpec
from runner.users.identity import User

__all__ = ["OPERATIONS", "prepare"]

Observation = dict[str, Any]


async def prepare(
    world: World,
    arguments: Mapping[str, Any],
    schema: Mapping[str, Any],
    file_delivery: FileDelivery,
    keys: Mapping[str, str] | None = None,
) -> Observation:
    """Prepare the arguments of one call in a world.

    Args:
        world: Whose files and home.
        arguments: The arguments.
        schema: The tool's schema.
        file_delivery: As the operation names it.
        keys: Keys of the stored files, by name, where the case gives them.
    """
    values, files = keys or {}, world.files
    preparing = prepare_inputs(
        arguments,
        spec=ToolSpec(name="tool", parameters=schema, output_schema=None),
        user=User(world.user),
        home=world.home,
        files=files,
        claims=world.claims,
        link=lambda file: world.links.to(files.holder, values.get(file.shown, file.id)),
        file_delivery=file_delivery,
    )
    async with preparing as inputs:
        return {"output": inputs.arguments, "ui_args": inputs.shown()}


async def _prepare_args(case: Mapping[str, Any]) -> Observation:
    session = case["session"]
    settings = Settings(file_delivery=case.get("file_delivery", "path"), public_url=case.get("public_url"))
    with World.of(session["user"], public_url=settings.public_url) as world:
        keys = {}
        for name, file in session.get("files", {}).items():
            stored = await world.files.put(
                name.encode(), name=name, mime=file.get("content_type"), origin=Origin.UPLOADED
            )
            keys[stored.shown] = file["key"]
        try:
            arguments = read_arguments(case["args"], edited=case.get("edited_in_approval"))
            delivery: FileDelivery = "url" if settings.file_delivery == "url" else "path"
            return await prepare(world, arguments, case["tool_schema"], delivery, keys)
        except CallError as error:
            failure = {"code": error.code.name, "message": error.message}
            return {"output": {}, "ui_args": {}, "error": failure}


OPERATIONS = {"prepare_args": lambda case: asyncio.run(_prepare_args(case))}
