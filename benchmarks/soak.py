"""The soak: very many calls of several users over HTTP, a part of them hostile, and a look at what is left.

Each honest answer is compared with the right one, and each hostile call must end as its limit says. At
the end no process, descriptor, file, user id in use, control group, System V object, mount or folder may
be left, and the host may not have grown.

usage: scripts/soak [--calls N] [--hostile SHARE] [--isolation TIER] [--users N] [--seed N] [--minutes M]
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.servers import ROOT, end_with_parent
from benchmarks.soak_calls import Call, calls, honest, settings_text
from benchmarks.soak_traces import Measured, Traces, measure, wait_until_quiet
from sandbox.layers.privileges import adopt_orphans

__all__ = ["Count", "disturbed_or_grown", "late_growth", "main"]

_TOOLS = Path(__file__).with_name("soak_tools.py")
# Two soaks may run at once, and each looks for traces of its own calls only.
_FIRST_UID = 2_000_000_000 + 1000 * (os.getpid() % 200_000)
_UIDS = range(_FIRST_UID, _FIRST_UID + 1000)
_SYSV_KEY = 0x50000000 + os.getpid()
_SAMPLES = 40
_MOST_GROWTH = 1.05
# Memory that was stable in the last half of the calls is not a leak, however much the first half took.
_MOST_GROWTH_AT_REST = 1.01
# Below it a host is still filling its caches, and growth says nothing.
_ENOUGH_CALLS = 5000
_MOST_DESCRIPTORS_MORE = 5
_MOST_FAULTS = 50
_EVERY_HOSTILE_USER = 3
_START_S = 60.0
_ANSWER_S = 120.0
_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(slots=True)
class Count:
    """The calls so far and their ends."""

    done: int = 0
    hostile: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A server under soak."""

    process: "subprocess.Popen[bytes]"
    url: str
    folder: Path
    tokens: Mapping[str, str]


def main() -> None:
    """Run the soak and print its report; exit status 1 says that something is left or was disturbed."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--hostile", type=float, default=0.1, help="the part of the calls that is hostile")
    parser.add_argument("--isolation", default="auto", help="the tier, as for runner serve")
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="the longest run")
    options = parser.parse_args()
    # A process without a parent becomes a child of this one, and is found here in the end.
    adopt_orphans()
    token = f"soak-{secrets.token_hex(6)}"
    count, samples = Count(), list[tuple[int, float, Measured]]()
    with _serving(options.isolation, users=options.users) as server:
        host = server.process.pid
        forkserver = int(Path(f"/proc/{host}/task/{host}/children").read_text().split()[0])
        drawn = calls(options.seed, hostile_share=options.hostile, token=token, key=_SYSV_KEY)
        warm_up = max(options.calls // 20, 40)
        rest = max(options.calls - warm_up, 0)
        run = _Run(server, count, samples, until=time.monotonic() + 60 * options.minutes)
        asyncio.run(run.make(itertools.islice(drawn, warm_up), first=honest(), every=warm_up))
        warm = wait_until_quiet(host)
        asyncio.run(run.make(itertools.islice(drawn, rest), first=(), every=max(rest // _SAMPLES, 1)))
        end = wait_until_quiet(host)
        traces = Traces(forkserver=forkserver, uids=_UIDS, folder=server.folder, token=token, key=_SYSV_KEY)
        server.process.terminate()
        try:
            server.process.wait(30)
        except subprocess.TimeoutExpired:
            server.process.kill()
            server.process.wait()
        left = traces.left()
        logged = (server.folder / "log").read_text(errors="replace").splitlines()[1:]
    faults = [*disturbed_or_grown(count, warm, end, late=late_growth(samples)), *left]
    _report(count, samples, warm, end, faults)
    if faults and logged:
        _say("the server's log:\n" + "\n".join(logged[-_MOST_FAULTS:]))
    sys.exit(1 if faults else 0)


@contextmanager
def _serving(isolation: str, *, users: int) -> Iterator[_Server]:
    """Serve the tools until the block ends; remove the server's files then.

    Args:
        isolation: The tier, as for runner serve.
        users: The number of users.
    """
    folder = Path(tempfile.mkdtemp(prefix="toolcell-soak-", dir="/var/tmp"))
    folder.chmod(0o755)
    tokens = {secrets.token_urlsafe(24): f"user-{number}" for number in range(users)}
    (folder / "homes").mkdir()
    (folder / "tokens.json").write_text(json.dumps(tokens))
    (folder / "tokens.json").chmod(0o600)
    (folder / "runner.toml").write_text(_settings(folder, isolation))
    log = folder / "log"
    command = [sys.executable, "-m", "runner", "serve", str(_TOOLS), "--transport", "http"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "runner.toml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=ROOT,
            preexec_fn=end_with_parent,
            env={name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")},
        )
    try:
        url = _address_of(process, log)
        yield _Server(process=process, url=url, folder=folder, tokens=tokens)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _settings(folder: Path, isolation: str) -> str:
    # Honest calls look for what other calls left in their process, so each has a process of its own.
    return f"""
