"""Call every tool of `compat_tools.py` once in one isolation tier; print how each call ended as JSON.

usage: python compat_driver.py TIER FOLDER TOOL_FILE USER
"""

import asyncio
import json
import sys
from pathlib import Path

from support import call, open_toolset

AT_ONCE = 2


async def main() -> None:
    tier, folder, tool_file, user = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    places = asyncio.Semaphore(AT_ONCE)
    async with open_toolset(tool_file, folder, isolation=tier, idle_timeout_s=300) as toolset:

        async def ended(tool: str) -> str:
            async with places:
                value = (await call(toolset, user, tool)).processed.value
            meta = value.get("meta_data", {})
            return str(value["results"]["error"]) if meta.get("is_error") else "works"

        tools = sorted(toolset.catalog.tools)
        outcomes = await asyncio.gather(*(ended(tool) for tool in tools))
    print(json.dumps(dict(zip(tools, outcomes, strict=True))))


asyncio.run(main())
