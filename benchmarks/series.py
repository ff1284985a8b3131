"""A series: one tool under one load, on all sides that are compared, block beside block."""

import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks.blocks import Block, Load
from benchmarks.figures import percentile
from benchmarks.servers import Transport

__all__ = ["BASE", "HEADINGS", "OURS", "Series"]

BASE = "plain FastMCP"
OURS = "runner"
HEADINGS = (
    *("transport", "load", "tool", "served by", "calls", "median ms", "(blocks)"),
    *("p95", "p99", "calls/s", "to plain", "(blocks)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Blocks of one number ran one after the other, so that other load was alike for all sides.

    Attributes:
        transport: How the servers were spoken to.
        load: How hard they were asked.
        tool: What was called.
        blocks: Of each side, by its name.
    """

    transport: Transport
    load: Load
    tool: str
    blocks: dict[str, list[Block]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Label of the series in the report."""
        return f"{self.transport}, {self.load.name}, {self.tool}"

    def add(self, side: str, block: Block) -> None:
        """Take in one more block of a side."""
        self.blocks.setdefault(side, []).append(block)

    def latency_s(self, side: str, share: float = 0.5) -> float:
        """Return the latency that `share` of all calls of a side stayed at or below."""
        latencies = [took for block in self.blocks[side] for took in block.latencies_s]
        return statistics.median(latencies) if share == 0.5 else percentile(latencies, share)

    def rate(self, side: str) -> float:
        """Return the calls a second of a side."""
        blocks = self.blocks[side]
        return sum(len(block.latencies_s) for block in blocks) / sum(block.elapsed_s for block in blocks)

    def ratio(self, side: str = OURS, share: float = 0.5) -> float:
        """Return the latency of a side, over that of plain FastMCP."""
        return self.latency_s(side, share) / self.latency_s(BASE, share)

    def rows(self) -> list[tuple[str, ...]]:
        """Return a line of the report for each side, in the order of `HEADINGS`."""
        return [self._row(side) for side in self.blocks]

    def facts(self) -> dict[str, Any]:
        """Return all that was measured, for JSON; times in seconds."""
        sides = {
            side: {
                "median_s": self.latency_s(side),
                "p95_s": self.latency_s(side, 0.95),
                "p99_s": self.latency_s(side, 0.99),
                "calls_a_second": self.rate(side),
                "block_medians_s": [statistics.median(block.latencies_s) for block in blocks],
                "to_plain": self.ratio(side),
            }
            for side, blocks in self.blocks.items()
        }
        return {"transport": self.transport, "load": self.load.name, "tool": self.tool, "sides": sides}

    def _row(self, side: str) -> tuple[str, ...]:
        blocks = self.blocks[side]
        medians = [statistics.median(block.latencies_s) for block in blocks]
        bases = [statistics.median(block.latencies_s) for block in self.blocks[BASE]]
        ratios = [mine / base for mine, base in zip(medians, bases, strict=True)]
        return (
            *(self.transport, self.load.name, self.tool, side),
            str(sum(len(block.latencies_s) for block in blocks)),
            f"{1000 * self.latency_s(side):.2f}",
            f"{1000 * min(medians):.2f} to {1000 * max(medians):.2f}",
            *(f"{1000 * self.latency_s(side, share):.2f}" for share in (0.95, 0.99)),
            f"{self.rate(side):.0f}",
            *(("", "") if side == BASE else (f"{self.ratio(side):.2f}", _span(ratios))),
        )


def _span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"
