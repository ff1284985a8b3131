"""A gateway that proves itself by a certificate: real certificates and sockets, and who is not let in."""

import asyncio
import json
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
import uvicorn
from certificates import CLIENT, DAY, SERVER, Authority, Pair, here, pem_of, tls_folder
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from starlette.types import Receive, Scope, Send
from support import becomes, until

from runner.errors import UsageError
from runner.http.gateway import Gateway, Peers, TlsConnection
from runner.settings.auth import Auth
from runner.settings.settings import Settings
from runner.system.accepting import Acceptor
from runner.system.listening import QuietServer, listen_on
from runner.users.gateway_tls import GatewayTls, names_of, wanted_names

Serve = Callable[..., str]

GATEWAY = x509.DNSName("gateway.example.com")
WORKLOAD = x509.UniformResourceIdentifier("spiffe://example.com/gateway")
ANN = {"x-forwarded-user": "ann"}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certificates")


def auth_of(authority: Authority, **more: Any) -> Auth:
    own = authority.signed("server", *here(), purposes=[SERVER])
    usual = {
        "kind": "gateway",
        "gateway_tls": tls_folder(own, authority.file),
        "gateway_names": ("gateway.example.com", "spiffe://example.com/gateway"),
    }
    return Auth(**(usual | more))


def client(authority: Authority, pair: Pair | None, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """Return what a client connects with; with a version, that one only."""
    context = ssl.create_default_context(cafile=authority.file)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    if version is not None:
        if version < ssl.TLSVersion.TLSv1_2:
            # Elsewhere it would be the client that refuses.
            context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
    return context


@dataclass
class Served:
    """A server whose page answers with the user that a gateway has named."""

    authority: Authority
    port: int = 0
    server: QuietServer | None = None
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connected(
        self, context: ssl.SSLContext | None, source: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = None if context is None else "localhost"
        stream = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=(source, 0), ssl=context, server_hostname=name
        )
        self.open.append(stream[1])
        return stream

    async def response(self, context: ssl.SSLContext | None, source: str = "127.0.0.1") -> str:
        """Return the status and the body of an answer; what kind of nothing came instead."""
        try:
            return await response_on(await self.connected(context, source))
        except OSError:
            return "no connection"

    async def response_to(self, pair: Pair | None, source: str = "127.0.0.1") -> str:
        return await self.response(client(self.authority, pair), source)


async def response_on(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> str:
    reader, writer = stream
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-User: ann\r\n\r\n")
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (OSError, asyncio.IncompleteReadError):
        # A client of TLS 1.3 has finished its handshake before the server has looked at its certificate.
        return "no connection"
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    body = await reader.readexactly(int(length.partition(b":")[2]))
    return f"{head.split()[1].decode()} {body.decode()}"


@asynccontextmanager
async def served(authority: Authority, **more: Any) -> AsyncIterator[Served]:
    settings = Settings(auth=auth_of(authority, **more))

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        user = dict(scope["headers"]).get(b"authorization", b"nobody")
        length = (b"content-length", b"%d" % len(user))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": user})

    gateway: Any = Peers(Gateway(page, settings=settings, give=attrgetter("name")))
    config = uvicorn.Config(
        gateway, http=TlsConnection, ws="none", log_config=None, access_log=False, lifespan="off"
    )
    tls = GatewayTls.of(settings)
    server = QuietServer(config, tls=None if tls is None else tls.context)
    listener = listen_on("127.0.0.1", 0, setting="--port")
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    assert await becomes(lambda: server.started)
    one = Served(authority, listener.getsockname()[1], server)
    try:
        yield one
    finally:
        for writer in one.open:
            writer.transport.abort()
        server.should_exit = True
        await serving


def limit_handshakes(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the handshake timeout of the next servers."""
    monkeypatch.setattr("runner.system.listening.Acceptor", partial(Acceptor, handshake_s=seconds))


LET_IN = "200 Bearer ann"


@pytest.mark.anyio
async def test_gateway_user_accepted_with_named_certificate_only(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path / "elsewhere")
    alike = x509.DNSName("GATEWAY.example.com"), x509.DNSName("*.example.com")
    async with served(authority) as one:
        answers = {
            "dns": await one.response_to(authority.signed("dns", GATEWAY, purposes=[CLIENT])),
            "uri": await one.response_to(authority.signed("uri", WORKLOAD)),
            "one of several": await one.response_to(authority.signed("several", *here(GATEWAY))),
            "no certificate": await one.response_to(None),
            "another authority": await one.response_to(other.signed("forged", GATEWAY)),
            "expired": await one.response_to(authority.signed("expired", GATEWAY, valid=(-2 * DAY, -DAY))),
            "not yet valid": await one.response_to(authority.signed("early", GATEWAY, valid=(DAY, 2 * DAY))),
            "for servers": await one.response_to(authority.signed("purpose", GATEWAY, purposes=[SERVER])),
            "plain http": await one.response(None),
            "another name": await one.response_to(
                authority.signed("other", x509.DNSName("other.example.com"))
            ),
            "names alike": await one.response_to(authority.signed("alike", *alike)),
            "longer name": await one.response_to(
                authority.signed("longer", x509.DNSName("gateway.example.com.evil.example"))
            ),
            "zero byte": await one.response_to(
                authority.signed("zero", x509.DNSName("gateway.example.com\0.evil.example"))
            ),
            "uri as dns": await one.response_to(authority.signed("kinds", x509.DNSName(WORKLOAD.value))),
            "dns as uri": await one.response_to(
                authority.signed("kinds2", x509.UniformResourceIdentifier(GATEWAY.value))
            ),
            "as email": await one.response_to(authority.signed("email", x509.RFC822Name(GATEWAY.value))),
            "as common name": await one.response_to(authority.signed("cn", common_name=GATEWAY.value)),
            "none": await one.response_to(authority.signed("none")),
            "its server's": await one.response_to(authority.signed("own", *here())),
        }

    let_in = [what for what, answer in answers.items() if answer == LET_IN]
    unconnected = [what for what, answer in answers.items() if answer == "no connection"]
    refused = [what for what, answer in answers.items() if answer.startswith("403 ")]
    assert let_in == ["dns", "uri", "one of several"]
    assert unconnected == [
        "no certificate", "another authority", "expired", "not yet valid", "for servers", "plain http",
    ]  # fmt: skip
    assert refused == [
        "another name", "names alike", "longer name", "zero byte", "uri as dns", "dns as uri", "as email",
        "as common name", "none", "its server's",
    ]  # fmt: skip
    assert "auth.gateway_names" in answers["another name"]
    handshakes = [record for record in caplog.records if "TLS handshake failed" in record.message]
    assert len(handshakes) == 1
    assert "peer did not return a certificate" in vars(handshakes[0])["problem"].lower().replace("_", " ")
    refused_headers = [each for each in caplog.records if each.message == "gateway header refused"]
    assert vars(refused_headers[0])["certificate"] == "DNS:other.example.com"


@pytest.mark.anyio
async def test_gateway_addresses_narrow_accepted_certificates(authority: Authority) -> None:
    pair = authority.signed("gateway", GATEWAY)
    async with served(authority, gateway_addresses=("127.0.0.2",)) as one:
        inside = await one.response_to(pair, "127.0.0.2")
        outside = await one.response_to(pair, "127.0.0.1")
        neighbour = await one.response_to(authority.signed("other"), "127.0.0.2")

    assert inside == LET_IN
    assert outside.startswith("403 ")
    assert "auth.gateway_addresses, auth.gateway_names" in outside
    assert neighbour.startswith("403 ")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("version", "answer", "problems"),
    [
        (ssl.TLSVersion.TLSv1_1, "no connection", ["UNSUPPORTED_PROTOCOL"]),
        (ssl.TLSVersion.TLSv1_2, LET_IN, []),
        (ssl.TLSVersion.TLSv1_3, LET_IN, []),
    ],
    ids=str,
)
# Python warns of the old version, which is what is tried here.
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_tls_from_1_2_on_accepted(
    authority: Authority,
    version: ssl.TLSVersion,
    answer: str,
    problems: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(authority) as one:
        reply = await one.response(client(authority, authority.signed("gateway", GATEWAY), version))

    assert reply == answer
    assert [vars(record)["problem"] for record in caplog.records if "handshake" in record.message] == problems


@pytest.mark.anyio
async def test_tls_agrees_http_1_1_and_issues_no_tickets(authority: Authority) -> None:
    async with served(authority) as one:
        context = client(authority, authority.signed("gateway", GATEWAY))
        context.set_alpn_protocols(["h2", "http/1.1"])
        stream = await one.connected(context)
        answer = await response_on(stream)
        found = stream[1].get_extra_info("ssl_object")

    assert answer == LET_IN
    assert found.selected_alpn_protocol() == "http/1.1"
    assert found.session is None or not found.session.has_ticket


@pytest.mark.anyio
async def test_resumed_tls_session_expires_with_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS 1.2 resumes by number, and then nobody checks the certificate again but we."""
    context = client(authority, authority.signed("gateway", GATEWAY), ssl.TLSVersion.TLSv1_2)
    async with served(authority) as one:
        first, session, _ = await asyncio.to_thread(_resumed, context, one.port, None)
        again, _, is_resumed = await asyncio.to_thread(_resumed, context, one.port, session)
        later = time.time() + 2 * DAY.total_seconds()
        monkeypatch.setattr("runner.http.gateway.time", SimpleNamespace(time=lambda: later))
        over, _, is_over_resumed = await asyncio.to_thread(_resumed, context, one.port, session)

    assert (first, again, over) == (b"200", b"200", b"403")
    assert (is_resumed, is_over_resumed) == (True, True)


def _resumed(
    context: ssl.SSLContext, port: int, session: ssl.SSLSession | None
) -> tuple[bytes, ssl.SSLSession | None, bool | None]:
    """Send a request in a session or a new one; return status, session, and whether it was resumed."""
    plain = socket.create_connection(("127.0.0.1", port))
    with context.wrap_socket(plain, server_hostname="localhost", session=session) as made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-User: ann\r\nConnection: close\r\n\r\n")
        data = b""
        # To the end: OpenSSL forgets a session whose connection was cut off.
        while more := made.recv(1000):
            data += more
        return data[9:12], made.session, made.session_reused


@pytest.mark.anyio
async def test_intermediate_authority_may_be_named_alone(authority: Authority) -> None:
    """Its neighbours do not count, though the same root signed them."""
    ours = Authority(authority.folder, "ours", authority)
    theirs = Authority(authority.folder, "theirs", authority)
    own = authority.signed("own", *here(), purposes=[SERVER])
    async with served(authority, gateway_tls=tls_folder(own, ours.file)) as one:
        mine = await one.response_to(ours.signed("mine", GATEWAY))
        neighbour = await one.response_to(theirs.signed("neighbour", GATEWAY))
        of_root = await one.response_to(authority.signed("of-root", GATEWAY))

    assert (mine, neighbour, of_root) == (LET_IN, "no connection", "no connection")


@pytest.mark.anyio
async def test_certificate_cannot_sign_another(authority: Authority) -> None:
    """A holder of any certificate would otherwise make himself one with the gateway's name."""
    holder = authority.signed("holder", x509.DNSName("other.example.com"))
    forger = Authority(authority.folder / "forger", "holder")
    forger.key = _key_of(holder)
    forger.above = authority
    forger.certificate = x509.load_pem_x509_certificates(holder.certificate.read_bytes())[0]
    async with served(authority) as one:
        honest = await one.response_to(authority.signed("gateway", GATEWAY))
        as_holder = await one.response_to(holder)
        forged = await one.response_to(forger.signed("forged", GATEWAY))

    assert honest == LET_IN
    assert as_holder.startswith("403 ")
    assert forged == "no connection"


def _key_of(pair: Pair) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key(pair.key.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


@pytest.mark.anyio
async def test_revocation_list_beside_authority_is_applied(authority: Authority) -> None:
    lost, valid = authority.signed("lost", GATEWAY), authority.signed("kept", GATEWAY)
    async with served(authority) as one:
        before = await one.response_to(lost)
        authority.file.write_bytes(authority.file.read_bytes() + authority.revoked(lost))
        after = await one.response_to(lost)
        others = await one.response_to(valid)

    assert (before, after, others) == (LET_IN, "no connection", LET_IN)


@pytest.mark.anyio
async def test_renewed_certificates_apply_to_new_connections_only(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    context = client(authority, authority.signed("gateway", GATEWAY))
    async with served(authority) as one:
        old = await one.connected(context)
        first = await response_on(old)
        renewed = authority.signed("server", *here(), purposes=[SERVER])
        tls_folder(renewed, authority.file)
        new = await one.connected(context)
        good = renewed.certificate.read_bytes()
        renewed.certificate.write_bytes(good[:200])
        damaged = await one.connected(context)
        still_damaged = await one.connected(context)
        answers = [await response_on(stream) for stream in (new, damaged, still_damaged, old)]
        renewed.certificate.write_bytes(good)
        repaired = await one.connected(context)

    numbers = [_number(stream) for stream in (new, damaged, still_damaged, repaired)]
    assert first == LET_IN
    assert answers == [LET_IN] * 4
    assert _number(old) != renewed.number
    assert numbers == [renewed.number] * 4
    records = [record for record in caplog.records if record.message.startswith("certificate")]
    assert [record.levelname for record in records] == ["INFO", "WARNING", "INFO"]
    assert "auth.gateway_tls" in vars(records[1])["problem"]


def _number(stream: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> int:
    found = stream[1].get_extra_info("ssl_object").getpeercert()
    return int(found["serialNumber"], 16)


@pytest.mark.anyio
async def test_removed_authority_rejects_its_certificates(authority: Authority, tmp_path: Path) -> None:
    pair = authority.signed("gateway", GATEWAY)
    next_one = Authority(tmp_path / "next")
    trusted = client(authority, pair)
    async with served(authority) as one:
        before = await one.response(trusted)
        authority.file.write_bytes(next_one.file.read_bytes())
        after = await one.response(trusted)
        trusted.load_cert_chain(*_files(next_one.signed("gateway", GATEWAY)))
        renewed = await one.response(trusted)

    assert (before, after, renewed) == (LET_IN, "no connection", LET_IN)


def _files(pair: Pair) -> tuple[Path, Path]:
    return pair.certificate, pair.key


@pytest.mark.anyio
async def test_slow_handshake_blocks_nobody_and_times_out(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = client(authority, authority.signed("gateway", GATEWAY))
    limit_handshakes(monkeypatch, 600)
    async with served(authority) as one:
        slow = [await one.connected(None, f"127.0.0.{last}") for last in range(1, 50)]
        beside = await one.response(context)
        waiting = [not reader.at_eof() for reader, _writer in slow]
    limit_handshakes(monkeypatch, 0.2)
    async with served(authority) as one:
        reader, writer = await one.connected(None)
        writer.write(b"\x16")
        ended = await reader.read()

    assert (beside, ended) == (LET_IN, b"")
    assert all(waiting)


@pytest.mark.anyio
async def test_handshakes_in_progress_end_with_the_server(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_handshakes(monkeypatch, 600)
    async with served(authority) as one:
        reader, writer = await one.connected(None)
        writer.write(b"\x16")
        assert await one.response(client(authority, authority.signed("gateway", GATEWAY))) == LET_IN
        assert not reader.at_eof()
        assert one.server is not None
        one.server.should_exit = True
        ended = await becomes(reader.at_eof)

    assert ended


CERTIFICATE = {
    "notBefore": "Jan  1 00:00:00 2026 GMT",
    "notAfter": "Jan  3 00:00:00 2026 GMT",
    "subject": ((("commonName", "gateway.example.com"),),),
    "subjectAltName": (("DNS", "a"), ("URI", "spiffe://a"), ("email", "a@b"), ("IP Address", "127.0.0.1")),
}
IN_TIME = ssl.cert_time_to_seconds("Jan  2 00:00:00 2026 GMT")


def test_certificate_names_are_dns_and_uris_while_valid() -> None:
    """Also where a session was resumed, for which OpenSSL checked it earlier."""
    times = [IN_TIME, IN_TIME - DAY.total_seconds() - 1, IN_TIME + DAY.total_seconds() + 1]
    nameless = {name: value for name, value in CERTIFICATE.items() if name != "subjectAltName"}

    found = [names_of(CERTIFICATE, now=now) for now in times]

    assert found == [{"DNS:a", "URI:spiffe://a"}, frozenset(), frozenset()]
    assert names_of(None, now=IN_TIME) == names_of({}, now=IN_TIME) == frozenset()
    assert names_of(nameless, now=IN_TIME) == frozenset()
    assert wanted_names(["a", "spiffe://a"]) == {"DNS:a", "URI:spiffe://a"}


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("missing certificate", r"auth\.gateway_tls .*tls\.crt does not exist"),
        ("no certificate", r"auth\.gateway_tls .*tls\.crt holds no certificate in PEM form"),
        ("missing key", r"auth\.gateway_tls .*tls\.key does not exist; write it there"),
        ("open key", r"auth\.gateway_tls .*tls\.key is open to other users; chmod 600"),
        ("key of another", r"auth\.gateway_tls .*tls\.key is not the key of the first certificate"),
        ("damaged key", r"auth\.gateway_tls .*tls\.crt and .*tls\.key cannot be used"),
        ("encrypted key", r"auth\.gateway_tls .*tls\.key is encrypted, and nobody is asked"),
        ("key elsewhere", r"auth\.gateway_tls .*tls\.key is a link to another folder; put the key itself"),
        ("missing ca", r"auth\.gateway_tls .*ca\.crt does not exist"),
        ("empty ca", r"auth\.gateway_tls .*ca\.crt holds no certificate in PEM form"),
        ("folder as ca", r"auth\.gateway_tls .*ca\.crt cannot be read: it is a folder, and has"),
    ],
)
def test_unusable_files_reported_with_setting(
    authority: Authority, tmp_path: Path, broken: str, sentence: str
) -> None:
    auth = auth_of(authority)
    other = authority.signed("other")
    encrypted = tmp_path / "encrypted.key"
    encrypted.touch(mode=0o600)
    encrypted.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1()), b"a passphrase"))
    empty = tmp_path / "empty.pem"
    empty.touch(mode=0o600)
    folder = Path(str(auth.gateway_tls))
    opened = tmp_path / "open.key"
    opened.write_bytes((folder / "tls.key").read_bytes())
    opened.chmod(0o644)
    changes: dict[str, tuple[str, Path]] = {
        "missing certificate": ("tls.crt", tmp_path / "nowhere"),
        "no certificate": ("tls.crt", empty),
        "missing key": ("tls.key", tmp_path / "nowhere"),
        "open key": ("tls.key", opened),
        "key of another": ("tls.key", other.key),
        "damaged key": ("tls.key", empty),
        "encrypted key": ("tls.key", encrypted),
        "key elsewhere": ("tls.key", other.key),
        "missing ca": ("ca.crt", tmp_path / "nowhere"),
        "empty ca": ("ca.crt", empty),
        "folder as ca": ("ca.crt", tmp_path),
    }
    name, file = changes[broken]

    usable = GatewayTls.of(Settings(auth=auth))
    (folder / name).unlink()
    if name != "tls.key" or broken == "key elsewhere":
        (folder / name).symlink_to(file)
    elif file.exists():
        os.link(file, folder / name)
    with pytest.raises(UsageError, match=sentence):
        GatewayTls.of(Settings(auth=auth))

    assert usable is not None
    assert usable.warnings == ()


def test_expired_server_certificate_used_and_reported(authority: Authority) -> None:
    own = authority.signed("old", *here(), valid=(-2 * DAY, -DAY))

    folder = tls_folder(own, authority.file)

    tls = GatewayTls.of(Settings(auth=auth_of(authority, gateway_tls=folder)))

    assert tls is not None
    (warning,) = tls.warnings
    assert warning.startswith(f"auth.gateway_tls {folder}/tls.crt expired on ")
    assert warning.endswith("gateways will not connect until it is renewed")


@pytest.mark.release
@pytest.mark.anyio
@pytest.mark.kernel
async def test_official_client_calls_as_user_named_by_gateway(
    authority: Authority, serve_to: Serve, tmp_path: Path
) -> None:
    auth = auth_of(authority)
    gateway = authority.signed("gateway", GATEWAY)
    url = serve_to(
        RUNNER_USER="",
        RUNNER_AUTH__KIND="gateway",
        RUNNER_AUTH__GATEWAY_TLS=str(auth.gateway_tls),
        RUNNER_AUTH__GATEWAY_NAMES=",".join(auth.gateway_names),
    )

    called = {user: await _called(url, client(authority, gateway), user) for user in ("ann", "bob")}
    base = url.removesuffix("/mcp")
    replies = {}
    for name, pair in {"gateway": gateway, "other": authority.signed("other")}.items():
        with httpx2.Client(verify=client(authority, pair), timeout=180, trust_env=False) as http:
            replies[name] = [
                http.get(f"{base}/api/files", headers=ANN).status_code,
                http.get(f"{base}/api/files").status_code,
                until(partial(_is_ready, http, base)),
                http.post(url, headers=ANN, json={}).status_code,
            ]
    for address, verify in (
        (base, client(authority, None)),
        (base.replace("https:", "http:"), client(authority, gateway)),
    ):
        with pytest.raises(httpx2.TransportError):
            httpx2.get(f"{address}/readyz", verify=verify, timeout=180, trust_env=False)

    assert url.startswith("https://127.0.0.1:")
    assert [json.loads(answer)[0]["text"] for answer in called.values()] == ["ann", "bob"]
    assert replies["gateway"][:3] == [200, 401, True]
    assert replies["gateway"][3] not in (401, 403)
    assert replies["other"] == [403, 401, True, 403]
    log = (tmp_path / "log").read_text()
    assert "gateway header refused" in log
    assert "a TLS handshake failed" in log


def _is_ready(http: httpx2.Client, base: str) -> bool:
    return http.get(f"{base}/readyz").status_code == 200


async def _called(url: str, context: ssl.SSLContext, user: str) -> str:
    headers = {"x-forwarded-user": user}
    async with (
        httpx2.AsyncClient(verify=context, headers=headers, timeout=180, trust_env=False) as http,
        streamable_http_client(url, http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing) as session,
    ):
        await session.initialize()
        result = await session.call_tool("whose", {})
    return json.dumps([part.model_dump(mode="json") for part in result.content])
