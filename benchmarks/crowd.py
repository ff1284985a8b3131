"""A crowd: many users who all call at once, with few descriptors for the server, beside one who never stops.

Each honest call has to get its answer. One user, if asked for, floods: calls, connections that are held, and
heads of requests that never end; then the crowd is measured alone first.

usage: scripts/soak --crowd USERS [--each N] [--descriptors N] [--flood]
"""

import argparse
import asyncio
import contextlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

from benchmarks.soak import META, Server, contract_value, serving

__all__ = ["crowd"]

_ANSWER_S = 600.0
_HELD = 300
_HOSTILE_AT_ONCE = 200
_MOST_TIMES_SLOWER = 3.0


def crowd(options: argparse.Namespace) -> None:
    """Run the crowd and print its report.

    With one who floods, it is run alone before, on a server of its own. Exit status 1 says that a call had no
    right answer, or that 99 of 100 took more than three times as long beside the flood as alone.
    """
    alone = _round(options, floods=False)
    wrong, slower = alone.wrong, 0.0
    if options.flood:
        beside = _round(options, floods=True)
        wrong, slower = wrong + beside.wrong, beside.p99_s / alone.p99_s
        _say(f"beside the flood 99 of 100 took {slower:.2f} times as long as alone")
    sys.exit(1 if wrong or slower > _MOST_TIMES_SLOWER else 0)


@dataclass(frozen=True, slots=True)
class _Round:
    """What one round has shown.

    Attributes:
        wrong: How many calls had no right answer.
        p99_s: What 99 of 100 calls took at most, in seconds.
    """

    wrong: int
    p99_s: float


def _round(options: argparse.Namespace, *, floods: bool) -> _Round:
    most = options.descriptors

    def with_few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    with serving(options.isolation, users=options.crowd + 1, prepare=with_few) as server:
        hostile, *honest = server.tokens
        found = asyncio.run(_all(server, honest, hostile if floods else None, each=options.each))
        said = (server.folder / "log").read_text(errors="replace").splitlines()[1:]
    endings, seconds, lasted = found
    wanted = options.crowd * options.each
    seconds.sort()
    p99_s = seconds[int(0.99 * len(seconds))]
    beside = ", beside one who floods" if floods else ""
    _say(f"{options.crowd} users, {options.each} calls each at once, {most} descriptors{beside}")
    _say(f"{endings['right']} of {wanted} right; the median took {seconds[len(seconds) // 2]:.1f} s, ")
    _say(f"99 of 100 at most {p99_s:.1f} s; {lasted:.0f} s in all")
    for ending, count in endings.most_common():
        _say(f"{count:6} {ending}")
    _say(f"the server logged {len(said)} lines" + "".join(f"\n  {line[:300]}" for line in said[:10]))
    return _Round(wrong=wanted - endings["right"], p99_s=p99_s)


async def _all(
    server: Server, honest: Sequence[str], hostile: str | None, *, each: int
) -> tuple[Counter[str], list[float], float]:
    endings: Counter[str] = Counter()
    seconds: list[float] = []
    async with contextlib.AsyncExitStack() as stack:
        if hostile is not None:
            flood = asyncio.create_task(_flood(server, hostile))
            stack.push_async_callback(_end, flood)
            await asyncio.sleep(2)
        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for token in honest:
                group.create_task(_calls(server, token, each, endings, seconds))
        return endings, seconds, time.monotonic() - started


async def _calls(server: Server, token: str, each: int, endings: Counter[str], seconds: list[float]) -> None:
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(headers=_headers(token), timeout=_ANSWER_S, limits=limits) as client:

        async def one(number: int) -> None:
            begun = time.monotonic()
            endings[await _call(client, server, number)] += 1
            seconds.append(time.monotonic() - begun)

        await asyncio.gather(*(one(number) for number in range(each)))


async def _call(client: httpx2.AsyncClient, server: Server, number: int) -> str:
    """Make a call, and say how it ended."""
    params = {"name": "square", "arguments": {"number": number}, "_meta": META}
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    try:
        answer = await client.post(server.url, json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code}: {answer.text[:100]}"
        value = contract_value(answer.text)
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    results = value.get("results")
    if isinstance(results, dict) and results.get("square") == number * number:
        return "right"
    return f"{results!r}"[:200]


async def _flood(server: Server, token: str) -> None:
    """Hold connections in each way there is, and call without end."""
    where = urlsplit(server.url)
    held = []
    for number in range(_HELD):
        with contextlib.suppress(OSError):
            stream = await asyncio.open_connection(where.hostname, where.port)
            stream[1].write(b"GET /mcp HTTP/1.1\r\n" if number % 2 else b"")
            held.append(stream)
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(headers=_headers(token), timeout=_ANSWER_S, limits=limits) as client:

        async def again() -> None:
            while True:
                await _call(client, server, 1)

        await asyncio.gather(*(again() for _ in range(_HOSTILE_AT_ONCE)))


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.wait({task})


def _headers(token: str) -> dict[str, str]:
    return {
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "MCP-Method": "tools/call",
        "MCP-Name": "square",
    }


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
