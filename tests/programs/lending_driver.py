"""Hold a toolset with settings of a test, and run the calls that come as JSON lines: user, tool, arguments.

usage: python lending_driver.py SETTINGS FOLDER TOOL_FILE
"""

import asyncio
import json
import sys
from pathlib import Path

from support import call, open_toolset


async def main() -> None:
    settings, folder, tool_file = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    async with open_toolset(tool_file, folder, **settings) as toolset:
        while line := await asyncio.to_thread(sys.stdin.readline):
            user, tool, arguments = json.loads(line)
            print(json.dumps((await call(toolset, user, tool, **arguments)).processed.value), flush=True)


asyncio.run(main())
