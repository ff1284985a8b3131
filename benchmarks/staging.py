"""How long it takes until a large input lies in a home: by shared blocks where that can be, else by copy.

FOLDER lies on the file system to be measured; XFS and Btrfs share blocks.

usage: scripts/bench --staging FOLDER [--mib N]
"""

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from runner.doctor.report import reflinks
from runner.files.my_files import open_library
from runner.homes.homes import Homes
from runner.settings.settings import Settings
from runner.steps.staging import stage
from runner.store.protocol import Origin

MIB = 1024 * 1024
RUNS = 7
USER = "bench"


def main() -> None:
    """Put one file, stage it several times, and print the times."""
    options = argparse.ArgumentParser(description="Measure staging.")
    options.add_argument("folder", type=Path)
    options.add_argument("--mib", type=int, default=1024, help="size of the input in MiB")
    given = options.parse_args()
    top = Path(tempfile.mkdtemp(prefix="toolcell-bench-", dir=given.folder))
    try:
        times = asyncio.run(_measure(top, given.mib))
        how = "by reflink" if reflinks(top, top) else "by copy"
    finally:
        shutil.rmtree(top)
    shown = f"median {statistics.median(times):.1f} ms of {RUNS}, {min(times):.1f} to {max(times):.1f}"
    sys.stdout.write(f"staging {given.mib} MiB {how}: {shown}\n")


async def _measure(top: Path, mib: int) -> list[float]:
    (top / "homes").mkdir()
    settings = Settings(state_dir=top / "state", store=(top / "store").as_uri(), homes=top / "homes")
    settings.state_dir.mkdir(mode=0o700)
    files = open_library(settings).of(USER)
    record = await files.put(
        await asyncio.to_thread(_made, top / "input.bin", mib), name="input.bin", origin=Origin.UPLOADED
    )
    times = []
    with Homes(settings.homes, settings.state_dir).lease(USER, keep_s=0) as home:
        for _ in range(RUNS):
            started = time.perf_counter()
            async with stage(home, files, [record], claims=settings.state_dir / "claims"):
                times.append((time.perf_counter() - started) * 1000)
    return times


def _made(path: Path, mib: int) -> Path:
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
    return path


if __name__ == "__main__":
    main()
