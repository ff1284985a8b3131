"""From blocks to the rows of the report: pure arithmetic and text."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.blocks import Block, Load
from benchmarks.servers import Transport

__all__ = ["HEADINGS", "Pair", "Target", "percentile", "table"]

HEADINGS = (
    *("transport", "load", "tool", "calls", "plain ms", "runner ms", "ratio", "(blocks)"),
    *("p95 ms", "p95 ms", "plain /s", "runner /s"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One thing to reach, and what was measured."""

    what: str
    limit: float
    measured: float
    unit: str

    def __str__(self) -> str:
        verdict = "met   " if self.measured <= self.limit else "MISSED"
        return f"{verdict} {self.what}: {self.measured:.2f}{self.unit}, at most {self.limit:g}{self.unit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One tool under one load on both servers; their blocks of the same number ran one after the other."""

    transport: Transport
    load: Load
    tool: str
    plain: list[Block] = field(default_factory=list)
    runner: list[Block] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """Median of all calls on the runner, over the median of all calls on plain FastMCP."""
        return percentile(self.runner, 0.5) / percentile(self.plain, 0.5)

    def row(self) -> tuple[str, ...]:
        """Return one line of the report, in the order of `HEADINGS`."""
        by_block = [
            percentile([runner], 0.5) / percentile([plain], 0.5)
            for plain, runner in zip(self.plain, self.runner, strict=True)
        ]
        return (
            self.transport,
            self.load.name,
            self.tool,
            str(sum(len(block.latencies_s) for block in self.runner)),
            *(f"{1000 * percentile(blocks, 0.5):.2f}" for blocks in (self.plain, self.runner)),
            f"{self.ratio:.2f}",
            f"{min(by_block):.2f} to {max(by_block):.2f}",
            *(f"{1000 * percentile(blocks, 0.95):.2f}" for blocks in (self.plain, self.runner)),
            *(f"{_rate(blocks):.0f}" for blocks in (self.plain, self.runner)),
        )


def percentile(blocks: Sequence[Block], share: float) -> float:
    """Return the latency, in seconds, that `share` of the calls stayed at or below."""
    latencies = sorted(latency for block in blocks for latency in block.latencies_s)
    if share == 0.5:
        return statistics.median(latencies)
    return latencies[min(len(latencies) - 1, int(len(latencies) * share))]


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with its columns aligned."""
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(headings), rule, *(line(row) for row in rows)])


def _rate(blocks: Sequence[Block]) -> float:
    return sum(len(block.latencies_s) for block in blocks) / sum(block.elapsed_s for block in blocks)
