"""The soak: very many calls of several users over HTTP, a part of them hostile, and a look at what is left.

Each honest answer is compared with what it must be, and each hostile call must end as its limit says. At
the end no process, descriptor, file, user id in use, control group, System V object, mount or folder may
be left, and the host may not have grown.

usage: scripts/soak [--calls N] [--hostile SHARE] [--isolation TIER] [--users N] [--seed N] [--minutes M]
       scripts/soak --crowd USERS [--each N] [--descriptors N] [--flood]
       scripts/soak --many USERS [--calls N] [--hostile SHARE] [--at-once N] [--quiet-calls N]
                    [--engine docket] [--hosts N] [--nodes N]
"""

import argparse
import asyncio
import itertools
import json
import math
import os
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.servers import ROOT
from benchmarks.soak_calls import Call, calls, honest, settings_text
from benchmarks.soak_traces import Measured, Traces, measure, wait_until_quiet
from sandbox.layers.privileges import adopt_orphans
from sandbox.syscalls import PR_SET_PDEATHSIG, prctl

__all__ = [
    "META",
    "SYSV_KEY",
    "TOOLS",
    "UIDS",
    "Count",
    "Server",
    "address_of",
    "contract_value",
    "disturbed_or_grown",
    "forkserver_of",
    "late_growth",
    "main",
    "post",
    "serving",
    "stop",
]

TOOLS = Path(__file__).with_name("soak_tools.py")
# Two soaks may run at the same time, and each must know what is its own.
_FIRST_UID = 2_000_000_000 + 1000 * (os.getpid() % 200_000)
UIDS = range(_FIRST_UID, _FIRST_UID + 1000)
SYSV_KEY = 0x50000000 + os.getpid()
PARKED = 2
SAMPLES = 40
MOST_GROWTH = 1.05
# Memory that was at rest in the last half of the calls is no leak, however much the first half took.
MOST_GROWTH_AT_REST = 1.01
# Below it a host is still filling its caches, and growth says nothing.
ENOUGH_CALLS = 5000
MOST_DESCRIPTORS_MORE = 5
_MOST_FAULTS = 50
_EVERY_HOSTILE_USER = 3
_START_S = 60.0
_ANSWER_S = 120.0
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "soak", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@dataclass(slots=True)
class Count:
    """What became of the calls so far."""

    done: int = 0
    hostile: int = 0
    endings: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server under soak."""

    process: "subprocess.Popen[bytes]"
    url: str
    folder: Path
    tokens: Mapping[str, str]


def main() -> None:
    """Run the soak and print its report; exit status 1 says that something is left or was disturbed."""
    options = _options()
    if options.crowd:
        from benchmarks.crowd import crowd  # noqa: PLC0415 - which serves as this module does

        crowd(options)
    if options.many:
        from benchmarks.many import many  # noqa: PLC0415 - as above

        many(options)
    # Whatever loses its parent becomes a child of this process, and is found here in the end.
    adopt_orphans()
    token = f"soak-{secrets.token_hex(6)}"
    count, samples = Count(), list[tuple[int, float, Measured]]()
    with serving(options.isolation, users=options.users) as server:
        forkserver = forkserver_of(server.process.pid)
        drawn = calls(options.seed, hostile_share=options.hostile, token=token, key=SYSV_KEY)
        warm_up = max(options.calls // 20, 40)
        until = time.monotonic() + 60 * options.minutes
        run = partial(_run, server, count=count, samples=samples, until=until)
        asyncio.run(run(itertools.islice(drawn, warm_up), first=honest(), every=warm_up))
        warm = wait_until_quiet(server.process.pid, parked_each=PARKED)
        rest = max(options.calls - warm_up, 0)
        every = max(rest // SAMPLES, 1)
        asyncio.run(run(itertools.islice(drawn, rest), first=(), every=every))
        end = wait_until_quiet(server.process.pid, parked_each=PARKED)
        traces = Traces(forkserver=forkserver, uids=UIDS, folder=server.folder, token=token, key=SYSV_KEY)
        stop(server)
        left = traces.left()
        said = (server.folder / "log").read_text(errors="replace").splitlines()[1:]
    faults = [*disturbed_or_grown(count, warm, end, late=late_growth(samples)), *left]
    _report(count, samples, warm, end, faults)
    if faults and said:
        _say("the server said:\n" + "\n".join(said[-_MOST_FAULTS:]))
    sys.exit(1 if faults else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--hostile", type=float, help="which part of the calls is hostile: 0.1; of many 0.01")
    parser.add_argument("--isolation", default="auto", help="the tier, as for runner serve")
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=24 * 60, help="when to stop, if it takes so long")
    parser.add_argument("--many", type=int, help="instead: so many users, most of them honest")
    parser.add_argument("--at-once", type=int, default=32, help="calls under way, of the many")
    parser.add_argument("--quiet-calls", type=int, help="calls of the round without hostile ones")
    parser.add_argument("--engine", choices=("local", "docket"), default="local", help="who runs them")
    parser.add_argument("--hosts", type=int, default=2, help="hosts of the fleet that --engine docket starts")
    parser.add_argument("--nodes", type=int, default=2, help="its worker nodes")
    parser.add_argument("--crowd", type=int, help="instead: so many users who call at once")
    parser.add_argument("--each", type=int, default=4, help="calls of each of the crowd")
    parser.add_argument("--descriptors", type=int, default=1024, help="hard limit of the crowd's server")
    parser.add_argument("--flood", action="store_true", help="let one more user flood beside the crowd")
    options = parser.parse_args()
    if options.hostile is None:
        options.hostile = 0.01 if options.many else 0.1
    return options


@contextmanager
def serving(
    isolation: str, *, users: int, prepare: Callable[[], None] = lambda: None, keeps: bool = False
) -> Iterator[Server]:
    """Serve the tools until the block ends; remove all that belongs to the server then.

    Args:
        isolation: The tier, as for runner serve.
        users: How many users there are.
        prepare: Is called in the server's process before it begins.
        keeps: Whether workers stay with their users, as they do without settings.
    """

    def begin() -> None:
        # Whoever kills the soak has not got a server in mind that runs on.
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        prepare()

    folder = Path(tempfile.mkdtemp(prefix="toolcell-soak-", dir="/var/tmp"))
    folder.chmod(0o755)
    tokens = {secrets.token_urlsafe(24): f"user-{number}" for number in range(users)}
    (folder / "homes").mkdir()
    (folder / "tokens.json").write_text(json.dumps(tokens))
    (folder / "tokens.json").chmod(0o600)
    (folder / "runner.toml").write_text(_settings(folder, isolation, keeps=keeps))
    log = folder / "log"
    command = [sys.executable, "-m", "runner", "serve", str(TOOLS), "--transport", "http"]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--config", str(folder / "runner.toml")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            cwd=ROOT,
            preexec_fn=begin,
            env={name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")},
        )
    try:
        url = address_of(process, log)
        yield Server(process=process, url=url, folder=folder, tokens=tokens)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


_FRESH = f"""
# Honest calls look for what others may have left in their process, so each has one of its own.
worker_reuse = "call"
idle_workers = {PARKED}
max_idle_workers = {PARKED}
"""


def _settings(folder: Path, isolation: str, *, keeps: bool) -> str:
    return f"""{"" if keeps else _FRESH}
