"""Hold a toolset with given settings, and run the calls that come as JSON lines: user, tool, arguments.

Settings of the driver's own: `unguarded` leaves out the guard, `unwatched` the looks at calls that last, and
`unseen` these and the look at a call that ends.

usage: python limits_driver.py FOLDER TOOL_FILE SETTINGS_AS_JSON
"""

import asyncio
import json
import math
import sys
from pathlib import Path

from attack_support import Unguarded
from support import call, settings_in

from runner.homes.leftovers import Leftovers
from runner.toolset.toolset import Toolset
from sandbox.host import lease
from sandbox.outcome import Reached
from sandbox.policy import Limits


async def never(self: Leftovers, home_fd: int, limits: Limits) -> Reached | None:
    """Find no limit exceeded."""
    return None


async def main() -> None:
    folder, tool_file, settings = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    kind = Unguarded if settings.pop("unguarded") else Toolset
    unseen = settings.pop("unseen", False)
    if settings.pop("unwatched", False) or unseen:
        vars(lease).update(FIRST_LOOK_S=math.inf)
    if unseen:
        vars(lease).update(too_many_tasks=lambda *_call: None)
        Leftovers.overfilled = never  # type: ignore[method-assign]
    async with (
        kind.open(settings_in(folder, **settings), [tool_file]) as toolset,
        asyncio.TaskGroup() as group,
    ):

        async def answer(number: int, user: str, tool: str, arguments: dict[str, object]) -> None:
            completed = await call(toolset, user, tool, **arguments)
            print(json.dumps([number, completed.processed.value]), flush=True)

        while line := await asyncio.to_thread(sys.stdin.readline):
            group.create_task(answer(*json.loads(line)))


asyncio.run(main())
