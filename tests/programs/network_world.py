"""A small Internet in network namespaces, with a name server, and a toolset in it that answers calls.

The runner's namespace has one cable, to another in which web servers listen on addresses of the wide world
and on private ones. Nothing leaves this machine. Calls come as JSON lines: user, tool, arguments.

usage: unshare --net --mount python network_world.py TIER FOLDER TOOL_FILE
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from support import call, open_toolset

from sandbox.network.dns import RecordType, ResponseCode, answer, read_question

TIER, FOLDER, TOOL_FILE = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
PUBLIC, OTHER, PRIVATE, KEYS = "93.184.215.14", "151.101.1.69", "10.1.2.3", "169.254.169.254"
OWN = "151.101.65.69"
NAMES = {
    "good.test": [PUBLIC],
    "other.test": [OTHER],
    "a.wild.test": [OTHER],
    "inner.test": [PRIVATE],
    "keys.test": [KEYS],
    "own.test": [OWN],
    "both.test": [PRIVATE, PUBLIC],
    "new\N{LATIN SMALL LETTER E WITH ACUTE}.test".encode("idna").decode(): [PUBLIC],
}
TOOLS = {
    "named": ["good.test:80"],
    "several": ["good.test:80", "rebind.test:80", "inner.test:80", "keys.test", "both.test:80"],
    "beside": ["inner.test:80", "10.1.2.0/24:80"],
    "wild": ["*.wild.test:80"],
    "port": [":8080"],
    "anywhere": ["*"],
    "own_name": ["own.test"],
    "own_named": ["own.test", OWN],
    "closed": [],
}


class Names(asyncio.DatagramProtocol):
    """The name server. One name stands for something else each time, as an attacker's would."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        self.changing: Iterator[list[str]] = iter([[PUBLIC], [PRIVATE], [KEYS], ["127.0.0.1"]])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = read_question(data)
        name = question.name.lower()
        self.queries.append(name)
        addresses = []
        if question.kind is RecordType.IPV4:
            addresses = next(self.changing) if name == "rebind.test" else NAMES.get(name, [])
        known = name in NAMES or name == "rebind.test"
        self.transport.sendto(
            answer(question, ResponseCode.FOUND if known else ResponseCode.NO_SUCH_NAME, addresses), addr
        )


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def lay_cable() -> "subprocess.Popen[str]":
    """Start the servers in a namespace of their own, and connect it with this one."""
    program = Path(__file__).with_name("network_servers.py")
    servers = subprocess.Popen(
        ["unshare", "--net", sys.executable, str(program), "far"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    here = Path("/proc/self/ns/net").readlink()
    while Path(f"/proc/{servers.pid}/ns/net").readlink() == here:
        assert servers.poll() is None, "the servers have ended"
    ip("link", "set", "lo", "up")
    ip("link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(servers.pid))
    ip("address", "add", "198.18.0.1/24", "dev", "near")
    ip("link", "set", "near", "up")
    ip("address", "add", f"{OWN}/32", "dev", "lo")
    ask(servers, "go")
    ip("route", "add", "default", "via", "198.18.0.2")
    resolver = FOLDER / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    subprocess.run(["mount", "--bind", str(resolver), "/etc/resolv.conf"], check=True)
    return servers


def ask(servers: "subprocess.Popen[str]", order: str) -> str:
    assert servers.stdin is not None
    assert servers.stdout is not None
    servers.stdin.write(order + "\n")
    servers.stdin.flush()
    return servers.stdout.readline()


async def main() -> None:
    servers = lay_cable()
    loop = asyncio.get_running_loop()
    _, names = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", 53))
    own = await asyncio.start_server(lambda _, writer: writer.close(), ["127.0.0.1", OWN], 8081)
    rights = {
        f"{right}_{act}": {"allow_net": allowed}
        for right, allowed in TOOLS.items()
        for act in ("fetch", "fetch_in_a_program", "connect", "look_up", "fetch_each")
    }
    async with open_toolset(TOOL_FILE, FOLDER, isolation=TIER, tools=rights) as toolset:
        while line := await asyncio.to_thread(sys.stdin.readline):
            user, tool, arguments = json.loads(line)
            names.queries.clear()
            completed = await call(toolset, user, tool, **arguments)
            seen = json.loads(await asyncio.to_thread(ask, servers, "seen"))
            report = {"value": completed.processed.value, "seen": seen, "queries": names.queries}
            print(json.dumps(report), flush=True)
    own.close()
    servers.terminate()
    servers.wait()


asyncio.run(main())
