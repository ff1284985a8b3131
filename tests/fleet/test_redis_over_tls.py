"""A Redis behind TLS, with a certificate of an authority that only the address names, and with a password."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from certificates import SERVER, Authority
from cryptography.x509 import DNSName, IPAddress
from fleet_world import RedisServer, World

from runner.errors import UsageError
from runner.fleet.connection import FleetConnection
from runner.settings.settings import Settings

pytestmark = [pytest.mark.anyio, pytest.mark.needs_s3]

PASSWORD = "a-password-of-redis"


@dataclass(kw_only=True)
class _TlsRedis(RedisServer):
    authority: Path

    @property
    def url(self) -> str:
        return self.address_with(f":{PASSWORD}@", f"?ssl_ca_certs={self.authority}")

    def address_with(self, login: str, query: str, host: str = "localhost") -> str:
        return f"rediss://{login}{host}:{self.port}/0{query}"


@contextmanager
def _tls_redis(folder: Path, *names: DNSName | IPAddress) -> Iterator[_TlsRedis]:
    authority = Authority(folder / "authority")
    pair = authority.signed("redis", *names, purposes=(SERVER,))
    folder = folder / "redis"
    folder.mkdir()
    server = _TlsRedis(folder, authority=authority.file)
    server.options = [
        *("--port", "0", "--tls-port", str(server.port), "--tls-auth-clients", "no"),
        *("--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key)),
        *("--tls-ca-cert-file", str(authority.file), "--requirepass", PASSWORD),
    ]
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.release
async def test_fleet_over_tls_refuses_unverifiable_peers(world: World) -> None:
    with _tls_redis(world.folder, DNSName("localhost")) as server:
        world.redis = server
        trusting = f"?ssl_ca_certs={server.authority}"
        stranger = Authority(world.folder / "stranger", "stranger").file
        bad = [
            (server.address_with(":wrong@", trusting), "invalid username-password"),
            (server.address_with("", trusting), "already authenticated"),
            (server.address_with(f":{PASSWORD}@", ""), "CERTIFICATE_VERIFY_FAILED"),
            (server.address_with(f":{PASSWORD}@", f"?ssl_ca_certs={stranger}"), "CERTIFICATE_VERIFY_FAILED"),
            (server.address_with(f":{PASSWORD}@", trusting, "127.0.0.1"), "CERTIFICATE_VERIFY_FAILED"),
        ]
        world.node("one")
        async with world.host() as host:
            added = await host.result("add", {"a": 1, "b": 2})
        refused = []
        for url, reason in bad:
            settings = Settings(**world.settings("other", redis_url=url))
            with pytest.raises(UsageError, match="does not answer") as error:
                async with FleetConnection.open(settings):
                    pass
            refused.append((reason in str(error.value), PASSWORD in str(error.value), str(error.value)))
        for node in world.nodes:
            node.process.terminate()
            node.process.wait(60)

    assert added == 3
    assert [(has_reason, leaks) for has_reason, leaks, _ in refused] == [(True, False)] * len(bad), refused
