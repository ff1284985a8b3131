"""Under which limit of memory the host finds itself, and who ends first where it runs out."""

import os
from pathlib import Path

import pytest

from sandbox.host.server_memory import ServerMemory, find_server_memory
from sandbox.layers import oom
from sandbox.policy import MIB

pytestmark = pytest.mark.kernel

MACHINE = 8192 * MIB


def group(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")
    return folder


def test_server_memory_without_control_groups_is_the_machines(tmp_path: Path) -> None:
    found = find_server_memory("", "", MACHINE)

    assert (found.limit_bytes, found.group) == (8192 * MIB, None)


def test_in_version_2_the_smallest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    usage = {"memory__current": 0, "memory__events": "oom_kill 3", "memory__stat": "active_file 0"}
    top = group(tmp_path / "cg", memory__max="max", **usage)
    middle = group(top / "pod", memory__max=600 * MIB, **usage)
    own = group(middle / "server", memory__max=900 * MIB, **usage)
    mounts = f"30 20 0:1 / {top} rw - cgroup2 cgroup2 rw\n"

    found = find_server_memory("0::/pod/server\n", mounts, MACHINE)

    assert found == ServerMemory(limit_bytes=600 * MIB, group=middle, version=2, own=own)
    assert found.kills() == 3


def test_endless_limit_in_cgroup_v1_is_no_limit(tmp_path: Path) -> None:
    top = group(tmp_path / "cg", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=0)
    own = group(
        top / "server",
        memory__limit_in_bytes=500 * MIB,
        memory__usage_in_bytes=0,
        memory__oom_control="oom_kill_disable 0\noom_kill 2",
    )
    mounts = f"30 20 0:1 / {top} rw - cgroup cgroup rw,memory\n"

    assert find_server_memory("4:memory:/\n", mounts, MACHINE).group is None
    found = find_server_memory("4:memory:/server\n", mounts, MACHINE)
    assert found == ServerMemory(limit_bytes=500 * MIB, group=own, version=1, own=own)
    assert found.kills() == 2


def test_copies_of_files_do_not_count_as_used(tmp_path: Path) -> None:
    stat = f"anon {100 * MIB}\ninactive_file {250 * MIB}\nactive_file {50 * MIB}\nslab_reclaimable {20 * MIB}"
    folder = group(tmp_path / "cg", memory__current=500 * MIB, memory__stat=stat)

    left = ServerMemory(limit_bytes=600 * MIB, group=folder).left_bytes()

    assert left == (600 - 500 + 250 + 50 + 20) * MIB


@pytest.mark.parametrize(("limit", "reserve"), [(256, 32), (4096, 204), (65536, 512)])
def test_part_of_server_memory_is_reserved_for_the_host(limit: int, reserve: int) -> None:
    assert ServerMemory(limit_bytes=limit * MIB).reserve_bytes // MIB == reserve


def test_a_score_is_raised_and_never_lowered() -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        scores = []
        for score in (700, 300):
            oom.offer(score)
            scores.append(Path("/proc/self/oom_score_adj").read_text().strip())
        os.write(write, " ".join(scores).encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(read, 100) == b"700 700"
    os.close(read)
    os.close(write)
