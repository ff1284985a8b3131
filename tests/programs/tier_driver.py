"""Hold a toolset in one isolation tier, and run the calls that come as JSON lines: user, tool, arguments.

usage: python tier_driver.py TIER FOLDER TOOL_FILE [SETTING=VALUE...]
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from support import call, open_toolset

from runner.store.protocol import Origin
from runner.users.identity import User


async def main() -> None:
    tier, folder, tool_file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    limits: dict[str, Any] = {"user_processes": 60, "user_memory_mb": 400}
    limits |= dict(setting.split("=", 1) for setting in sys.argv[4:])
    async with open_toolset(tool_file, folder, isolation=tier, **limits) as toolset:
        while line := await asyncio.to_thread(sys.stdin.readline):
            user, tool, arguments = json.loads(line)
            if tool == "put":
                await toolset.files(User(user)).put(b"given", name=arguments["name"], origin=Origin.UPLOADED)
                value: object = None
            else:
                value = (await call(toolset, user, tool, **arguments)).processed.value
            print(json.dumps(value), flush=True)


asyncio.run(main())