isolation = "{isolation}"
uid_range = "{UIDS[0]}-{UIDS[-1]}"
port = 0
homes = "{folder}/homes"
state_dir = "{folder}/state"
store = "file://{folder}/store"
user_processes = 200
playground = false
log_level = "error"

[auth]
kind = "static"
tokens_file = "{folder}/tokens.json"

{settings_text()}"""


def address_of(process: "subprocess.Popen[bytes]", log: Path, *, within_s: float = _START_S) -> str:
    """Return where a server that starts has MCP, as it says itself; end this program if it does not start."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and process.poll() is None:
        for word in log.read_text(errors="replace").split():
            if word.startswith("http://") and word.rstrip(".,").endswith("/mcp"):
                return word.rstrip(".,")
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text(errors='replace')[-3000:]}")


async def _run(
    server: Server,
    drawn: Iterator[Call],
    *,
    first: Sequence[Call],
    count: Count,
    samples: list[tuple[int, float, Measured]],
    every: int,
    until: float,
) -> None:
    """Make calls until there are none left, or it is late.

    Every third user makes the hostile calls, and honest ones between them, one at a time: what a user's own
    fork bomb does to the call beside it is that user's affair. The others make two honest calls at a time.

    Args:
        server: Whom to ask.
        drawn: The calls, each of which comes from whoever is free.
        first: Calls that each user makes before.
        count: What became of them.
        samples: Measures taken on the way.
        every: After how many calls one is taken.
        until: When to stop, by the monotonic clock.
    """
    started = time.monotonic()
    next_sample = count.done + every

    hostile, benign = _parted(drawn)

    async def work(token: str, drawn: Iterator[Call]) -> None:
        nonlocal next_sample
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(headers=headers, timeout=_ANSWER_S) as client:
            for call in itertools.chain(first, drawn):
                if time.monotonic() > until:
                    return
                await _call(client, server.url, call, count)
                if count.done >= next_sample:
                    next_sample += every
                    found = await asyncio.to_thread(measure, server.process.pid)
                    samples.append((count.done, time.monotonic() - started, found))

    async with asyncio.TaskGroup() as group:
        for number, token in enumerate(server.tokens):
            if number % _EVERY_HOSTILE_USER == 0:
                group.create_task(work(token, hostile))
            else:
                group.create_task(work(token, benign))
                group.create_task(work(token, benign))


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


