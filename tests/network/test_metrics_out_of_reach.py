"""No tool reaches the metrics, which name every user: in no tier, whatever the operator allows it.

These tests run as root: the tiers need it.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from support import TOOLS, call, error_code, open_toolset

from runner.errors import UsageError
from runner.observation.metrics import Gauges, Metrics, metrics_served
from runner.settings.sources import load

pytestmark = [pytest.mark.needs_root, pytest.mark.anyio, pytest.mark.kernel]

OPEN = ("localhost", "127.0.0.0/8", "0.0.0.0")
"""Every port of this machine; that of the metrics by its number is refused at the start."""


async def gauges() -> Gauges:
    return Gauges(user_memory={"bob": 7})


WAYS = ("127.0.0.1", "localhost", "127.0.0.2", "0.0.0.0")


@asynccontextmanager
async def served(port: int) -> AsyncIterator[None]:
    async with metrics_served(f"0.0.0.0:{port}", Metrics(), gauges):
        yield


@pytest.mark.parametrize("tier", ["process", "user", "namespace"])
async def test_metrics_are_unreachable_for_tools_with_any_rights(tier: str, tmp_path: Path) -> None:
    ours, another = free_port(), free_port()
    more: dict[str, Any] = {"isolation": tier, "allow_net": OPEN, "metrics_address": f"0.0.0.0:{ours}"}
    async with (
        served(ours),
        served(another),
        open_toolset(TOOLS / "fleet_tools.py", tmp_path, **more) as tools,
    ):
        # The control is the same at a port that nobody has closed.
        reached = {
            port: [await call(tools, "ann", "knock", host=host, port=port) for host in WAYS]
            for port in (ours, another)
        }

    answers = {
        port: [str(one.processed.value["results"]) for one in found] for port, found in reached.items()
    }
    assert all(text.startswith("HTTP/1.1 ") for text in answers[another])
    assert [text for text in answers[ours] if "HTTP" in text] == []


async def test_metrics_port_is_readable_by_tools_unless_closed(tmp_path: Path) -> None:
    port = free_port()
    arguments = {"url": f"http://127.0.0.1:{port}/metrics"}
    async with served(port):
        async with open_toolset(TOOLS / "network.py", tmp_path / "open", allow_net=OPEN) as toolset:
            read = await call(toolset, "ann", "closed_fetch", **arguments)
        async with open_toolset(TOOLS / "network.py", tmp_path / "shut") as toolset:
            denied = await call(toolset, "ann", "closed_fetch", **arguments)

    assert 'toolcell_user_memory_bytes{user="bob"} 7' in read.processed.value["results"]
    assert error_code(denied) == "E_NETWORK_DENIED"


@pytest.mark.parametrize("opened", ["127.0.0.1:9464", ":9464", "localhost:9464"])
def test_an_operator_cannot_open_their_port_by_its_number(opened: str) -> None:
    flags = {"metrics_address": "127.0.0.1:9464", "allow_net": opened}

    with pytest.raises(UsageError, match="port 9464 is that of metrics_address, which no tool may reach"):
        load(flags)

    assert load({**flags, "allow_net": "localhost:9465"}).closed_ports == (9464,)


@pytest.mark.parametrize(
    "opened",
    [
        'allow_net = ["localhost:9465"]',
        'allow_net = ["*.example.com"]',
        '[tools.one]\nallow_net = ["example.com"]',
    ],
)
def test_metrics_port_0_is_refused_when_tools_reach_any_address(opened: str, tmp_path: Path) -> None:
    config = tmp_path / "runner.toml"
    config.write_text(f"{opened}\n")

    with pytest.raises(UsageError, match="metrics_address has port 0, which is chosen too late"):
        load({"metrics_address": "127.0.0.1:0"}, config=config)

    assert load({"metrics_address": "127.0.0.1:9464"}, config=config).closed_ports == (9464,)
    assert load({"metrics_address": "127.0.0.1:0"}).closed_ports == ()


def test_the_tier_that_closes_nothing_is_refused_with_metrics() -> None:
    assert load({"isolation": "guard"}).metrics_address is None

    with pytest.raises(UsageError, match="isolation guard stops no tool from reaching metrics_address"):
        load({"isolation": "guard", "metrics_address": "127.0.0.1:9464"})
