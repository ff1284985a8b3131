"""Survey what runs unchanged, and write docs/compatibility.md.

usage: scripts/compat [--only NAME]... [--tier TIER]... [--list] [--at-once N]

Without --only and --tier, what tools do (`compat_tools.py`) is tried as well; as root, for the tier user.
With --only, no more is installed than these entries need.
What is found of an entry is kept below the cache, so that a choice of entries or tiers adds to what was found
before.
"""

import argparse
import asyncio
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from compat_entries import Entry, read_entries, read_environments  # noqa: E402
from compat_install import installed, laid_out  # noqa: E402
from compat_page import OTHERS, others, summary, toolset_of  # noqa: E402
from compat_run import TIERS, Runs, outcome_of  # noqa: E402
from compat_survey import DOCUMENT, for_anybody, outcomes_in_every_tier, survey  # noqa: E402

_SECTIONS = {"Packages": "packages.toml", "Servers and examples": "servers.toml"}
_PAGE = b"<!doctype html><title>Garden</title><h1>Garden</h1><p>Seeds and soil.</p>"


def main() -> int:
    """Run what is asked for, and write the page."""
    options = _options()
    # An end of the survey ends its servers, too, as the blocks that started them are left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sections = {heading: read_entries(HERE / name) for heading, name in _SECTIONS.items()}
    entries = [entry for found in sections.values() for entry in found]
    if options.list:
        for entry in entries:
            print(f"{entry.kind:8} {entry.name}")
        return 0
    unknown = sorted(set(options.only) - {entry.name for entry in entries})
    if unknown:
        print(f"scripts/compat: no entry is named {', '.join(unknown)}; --list names all", file=sys.stderr)
        return 2
    chosen = [entry for entry in entries if not options.only or entry.name in options.only]
    cache = _cache()
    record = cache / "outcomes.json"
    outcomes: dict[str, Any] = json.loads(record.read_text()) if record.exists() else {}
    filled = chosen if options.only else entries
    _survey_others(filled, chosen, cache, options.tier or TIERS, options.at_once, outcomes, record)
    before = DOCUMENT.read_text()
    first = before.partition(OTHERS)[0].rstrip() + "\n"
    if not options.only and not options.tier:
        with for_anybody() as (python, tool_file):
            first = survey(outcomes_in_every_tier(python, tool_file))
    DOCUMENT.write_text(f"{first}\n{others(sections, outcomes, before)}")
    for heading, found in sections.items():
        print(f"{heading}: {summary(found, outcomes, before)}")
    return 0


def _survey_others(
    entries: Sequence[Entry],
    chosen: Sequence[Entry],
    cache: Path,
    tiers: Sequence[str],
    at_once: int,
    outcomes: dict[str, Any],
    record: Path,
) -> None:
    environments = read_environments(HERE / "servers.toml")
    laid = installed(entries, chosen, environments, cache)
    with (
        laid_out(laid, cache) as view,
        tempfile.TemporaryDirectory(dir="/var/tmp", prefix="toolcell-compat-") as made,
    ):
        scratch = Path(made)
        scratch.chmod(0o755)
        with _site() as port:
            here = [tier for tier in TIERS if _is_here(tier, view.pythons["tools"])]
            tried = [tier for tier in here if tier in tiers]
            with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="toolcell-compat-") as private:
                runs = Runs(
                    laid=view,
                    scratch=scratch,
                    private=Path(private),
                    port=port,
                    tiers=tried,
                    sessions_in=here[-1],
                )
                asyncio.run(_all(chosen, runs, at_once, outcomes, record))


async def _all(
    chosen: Sequence[Entry], runs: Runs, at_once: int, outcomes: dict[str, Any], record: Path
) -> None:
    places = asyncio.Semaphore(at_once)

    async def one(entry: Entry) -> None:
        async with places:
            start = time.monotonic()
            found = await outcome_of(entry, runs)
        known = outcomes.get(entry.name, {})
        if known.get("digest") == entry.digest:
            # Tiers that this run leaves out keep what was found of them before.
            found = {**known, **found, "toolsets": {**known.get("toolsets", {}), **found["toolsets"]}}
        outcomes[entry.name] = {**found, "tried": date.today().isoformat()}
        record.write_text(json.dumps(outcomes, indent=1))
        message = " ".join(f"{tier}: {toolset_of(found, tier)};" for tier in runs.tiers)
        print(f"{time.monotonic() - start:6.1f} s  {entry.name:32} {message} {found['plain']}", flush=True)

    await asyncio.gather(*(one(entry) for entry in chosen))


def _is_here(tier: str, python: Path) -> bool:
    """Return whether this machine has a tier, for a runner that is started by this interpreter."""
    code = f"from sandbox.probe.machine import Tier, missing; print(*missing(Tier({tier!r})), sep='; ')"
    lacking = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    if lacking:
        print(f"scripts/compat: tier {tier} is left out: {lacking}", file=sys.stderr)
    return not lacking


@contextmanager
def _site() -> Iterator[int]:
    """Yield the port of a web server on this machine."""

    class Garden(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(_PAGE)))
            self.end_headers()
            self.wfile.write(_PAGE)

        def log_message(self, *_: object) -> None:
            """Discard the log line."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Garden) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolcell-compat"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/compat", description="Survey what runs unchanged.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this entry alone")
    parser.add_argument("--tier", action="append", choices=TIERS, help="this tier alone")
    parser.add_argument("--list", action="store_true", help="name the entries, and run none")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="entries that run at once (2)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
