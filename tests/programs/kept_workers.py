"""A host with workers that stay: many calls, then attacks on their limits. Prints what came of them.

usage: python kept_workers.py TIER FOLDER
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import TOOLS, call, details, error_code, open_toolset

from sandbox.layers.rlimits import may_raise_limits

CALLS = 40


async def tried(tier: str, folder: Path) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "cpu_s": 1,
        "memory_mb": 256,
        "call_memory_mb": 300,
        "homes": folder / "homes",
    }
    (folder / "homes").mkdir(mode=0o755)
    async with open_toolset(
        TOOLS / "renews.py", folder, isolation=tier, idle_timeout_s=100.0, total_timeout_s=200.0, **settings
    ) as toolset:

        async def call_tool(tool: str, **arguments: Any) -> Any:
            completed = await call(toolset, "ann", tool, **arguments)
            if completed.processed.failure is not None:
                return details(completed).get("limit", error_code(completed))
            return completed.processed.value["results"]

        return {
            "raises_limits": may_raise_limits(),
            "burnt": [await call_tool("burn", seconds=0.1) for _ in range(CALLS)],
            "held": [await call_tool("hold", mib=20) for _ in range(4)],
            "raise_and_burn": await call_tool("raise_and_burn"),
            "after": await call_tool("burn", seconds=0.1),
            "raise_and_take": await call_tool("raise_and_take"),
            "lie": await call_tool("lie"),
            "burn_on": await call_tool("burn_on"),
            "at_last": await call_tool("burn", seconds=0.1),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(tried(sys.argv[1], Path(sys.argv[2])))))
