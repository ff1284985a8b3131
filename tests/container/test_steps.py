"""The steps of the Dockerfile without an engine: same commands, same user, same view of the files.

An unprivileged user namespace stands in for the container: its root makes the mounts, and what is
served then runs as uid 10001 without any capability, with everything but /tmp read-only.
"""

import asyncio
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from dockerfiles import Dockerfile
from fastmcp import Client
from fastmcp.client.client import CallToolResult
from mcp_types import TextContent
from ports import free_port

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]

# The tmpfs hides what lies below /tmp, so everything needed later is put below /opt before.
MOUNTS = """
mount --bind {image} /opt
mount --bind {packages} /opt/packages
mount -t tmpfs -o size=256m,mode=1777,noexec,nosuid,nodev tmpfs /tmp
mount -o remount,bind,ro /opt
mount -o remount,bind,ro /
cd /opt/tools
"""
DROP = "exec unshare --user --map-user=10001 --map-group=10001 -- setpriv --no-new-privs --"


@dataclass(frozen=True)
class Served:
    """A running server in the stand-in, and where it answers."""

    process: "subprocess.Popen[bytes]"
    log: Path
    url: str


NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private", "--"]


def in_namespace(image: Path, command: list[str]) -> list[str]:
    packages = sysconfig.get_path("purelib")
    script = "set -eu" + MOUNTS.format(image=shlex.quote(str(image)), packages=shlex.quote(packages))
    return [*NAMESPACES, "sh", "-c", f"{script}{DROP} {shlex.join(command)}"]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contents of the image below /opt: an environment with the package, and a tool."""
    top = tmp_path_factory.mktemp("image")
    (top / "packages").mkdir()
    (top / "tools").mkdir()
    (top / "tools" / "hello.py").write_bytes((ROOT / "sample_tools" / "hello.py").read_bytes())

    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(top)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=180)
    (wheel,) = top.glob("toolcell-*.whl")

    # Made where it will be seen, so that its scripts name the right interpreter.
    steps = f"""
    mount --bind {shlex.quote(str(top))} /opt
    {shlex.quote(sys.executable)} -m venv --without-pip /opt/toolcell
    {shlex.quote(sys.executable)} -m pip --python /opt/toolcell/bin/python install \
        --quiet --no-index --no-deps /opt/{wheel.name}
    """
    subprocess.run([*NAMESPACES, "sh", "-euc", steps], check=True, capture_output=True, timeout=180)

    # The locked dependencies are those of the tests here: nothing is fetched.
    (site,) = (top / "toolcell" / "lib").glob("python3*/site-packages")
    (site / "dependencies.pth").write_text("/opt/packages\n")
    return top


@pytest.fixture
def environment(dockerfile: Dockerfile) -> dict[str, str]:
    variables = dockerfile.environment()
    return {**variables, "PATH": variables["PATH"].replace("$PATH", os.defpath)}


@pytest.fixture
def served(
    image: Path, dockerfile: Dockerfile, environment: dict[str, str], tmp_path: Path
) -> Iterator[Served]:
    port = str(free_port())
    entry = dockerfile.last("ENTRYPOINT").command
    command = [*entry[entry.index("--") + 1 :], *dockerfile.last("CMD").command]
    command[command.index("8000")] = port
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(in_namespace(image, command), env=environment, stderr=stderr)
    try:
        yield Served(process, log, f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=120)


def wait_for_health(served: Served) -> dict[str, str]:
    for _ in range(1800):
        try:
            with urllib.request.urlopen(f"{served.url}/healthz", timeout=180) as answer:
                health: dict[str, str] = json.load(answer)
                return health
        except (urllib.error.URLError, ConnectionError):
            try:
                served.process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"runner serve ended: {served.log.read_text()}") from None
    raise AssertionError("no answer from /healthz within three minutes")


def test_unprivileged_user_on_this_machine_creates_namespaces() -> None:
    done = subprocess.run([*NAMESPACES, "true"], check=False)

    assert done.returncode == 0, "user namespaces are switched off here; allow them to run this test"


def test_stand_in_user_unprivileged_writes_below_tmp_only(image: Path, environment: dict[str, str]) -> None:
    look = """
    id -u; grep ^Cap /proc/self/status | grep -v Bnd | cut -f2 | sort -u
    touch /tmp/written && echo tmp; touch /opt/written || echo no opt; touch /written || echo no root
    """
    done = subprocess.run(
        in_namespace(image, ["sh", "-c", look]), env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.split("\n") == ["10001", "0" * 16, "tmp", "no opt", "no root", ""]


def test_container_becomes_healthy_and_reports_tier(served: Served) -> None:
    health = wait_for_health(served)

    # The stronger one where the container may make namespaces.
    assert health["status"] == "ok"
    assert health["tier"] in ("process", "namespace")


def test_container_answers_tool_call(served: Served) -> None:
    wait_for_health(served)

    async def call() -> CallToolResult:
        async with Client(f"{served.url}/mcp") as client:
            answer: CallToolResult = await client.call_tool("shout", {"text": "confined"})
            return answer

    block = asyncio.run(call()).content[0]

    assert isinstance(block, TextContent)
    assert block.text == "CONFINED"
