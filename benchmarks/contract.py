"""What the contract costs: a typical result from the tool's answer to the client's message, and a large file.

Both run in this process, without a worker and without a store: what is measured is our own arithmetic.
The large file is taken in a process of its own, so that its peak of memory is nobody else's.

usage: scripts/bench --contract
"""

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.calm import Calm
from benchmarks.figures import Target
from runner.artifacts.accept import Processed, process_artifacts
from runner.contract.normalise import normalise
from runner.files.my_files import Deferral
from runner.steps.client_message import Delivery, inline_limit, render
from runner.store.protocol import Put, Record, Scope

__all__ = ["report"]

MIB = 1024 * 1024
TYPICAL_LIMIT_MS = 1.0
LARGE_BYTES = 300 * MIB
OVERHEAD_LIMIT_MIB = 64.0
RATE_LIMIT_GB_S = 1.0
ROUNDS = 1000
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Home:
    path: Path
    fd: int


def report(say: Callable[[str], None], *, patience_s: float) -> None:
    """Measure, and tell `say` the figures and whether they meet their targets.

    Args:
        say: Takes the report, paragraph by paragraph.
        patience_s: How long to measure again what ran beside other work.
    """
    calm = Calm(patience_s)
    stages = calm.measure(_typical)
    say("a typical result, median: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in stages.items()))
    large = [calm.measure(_large) for _ in range(REPEATS)]
    rates, overheads = [rate for rate, _ in large], [overhead for _, overhead in large]
    shown = f"{min(rates):.2f} to {max(rates):.2f} GB/s, {max(overheads):.1f} MiB beside it"
    say(f"a file of 300 MiB: {shown}; {calm}")
    targets = (
        Target(
            what="normalise, route and render a typical result",
            limit=TYPICAL_LIMIT_MS,
            measured=sum(stages.values()),
            unit=" ms",
        ),
        Target(
            what="memory beside a 300 MiB file in base64",
            limit=OVERHEAD_LIMIT_MIB,
            measured=max(overheads),
            unit=" MiB",
        ),
        Target(
            what="seconds for each GB of a file in base64",
            limit=1 / RATE_LIMIT_GB_S,
            measured=1 / max(rates),
            unit=" s",
        ),
    )
    say("\n".join(str(target) for target in targets))


def _typical() -> dict[str, float]:
    """Return the median milliseconds of each stage."""
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name:
        folder = Path(name)
        wire = _wire(folder)
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            home = _Home(path=folder, fd=fd)
            taken = asyncio.run(_rounds(wire, home))
        finally:
            os.close(fd)
    names = ("normalise", "route", "render")
    return {
        name: statistics.median(column) * 1000
        for name, column in zip(names, zip(*taken, strict=True), strict=True)
    }


def _wire(folder: Path) -> dict[str, Any]:
    (folder / "report.html").write_text("<h1>Report</h1>\n" * 40)
    (folder / "rows.csv").write_text("id,amount\n" * 100)
    rows = [{"id": number, "city": "Zürich", "amount": number * 1.5} for number in range(45)]
    payload = {
        "results": {"rows": rows, "summary": "Sales by city"},
        "meta_data": {"rows": 45, "elapsed_ms": 12.5},
        "artifacts": [
            {"name": "report.html", "path": f"{folder}/report.html", "mime": "text/html", "viewer": "html"},
            {"name": "rows.csv", "path": f"{folder}/rows.csv", "mime": "text/csv", "category": "dataset"},
        ],
        "display": {"open_canvas": True, "primary_file": "report.html"},
    }
    text = json.dumps(payload, ensure_ascii=False)
    return {
        "structuredContent": payload,
        "content": [{"type": "text", "text": text}],
        "isError": False,
    }


async def _rounds(wire: dict[str, Any], home: _Home) -> list[tuple[float, float, float]]:
    # In one loop, as a host has it: starting one takes longer than the work.
    return [await _once(wire, home) for _ in range(ROUNDS)]


async def _once(wire: dict[str, Any], home: _Home) -> tuple[float, float, float]:
    start = time.perf_counter()
    normalised = normalise(wire, wrapped=False)
    after_normalise = time.perf_counter()
    limit = inline_limit(Delivery.REFERENCE, LARGE_BYTES)
    processed = await process_artifacts(
        normalised, home=home, inline_max_bytes=limit, max_bytes=LARGE_BYTES, keep=_keep
    )
    after_route = time.perf_counter()
    render(processed, wire=wire, output_schema=None, delivery=Delivery.REFERENCE)
    return after_normalise - start, after_route - after_normalise, time.perf_counter() - after_route


async def _keep(fd: int, *, name: str, mime: str, deferral: Deferral | None, temporary: bool) -> Record:
    """Say that a file was kept: a `runner.artifacts.accept.Keep` that costs nothing."""
    return Record(
        id="art_000000000000",
        name=name,
        mime=mime,
        size=os.fstat(fd).st_size,
        sha256="0" * 64,
        scope=Scope(user_id="bench"),
        said=Put(name=name, mime=mime),
        created=datetime.now(UTC),
    )


def _large() -> tuple[float, float]:
    """Take a large file in a process of its own; return GB/s of the file and MiB beside the result."""
    command = [sys.executable, "-m", "benchmarks.contract"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rate, overhead = done.stdout.split()
    return float(rate), float(overhead)


def _take_large() -> str:
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name:
        folder = Path(name)
        block = os.urandom(MIB)
        with (folder / "large.bin").open("wb") as target:
            for _ in range(LARGE_BYTES // MIB):
                target.write(block)
        artifact = {"name": "large.bin", "path": f"{folder}/large.bin", "mime": "application/octet-stream"}
        wire = {"structuredContent": {"results": 1, "artifacts": [artifact]}}
        fd = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        before = _peak_bytes()
        start = time.perf_counter()
        processed = _taken(wire, _Home(path=folder, fd=fd))
        seconds = time.perf_counter() - start
        os.close(fd)
    output = len(processed.value["artifacts"][0]["b64"])
    return f"{LARGE_BYTES / seconds / 1e9} {(_peak_bytes() - before - output) / MIB}"


def _taken(wire: dict[str, Any], home: _Home) -> Processed:
    normalised = normalise(wire, wrapped=False)
    return asyncio.run(
        process_artifacts(
            normalised, home=home, inline_max_bytes=LARGE_BYTES, max_bytes=LARGE_BYTES, keep=_keep
        )
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.stdout.write(_take_large())