async def _call(client: httpx2.AsyncClient, url: str, call: Call, count: Count) -> None:
    number = count.done
    count.done += 1
    count.hostile += call.hostile
    ending, fault = await post(client, url, call, number)
    count.endings[f"{call.kind.tool}: {ending}"] += 1
    if fault is not None:
        count.faults.append(f"call {number}, {call.kind.tool}: {fault}")


async def post(
    client: httpx2.AsyncClient, url: str, call: Call, number: int, *, token: str | None = None
) -> tuple[str, str | None]:
    """Make a call; return how it ended, and what was wrong with that, if anything.

    Args:
        client: Makes requests.
        url: The address of MCP.
        call: The call.
        number: Of the call.
        token: Of its user, where the client has none.
    """
    params = {"name": call.kind.tool, "arguments": dict(call.arguments), "_meta": META}
    body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
    headers = {
        "MCP-Protocol-Version": "2026-07-28",
        "MCP-Method": "tools/call",
        "MCP-Name": call.kind.tool,
        "Accept": "application/json, text/event-stream",
        **({} if token is None else {"Authorization": f"Bearer {token}"}),
    }
    try:
        async with asyncio.timeout(call.kind.gone_after_s or _ANSWER_S):
            answer = contract_value((await client.post(url, json=body, headers=headers)).text)
    except TimeoutError:
        fault = None if call.kind.gone_after_s else "no answer"
        answer = {}
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        fault, answer = f"{type(error).__name__}: {error}", {}
    else:
        fault = call.kind.fault(call.arguments, answer)
    return _ending(answer), fault


def contract_value(text: str) -> Mapping[str, Any]:
    """Return the contract value of an answer, whether it came as JSON or as the last of some events."""
    events = [line.removeprefix("data:") for line in text.splitlines() if line.startswith("data:")]
    result = json.loads(events[-1] if events else text)["result"]
    value: Mapping[str, Any] = result.get("_meta", {}).get("toolcell/result") or result["structuredContent"]
    return value


def _ending(answer: Mapping[str, Any]) -> str:
    if not answer:
        return "client gone"
    meta = answer.get("meta_data")
    return str(meta.get("error_code") or "answered") if isinstance(meta, Mapping) else "answered"


def forkserver_of(host: int) -> int:
    """Return the process id of the forkserver of a host."""
    children = Path(f"/proc/{host}/task/{host}/children").read_text().split()
    return int(children[0])


def stop(server: Server) -> None:
    """End a server as its operator would."""
    server.process.terminate()
    try:
        server.process.wait(30)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


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
        count: What became of the calls.
        warm: The server after the first of them, while nobody called.
        end: The same after the last.
        late: How the memory of the host went on towards the end, as `late_growth` says.
    """
    return [*count.faults[:_MOST_FAULTS], *_grown(warm, end, calls_made=count.done, late=late)]


def _grown(warm: Measured, end: Measured, *, calls_made: int, late: float) -> Iterator[str]:
    if end.others or end.workers > PARKED * end.zygotes:
        yield f"nobody calls, and {end.zygotes} zygotes have {end.workers} children, and these {end.others}"
    if end.descriptors > warm.descriptors + MOST_DESCRIPTORS_MORE:
        yield f"descriptors of the host went from {warm.descriptors} to {end.descriptors}"
    if calls_made >= ENOUGH_CALLS and end.uss_mib > warm.uss_mib * MOST_GROWTH and late > MOST_GROWTH_AT_REST:
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
    said = [f"LEFT OR WRONG: {fault}" for fault in faults] or ["nothing left, nothing disturbed"]
    _say("\n" + "\n".join(said))


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
