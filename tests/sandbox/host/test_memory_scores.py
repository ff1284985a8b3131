"""In every tier a worker ends before its forkserver, that before the host, and no worker can change it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from process_tree import children, forkservers, zygotes
from somebody import somebody
from support import TOOLS, becomes, call, open_toolset

from sandbox.probe.machine import Tier, missing

pytestmark = [pytest.mark.anyio, pytest.mark.kernel]

TIERS = [tier.value for tier in (Tier.PROCESS, Tier.NAMESPACE) if not missing(tier)]


def score_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


@pytest.mark.parametrize("tier", TIERS)
async def test_workers_end_first_then_the_forkserver_and_the_host_last(tmp_path: Path, tier: str) -> None:
    with somebody() as ann:
        async with open_toolset(TOOLS / "hungry.py", tmp_path, isolation=tier) as toolset:
            host = score_of(os.getpid())
            result = await call(toolset, ann, "more_likely_to_live")
            (forkserver,) = forkservers()
            (zygote,) = zygotes()
            assert await becomes(lambda: bool(children(zygote)))

            parked = children(zygote)
            # Landlock says the one, and where the mount is read-only it says the other.
            assert result.processed.value["results"] in ("EACCES EACCES", "EROFS EROFS")
            assert {score_of(pid) for pid in (zygote, *parked)} == {1000}
            assert host <= score_of(forkserver) < 1000


def test_unconfined_one_could_lower_it() -> None:
    """The control: what a worker is denied works for a process that is not confined."""
    program = (
        "from pathlib import Path; f = Path('/proc/self/oom_score_adj'); "
        "f.write_text('900'); f.write_text('800'); print(f.read_text())"
    )

    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert completed.stdout.strip() == "800"
