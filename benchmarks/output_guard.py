"""What the output guard costs: small results by time, large ones by throughput and memory.

The store here only hashes and forgets, so the figures are the guard's own; a real one adds its writing.
Seconds are those of the processor: the guard waits for nothing, and other work beside it does not count.

usage: python -m benchmarks.output_guard [--megabytes N] [--calls N]
"""

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pybase64

from runner.output_guard.config import GuardConfig
from runner.output_guard.pipeline import Guarded, guard
from runner.store.protocol import Put, Record, Scope

__all__ = ["main"]

SMALL_LIMIT_MS = 0.3
LARGE_LIMIT_MB_S = 300.0
LARGE_LIMIT_S = 2.0
MEMORY_LIMIT = 3.0

_SCOPE = Scope(user_id="bench", session_id="bench")
_CONFIG = GuardConfig()
_PROSE = 'The quick brown fox jumps over the lazy dog; it said "why?" and left.\n'
_LOG = (
    "2026-11-21T10:00:00.123Z INFO server.handler request=8f14e45fceea167a status=200 path=/api/items/123\n"
)


@dataclass(frozen=True, slots=True)
class _Forgetful:
    """A store that takes note of bytes and lets them go."""

    async def put_bytes(self, content: bytes, about: Put, *, scope: Scope) -> Record:
        digest = hashlib.sha256(content).hexdigest()
        return Record(
            id=f"{about.namespace}_{digest[:12]}",
            name=about.name,
            mime=about.mime or "application/octet-stream",
            size=len(content),
            sha256=digest,
            scope=scope,
            said=about,
            created=datetime.now(UTC),
        )

    async def put_text(self, text: str, about: Put, *, scope: Scope) -> Record:
        return await self.put_bytes(text.encode(), about, scope=scope)


def _file(chars: int) -> str:
    return pybase64.b64encode_as_string(b"%PDF-1.7\n" + os.urandom(chars * 3 // 4 - 9))


def _lines(text: str) -> str:
    return "\n".join(text[start : start + 76] for start in range(0, len(text), 76))


_LARGE: dict[str, Callable[[int], Any]] = {
    "one file": lambda chars: {"content": _file(chars)},
    "one file in lines": lambda chars: {"content": _lines(_file(chars))},
    "one text": lambda chars: {"log": _PROSE * (chars // len(_PROSE))},
    "one log": lambda chars: {"log": _LOG * (chars // len(_LOG))},
    "JSON text of files": lambda chars: json.dumps([_file(1_000_000) for _ in range(chars // 1_000_000)]),
    "files of 1 MB": lambda chars: [_file(1_000_000) for _ in range(chars // 1_000_000)],
    "files of 1.4 KB": lambda chars: [_file(1400) for _ in range(chars // 1400)],
    "texts of 1 KB": lambda chars: [(_PROSE * 15)[: 1024 + n % 7] for n in range(chars // 1032)],
    "texts of 20 KB": lambda chars: [(_PROSE * 290)[: 20_000 + n % 7] for n in range(chars // 20_000)],
    "unknown base64": lambda chars: pybase64.b64encode_as_string(b"\1\2" + os.urandom(chars * 3 // 4)),
    "files in a text": lambda chars: "".join(_PROSE * 20 + _file(3000) + " " for _ in range(chars // 4420)),
}


def _small() -> dict[str, Any]:
    rows = [{"id": n, "name": f"item {n}", "price": n * 1.5, "tags": ["a", "b"]} for n in range(31)]
    return {"results": rows, "meta_data": {"page": 1}}


async def _guarded(value: Any) -> Guarded:
    return await guard(value, tool="bench", server="bench", config=_CONFIG, store=_Forgetful(), scope=_SCOPE)


async def _milliseconds(value: Any, calls: int) -> float:
    spent = []
    for _ in range(calls):
        start = time.perf_counter()
        await _guarded(value)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1000


def _seconds_and_memory(value: Any) -> tuple[float, int]:
    spent = []
    for _ in range(3):
        start = time.process_time()
        asyncio.run(_guarded(value))
        spent.append(time.process_time() - start)
    tracemalloc.start()
    asyncio.run(_guarded(value))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return min(spent), peak


def main() -> None:
    """Measure and print; a figure beyond its limit is marked, and the exit status stays 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=100, help="size of the large results")
    parser.add_argument("--calls", type=int, default=2000, help="calls with the small result")
    options = parser.parse_args()
    small = _small()
    took = asyncio.run(_milliseconds(small, options.calls))
    chars = len(json.dumps(small))
    _say(f"{chars} characters, nothing found: {took:.3f} ms{_mark(took, SMALL_LIMIT_MS)}\n")
    _say(f"{'large result':22} {'MB':>6} {'s':>6} {'MB/s':>6} {'memory':>7}")
    for name, make in _LARGE.items():
        _large(name, make(options.megabytes * 1_000_000))


def _large(name: str, value: Any) -> None:
    size = len(value) if isinstance(value, str) else len(json.dumps(value))
    seconds, peak = _seconds_and_memory(value)
    speed, memory = size / seconds / 1e6, (peak + size) / size
    slow = " too slow" if speed < LARGE_LIMIT_MB_S else ""
    marks = slow + _mark(seconds, LARGE_LIMIT_S) + _mark(memory, MEMORY_LIMIT)
    _say(f"{name:22} {size / 1e6:6.1f} {seconds:6.2f} {speed:6.0f} {memory:6.2f}x{marks}")


def _mark(value: float, limit: float) -> str:
    return f"  above {limit}" if value > limit else ""


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
