"""What the number of tools in a file costs: its start, its zygote, and each call."""

import statistics
import time
from pathlib import Path

from benchmarks.blocks import run_block
from benchmarks.curves.curve import Curve, Panel
from benchmarks.processes import memory_mib
from benchmarks.rounds import rounds
from benchmarks.series import BASE, OURS, Series
from benchmarks.served import SETTLE_S, STOCKED
from benchmarks.servers import serving

__all__ = ["measure"]

SIZES = (1, 10, 50, 100, 200)
_CALLS = 30
_ROUNDS = 3
_ARGUMENTS = {"text": "hello"}
_HEAD = """from fastmcp import FastMCP

mcp = FastMCP("many")
"""
_TOOL = '''

@mcp.tool
async def tool_{number}(text: str, times: int = 1, words: list[str] | None = None) -> str:
    """Return the text so many times, and the words: tool {number}."""
    return text * times + "".join(words or [])
'''


def measure(folder: Path, seconds: float) -> Curve:
    """Serve files with ever more tools, plain and with the runner, and call one of them in turns.

    Args:
        folder: Where the files and the runner's own are kept.
        seconds: For all sizes together; when a size has had its part, no further round of it begins.
    """
    latency = Panel(over="tools in the file", shows="milliseconds, median")
    start = Panel(over="tools in the file", shows="seconds until it listens")
    curve = Curve(
        key="tools",
        title="Tools",
        about="One of the tools over HTTP, 12 ms of thought; all have three arguments and a docstring.",
        headings=(
            *(
                "tools",
                "plain median ms",
                "runner median ms",
                "to plain",
                "plain starts s",
                "runner starts s",
            ),
            *("zygote MiB", "worker MiB"),
        ),
        panels=(latency, start),
    )
    for size in SIZES:
        tools = folder / f"many_{size}.py"
        tools.write_text(_HEAD + "".join(_TOOL.format(number=number) for number in range(size)))
        one = Series(transport="http", load=STOCKED, tool="tool_0")
        begun = time.perf_counter()
        with serving("plain", "http", folder, tools=tools) as plain:
            plain_s = time.perf_counter() - begun
            begun = time.perf_counter()
            with serving("runner", "http", folder, tools=tools) as runner:
                runner_s = time.perf_counter() - begun
                servers = {BASE: plain, OURS: runner}
                for server in servers.values():
                    run_block(server, one.tool, _ARGUMENTS, calls=_CALLS, load=STOCKED)
                for _ in rounds(f"{size} tools", _ROUNDS, seconds / len(SIZES)):
                    for side, server in servers.items():
                        time.sleep(SETTLE_S)
                        one.add(side, run_block(server, one.tool, _ARGUMENTS, calls=_CALLS, load=STOCKED))
                time.sleep(SETTLE_S)
                memory = memory_mib(runner.process.pid)
        mib = [statistics.median(memory[part]) for part in ("zygote", "worker")]
        times = [1000 * one.latency_s(side) for side in (BASE, OURS)]
        curve.rows.append(
            (
                *(str(size), f"{times[0]:.2f}", f"{times[1]:.2f}", f"{one.ratio():.2f}"),
                *(f"{plain_s:.2f}", f"{runner_s:.2f}", f"{mib[0]:.1f}", f"{mib[1]:.1f}"),
            )
        )
        curve.facts.append(
            {"tools": size, **one.facts(), "starts_s": [plain_s, runner_s], "memory_mib": memory}
        )
        for side, ms, start_s in zip((BASE, OURS), times, (plain_s, runner_s), strict=True):
            latency.add(side, size, ms)
            start.add(side, size, start_s)
    return curve