worker_reuse = "call"
isolation = "{isolation}"
uid_range = "{_UIDS[0]}-{_UIDS[-1]}"
port = 0
homes = "{folder}/homes"
state_dir = "{folder}/state"
store = "file://{folder}/store"
user_processes = 200
playground = false
log_level = "error"
{settings_text()}
[auth]
kind = "static"
tokens_file = "{folder}/tokens.json"
"""


def _address_of(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Return the address of MCP from the log of a server; end this program if it does not start."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text(errors="replace").split():
            if word.startswith("http://") and word.rstrip(".,").endswith("/mcp"):
                return word.rstrip(".,")
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


@dataclass(slots=True)
class _Run:
    """The calls of all users.

    Every third user makes the hostile calls, and honest ones between them, one at a time: the call beside a
    user's own fork bomb may fail. The others make two honest calls at a time.

    Attributes:
        server: The server.
        count: The calls so far.
        samples: Measures taken meanwhile.
        until: The end, by the monotonic clock.
    """

    server: _Server
    count: Count
    samples: list[tuple[int, float, Measured]]
    until: float

    async def make(self, drawn: Iterator[Call], *, first: Sequence[Call], every: int) -> None:
        """Make calls until there are none left, or it is late.

        Args:
            drawn: The calls, each made by the next free user.
            first: Calls that each user makes before.
            every: Calls between two samples.
        """
        started = time.monotonic()
        next_sample = self.count.done + every
        hostile, benign = _parted(drawn)

        async def work(token: str, drawn: Iterator[Call]) -> None:
            nonlocal next_sample
            headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
            async with httpx2.AsyncClient(headers=headers, timeout=_ANSWER_S) as client:
                for call in itertools.chain(first, drawn):
                    if time.monotonic() > self.until:
                        return
                    await self._call(client, call)
                    if self.count.done >= next_sample:
                        next_sample += every
                        found = await asyncio.to_thread(measure, self.server.process.pid)
                        self.samples.append((self.count.done, time.monotonic() - started, found))

        async with asyncio.TaskGroup() as group:
            for number, token in enumerate(self.server.tokens):
                is_hostile = number % _EVERY_HOSTILE_USER == 0
                for _ in range(1 if is_hostile else 2):
                    group.create_task(work(token, hostile if is_hostile else benign))

    async def _call(self, client: httpx2.AsyncClient, call: Call) -> None:
        """Make a call; count its end, and what was wrong with that."""
        number, tool = self.count.done, call.kind.tool
        self.count.done += 1
        self.count.hostile += call.hostile
        params = {"name": tool, "arguments": dict(call.arguments), "_meta": _META}
        body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
        headers = {"MCP-Protocol-Version": "2026-07-28", "MCP-Method": "tools/call", "MCP-Name": tool}
        answer: Mapping[str, Any] = {}
        try:
            async with asyncio.timeout(call.kind.gone_after_s or _ANSWER_S):
                answer = _contract_value(
                    (await client.post(self.server.url, json=body, headers=headers)).text
                )
        except TimeoutError:
            fault = None if call.kind.gone_after_s else "no answer"
        except (httpx2.HTTPError, ValueError, KeyError) as error:
            fault = f"{type(error).__name__}: {error}"
        else:
            fault = call.kind.fault(call.arguments, answer)
        meta = answer.get("meta_data")
        code = meta.get("error_code") if isinstance(meta, Mapping) else None
        self.count.endings[f"{tool}: {(code or 'answered') if answer else 'client gone'}"] += 1
        if fault is not None:
            self.count.faults.append(f"call {number}, {tool}: {fault}")


def _parted(drawn: Iterator[Call]) -> tuple[Iterator[Call], Iterator[Call]]:
    """Part calls into those of hostile users, half of which are honest, and those of the others."""
    hostile: deque[Call] = deque()
    benign: deque[Call] = deque()
    owed = 0

    def take(mine: deque[Call]) -> Iterator[Call]:
        nonlocal owed
        while True:
            while not mine:
                call = next(drawn, None)
                if call is None:
                    return
                if call.hostile:
                    owed += 1
                    hostile.append(call)
                elif owed > 0:
                    owed -= 1
                    hostile.append(call)
                else:
                    benign.append(call)
            yield mine.popleft()

    return take(hostile), take(benign)


def _contract_value(text: str) -> Mapping[str, Any]:
    """Return the contract value of an answer: a JSON document, or the last of some events."""
    events = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    result = json.loads(events[-1] if events else text)["result"]
    value: Mapping[str, Any] = result.get("_meta", {}).get("toolcell/result") or result["structuredContent"]
    return value


def late_growth(samples: Sequence[tuple[int, float, Measured]]) -> float:
    """Return the memory of the host in the last quarter of the samples, medians, to that in the third."""
    quarter = len(samples) // 4
    if quarter == 0:
        return math.inf
    third, last = samples[-2 * quarter : -quarter], samples[-quarter:]
    before, after = (statistics.median(found.uss_mib for _, _, found in part) for part in (third, last))
    return after / before


def disturbed_or_grown(count: Count, warm: Measured, end: Measured, *, late: float) -> list[str]:
    """Return a line for each call that ended otherwise than it must, and for each growth of the server.

    Args:
        count: The calls and their ends.
        warm: The idle server after the first of them.
        end: The idle server after the last.
        late: The growth of the host in the last quarter, from `late_growth`.
    """
    return [*count.faults[:_MOST_FAULTS], *_grown(warm, end, calls_made=count.done, late=late)]


def _grown(warm: Measured, end: Measured, *, calls_made: int, late: float) -> Iterator[str]:
    if end.others or end.workers > end.zygotes:
        yield f"nobody calls, and {end.zygotes} zygotes have {end.workers} children, and these {end.others}"
    if end.descriptors > warm.descriptors + _MOST_DESCRIPTORS_MORE:
        yield f"descriptors of the host went from {warm.descriptors} to {end.descriptors}"
    if (
        calls_made >= _ENOUGH_CALLS
        and end.uss_mib > warm.uss_mib * _MOST_GROWTH
        and late > _MOST_GROWTH_AT_REST
    ):
        yield (
            f"memory of the host went from {warm.uss_mib:.1f} MiB to {end.uss_mib:.1f} MiB, "
            f"{late:.3f} times in the last quarter"
        )


def _report(
    count: Count,
    samples: list[tuple[int, float, Measured]],
    warm: Measured,
    end: Measured,
    faults: list[str],
) -> None:
    _say(f"{count.done} calls, {count.hostile} of them hostile, {len(count.faults)} with a wrong end\n")
    _say("| calls | seconds | host USS MiB | host RSS MiB | descriptors | zygotes | workers |")
    _say("|---|---|---|---|---|---|---|")
    for done, seconds, found in samples:
        _say(
            f"| {done} | {seconds:.0f} | {found.uss_mib:.1f} | {found.rss_mib:.1f} | {found.descriptors} "
            f"| {found.zygotes} | {found.workers} |"
        )
    _say(f"\nquiet after warm-up: {_line(warm)}\nquiet at the end:    {_line(end)}")
    _say(f"memory of the host, end to warm-up: {end.uss_mib / warm.uss_mib:.3f}")
    _say(f"memory of the host, last quarter of the calls to the third: {late_growth(samples):.3f}\n")
    for ending, number in sorted(count.endings.items()):
        _say(f"{number:6} {ending}")
    report = [f"LEFT OR WRONG: {fault}" for fault in faults] or ["nothing left, nothing disturbed"]
    _say("\n" + "\n".join(report))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _line(found: Measured) -> str:
    return (
        f"USS {found.uss_mib:.1f} MiB, {found.descriptors} descriptors, {found.zygotes} zygotes, "
        f"{found.workers} parked"
    )


if __name__ == "__main__":
    main()
