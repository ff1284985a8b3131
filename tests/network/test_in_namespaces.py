"""Tools on a small Internet of this test: a name server, public and private addresses, in namespaces."""

import json
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attack_support import interpreter_for_anybody, opened
from support import ROOT, TOOLS, stop

pytestmark = [pytest.mark.kernel, pytest.mark.needs_root]

PUBLIC, OTHER, PRIVATE, KEYS = "93.184.215.14", "151.101.1.69", "10.1.2.3", "169.254.169.254"
OWN = "151.101.65.69"


@dataclass(frozen=True)
class Called:
    """Outcome of one call: its result, the servers it reached and the names it looked up."""

    value: dict[str, Any]
    seen: list[str]
    queries: list[str]

    @property
    def results(self) -> Any:
        return self.value["results"]

    @property
    def code(self) -> str | None:
        code: str | None = self.value.get("meta_data", {}).get("error_code")
        return code

    @property
    def details(self) -> dict[str, Any]:
        details: dict[str, Any] = self.value["meta_data"]["details"]
        return details


@dataclass(frozen=True)
class World:
    process: "subprocess.Popen[str]"
    user: str

    def call(self, tool: str, /, **arguments: Any) -> Called:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([self.user, tool, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the world has ended; its last words are above"
        return Called(**json.loads(line))


@pytest.fixture(scope="module")
def top() -> Iterator[Path]:
    assert os.geteuid() == 0, "namespaces with a cable between them are made by root; run these tests as root"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("curl", "curl")):
        assert shutil.which(program), f"{program} is missing; install {package}"
    found = Path(tempfile.mkdtemp(prefix="toolcell-net-", dir="/var/tmp"))
    found.chmod(0o755)
    yield found
    shutil.rmtree(found)


@pytest.fixture(scope="module", params=["process", "user", "namespace"])
def world(request: pytest.FixtureRequest, top: Path) -> Iterator[World]:
    tier = request.param
    folder = top / tier
    folder.mkdir(mode=0o700)
    interpreter = interpreter_for_anybody(top) if not (top / "venv").exists() else top / "venv/bin/python"
    tool_file = opened(TOOLS, top / "tools") / "network.py"
    program = ROOT / "tests/programs/network_world.py"
    user = f"t-{uuid.uuid4().hex[:12]}"
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", str(interpreter), str(program), tier, str(folder), str(tool_file)],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT / "tests")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    try:
        yield World(process, user)
    finally:
        stop(process)
        shutil.rmtree(f"/tmp/{user}", ignore_errors=True)


def test_a_name_that_is_allowed_is_fetched_by_ordinary_code(world: World) -> None:
    called = world.call("named_fetch", url="http://good.test/")

    assert called.results == f"{PUBLIC}:80"
    assert called.seen == [f"{PUBLIC}:80"]
    assert "denials" not in called.value.get("meta_data", {})


def test_program_other_than_python_fetches_the_name(world: World) -> None:
    called = world.call("named_fetch_in_a_program", url="http://good.test/")

    assert called.results == f"{PUBLIC}:80"


def test_denied_name_is_not_looked_up(world: World) -> None:
    called = world.call("named_fetch", url="http://other.test/")

    assert called.code == "E_NETWORK_DENIED"
    assert called.details["flag"] == "--allow-net=other.test:80"
    assert (called.details["host"], called.details["port"]) == ("other.test", 80)
    assert called.queries == []
    assert called.seen == []


def test_tool_without_network_resolves_and_reaches_nothing(world: World) -> None:
    called = world.call("closed_fetch", url="http://good.test/")

    assert called.code == "E_NETWORK_DENIED"
    assert called.details["flag"] == "--allow-net=good.test:80"
    assert (called.queries, called.seen) == ([], [])


def test_another_port_of_an_allowed_name_is_closed(world: World) -> None:
    called = world.call("named_fetch", url="http://good.test:8080/")

    assert called.code == "E_NETWORK_DENIED"
    assert called.details["flag"] == "--allow-net=good.test:8080"
    assert called.seen == []


def test_redirect_to_denied_address_fails(world: World) -> None:
    called = world.call("named_fetch_each", urls=["http://good.test/to/other.test", "http://good.test/"])

    assert "Name or service not known" in called.results[0]
    assert called.results[1] == f"{PUBLIC}:80"
    assert called.seen == [f"{PUBLIC}:80"] * 2
    (denial,) = called.value["meta_data"]["denials"]
    assert denial["path"] == "other.test:80"


def test_address_is_reachable_only_by_call_that_resolved_it(world: World) -> None:
    resolved = world.call("named_fetch", url="http://good.test/")

    called = world.call("named_connect", host=PUBLIC, port=80)

    assert resolved.results == f"{PUBLIC}:80"
    assert called.code == "E_NETWORK_DENIED"
    assert called.details["flag"] == f"--allow-net={PUBLIC}:80"


def test_rebound_name_reaches_no_private_address(world: World) -> None:
    called = world.call("several_fetch_each", urls=["http://rebind.test/"] * 4)

    assert called.results[0] == f"{PUBLIC}:80"
    assert all("Permission denied" in text for text in called.results[1:]), called.results
    assert called.seen == [f"{PUBLIC}:80"]
    paths = [denial["path"] for denial in called.value["meta_data"]["denials"]]
    assert paths == [f"{PRIVATE}:80", f"{KEYS}:80", "127.0.0.1:80"]


def test_an_allowed_name_opens_no_private_address(world: World) -> None:
    called = world.call(
        "several_fetch_each", urls=["http://inner.test/", "http://keys.test/", "http://both.test"]
    )

    assert ["Permission denied" in text for text in called.results] == [True, True, False]
    # Of several addresses the public one is left.
    assert called.results[2] == f"{PUBLIC}:80"
    assert called.seen == [f"{PUBLIC}:80"]


def test_private_address_denial_names_the_flag(world: World) -> None:
    called = world.call("several_fetch", url="http://inner.test/")

    assert called.code == "E_NETWORK_DENIED"
    assert called.details["flag"] == f"--allow-net={PRIVATE}:80"


def test_private_address_allowed_beside_its_name_is_reachable(world: World) -> None:
    called = world.call("beside_fetch", url="http://inner.test/")

    assert called.results == f"{PRIVATE}:80"


def test_a_wildcard_opens_the_names_below_it(world: World) -> None:
    below = world.call("wild_fetch", url="http://a.wild.test/")
    beside = world.call("wild_fetch", url="http://good.test/")

    assert below.results == f"{OTHER}:80"
    assert beside.code == "E_NETWORK_DENIED"


def test_port_rule_opens_every_address_except_cloud_metadata(world: World) -> None:
    called = world.call(
        "port_fetch_each",
        urls=[f"http://{host}:8080/" for host in (PUBLIC, PRIVATE, KEYS)] + ["http://good.test:80/"],
    )

    assert called.results[:2] == [f"{PUBLIC}:8080", f"{PRIVATE}:8080"]
    assert all("Permission denied" in text for text in called.results[2:]), called.results


def test_rule_without_name_opens_public_addresses_only(world: World) -> None:
    hosts = ("good.test", OTHER, "inner.test", PRIVATE, KEYS, "127.0.0.1:8081", "[::1]:8081")

    called = world.call("anywhere_fetch_each", urls=[f"http://{host}/" for host in hosts])

    assert called.results[:2] == [f"{PUBLIC}:80", f"{OTHER}:80"]
    assert all("Permission denied" in text for text in called.results[2:]), called.results
    assert called.seen == [f"{PUBLIC}:80", f"{OTHER}:80"]


def test_own_public_address_is_reachable_only_if_named(world: World) -> None:
    named = world.call("own_named_connect", host=OWN, port=8081)
    mapped = world.call("own_named_connect", host=f"::ffff:{OWN}", port=8081)
    refused = [
        world.call(f"{right}_connect", host=host, port=8081)
        for right in ("anywhere", "own_name")
        for host in (OWN, f"::ffff:{OWN}", "own.test")
    ]

    assert [each.value.get("meta_data", {}).get("error_code") for each in (named, mapped)] == [None, None]
    assert [each.code for each in refused] == ["E_NETWORK_DENIED"] * 6
    assert refused[0].details["flag"] == f"--allow-net={OWN}:8081"


def test_nonexistent_name_is_not_a_denial(world: World) -> None:
    called = world.call("anywhere_look_up", host="no-such-name.test")

    assert called.code == "E_TOOL"
    assert called.details["exception_type"] == "gaierror"
