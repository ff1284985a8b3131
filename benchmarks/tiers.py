"""What each isolation tier adds to a warm call: the same host in every tier, asked in turns in one run.

The base is the tier `guard`: same processes, same way of a call, without Landlock and seccomp. Every call is
stocked: 12 ms of thought after each answer, so that a parked worker waits for the next.

usage: scripts/bench --tiers [--calls N] [--rounds N]        as root, which the tier `user` needs
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from benchmarks.blocks import Block, Load, run_block
from benchmarks.calm import Calm
from benchmarks.figures import Target, table
from benchmarks.servers import USER, Server, serving
from runner.settings.isolation import lacking
from runner.settings.settings import Settings

__all__ = ["main"]

TIERS = ("guard", "process", "user", "namespace")
LIMITS_MS = {"process": 1.5, "user": 1.5, "namespace": 5.0}

_STOCKED = Load(name="stocked", think_s=0.012)
_TOOLS = {"echo_async": {"text": "hello"}, "echo_home": {"text": "hello", "username": USER}}
_HEADINGS = ("tool", "tier", "calls", "median ms", "adds ms", "(rounds)", "p95 ms")
_WARM_UP = 20


def main() -> None:
    """Measure, and print the report."""
    options = _options()
    calm = Calm(options.patience)
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory(prefix="toolcell-bench-") as name, ExitStack() as stack:
        servers: dict[str, Server] = {}
        for tier in TIERS:
            reason = _reason(tier)
            if reason is None:
                servers[tier] = stack.enter_context(_served(tier, Path(name)))
            else:
                rows.append(("-", tier, "-", f"not here: {reason}", "-", "-", "-"))
        for tool, arguments in _TOOLS.items():
            ask = partial(_round, servers, tool, arguments, options.calls)
            _round(servers, tool, arguments, _WARM_UP)
            rounds = [calm.measure(ask) for _ in range(options.rounds)]
            for tier in servers:
                added, row = _figures(tool, tier, rounds)
                rows.append(row)
                if tier in LIMITS_MS:
                    what = f"{tool} in tier {tier}, added to a warm call"
                    targets.append(Target(what=what, limit=LIMITS_MS[tier], measured=added, unit=" ms"))
    _say(table(_HEADINGS, rows))
    _say(f"{calm}")
    for target in targets:
        _say(str(target))


def _reason(tier: str) -> str | None:
    """Return why this machine does not offer a tier; None if it does."""
    missing = lacking(Settings(isolation=tier))
    return missing[0] if missing else None


def _served(tier: str, folder: Path) -> AbstractContextManager[Server]:
    """Return what serves in a tier until it is left, and gives the server when it is entered."""
    own = folder / tier
    own.mkdir()
    # Users' processes have ids of their own, and must get to their homes.
    for each in (folder, own):
        each.chmod(0o755)
    (own / "homes").mkdir(mode=0o755)
    return serving("runner", "http", own, "--isolation", tier)


def _round(servers: dict[str, Server], tool: str, arguments: dict[str, str], calls: int) -> dict[str, Block]:
    return {
        tier: run_block(server, tool, arguments, calls=calls, load=_STOCKED)
        for tier, server in servers.items()
    }


def _figures(tool: str, tier: str, rounds: list[dict[str, Block]]) -> tuple[float, tuple[str, ...]]:
    mine = [1000 * took for one in rounds for took in one[tier].latencies_s]
    base = [1000 * took for one in rounds for took in one["guard"].latencies_s]
    by_round = [
        1000 * (statistics.median(one[tier].latencies_s) - statistics.median(one["guard"].latencies_s))
        for one in rounds
    ]
    added = statistics.median(mine) - statistics.median(base)
    row = (
        tool,
        tier,
        str(len(mine)),
        f"{statistics.median(mine):.2f}",
        f"{added:.2f}",
        f"{min(by_round):.2f} to {max(by_round):.2f}",
        f"{statistics.quantiles(mine, n=20)[-1]:.2f}",
    )
    return added, row


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench --tiers", description=__doc__)
    parser.add_argument("--calls", type=int, default=40, help="calls of a block (40)")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each (5)")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds to wait for calm in all (120)")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
