"""A fleet gets a new release while calls come: as docs/deploying.md says it is done, and no call is lost."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest
from fleet_world import TOOLS, HostSide, World, code_of, until

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3, pytest.mark.release]


async def test_upgrade_loses_no_call(world: World, tmp_path: Path) -> None:
    newer = tmp_path / "fleet_tools.py"
    newer.write_text(TOOLS.read_text().replace("return a + b", "return a + b + 1000"))
    ended: Counter[str] = Counter()
    once: list[str] = []
    sums: list[int] = []
    latest: dict[str, int] = {}
    running = True

    async def calls_of(user: str) -> None:
        turn = 0
        while running:
            turn += 1
            marker = f"{user}-{turn}"
            once.append(marker)
            arguments = {"runs": str(world.folder / "runs"), "marker": marker, "seconds": 0.2}
            done = await host.call("once", arguments, user=user)
            ended[code_of(done) or "ok"] += 1
            latest[user] = await host.result("add", {"a": 1, "b": 2}, user=user)
            sums.append(latest[user])

    async def goes_on() -> None:
        before = len(sums)
        await until(lambda: len(sums) >= before + 9)

    old_node = world.node("old")
    async with world.host("host1") as old, world.host("host2", tools=newer) as new:
        host: HostSide = old
        calling = [asyncio.create_task(calls_of(user)) for user in ("ann", "bob", "cem")]
        await goes_on()
        # First nodes of the new release, then its hosts, then the old ones go.
        await asyncio.to_thread(world.node, "new", tools=newer)
        lasting = asyncio.create_task(
            old.call(
                "once", {"runs": str(world.folder / "runs"), "marker": "long", "seconds": 3.0}, user="dan"
            )
        )
        await until(lambda: world.runs("long"))
        await goes_on()
        host = new
        # The old host is drained before its nodes go: its callers call here now.
        await until(lambda: set(latest.values()) == {1003})
        old_node.signal(signal.SIGTERM)
        await asyncio.to_thread(old_node.process.wait, 90)
        await goes_on()
        running = False
        await asyncio.gather(*calling)
        ended[code_of(await lasting) or "ok"] += 1

    assert set(ended) == {"ok"}
    assert {marker: world.runs(marker) for marker in (*once, "long")} == dict.fromkeys((*once, "long"), 1)
    # Both have served, and each the calls that came to it.
    assert set(sums) == {3, 1003}
    assert old_node.process.returncode == 0
