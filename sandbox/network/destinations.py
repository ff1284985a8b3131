"""Allowed destinations of a confined process: names, addresses and ports, as written by an operator.

Pure decisions, without lookups or connections; `sandbox.network.egress` makes those.

    api.example.com:443     that name, at any of its public addresses
    *.example.com           any name below it, any port
    10.0.0.5:5432           that address, which may be a private one
    10.0.0.0/8:443          any address of that network
    localhost:8080          this machine's own address, 127.0.0.1 or ::1
    :443                    that port of every address
    *                       every public address

A name allows public addresses only: otherwise its DNS server could point it into the network of this
machine. A private address must be named itself. Every address of this machine counts as private, even
a globally routable one: `sandbox.network.own_addresses` finds those.

Source: architecture, decision "Network"; RFC 1123, section 2.1; inet(3); RFC 1918, 4193, 6598, 6890;
RFC 6052 and 8215 for NAT64.
"""

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Self

__all__ = ["ANYWHERE", "Destination", "Destinations", "IpAddress", "is_name", "is_public", "plain", "written"]

ANYWHERE = "*"
"""Every public address; the value of `--allow-net` without a value."""

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
"""A parsed address."""
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_BELOW = "*."
# The C library may read a name that ends in a number as an address: 8.8.2056 and 0x08080808 are 8.8.8.8.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_LOCALHOST = "localhost"
_LOOPBACK = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))
# The global unicast range, and special networks in it that some versions of `ipaddress` do not know.
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_SPECIAL: tuple[_Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")
)
# The agent of Azure's machines, which gives out keys at a globally routable address.
_AZURE_AGENT = ipaddress.IPv4Address("168.63.129.16")
# Networks whose addresses embed an IPv4 address, which could be that of a cloud's key service.
_CARRYING = tuple(
    ipaddress.IPv6Network(text)
    for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16", "::ffff:0:0/96", "fd00:ec2::/32")
)
_HOW = "write HOST, HOST:PORT, :PORT, ADDRESS/BITS:PORT or *.DOMAIN"


@dataclass(frozen=True, slots=True)
class Destination:
    """One reachable destination.

    Attributes:
        name: A name, perhaps prefixed with `*.`, or None.
        network: Addresses, or None.
        port: The one port, or None for all.
    """

    name: str | None = None
    network: _Network | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one destination.

        Raises:
            ValueError: It is malformed; the message says what to write.
        """
        host, port = _split(text)
        if host == "" and port is None:
            raise ValueError(f"an empty destination; {_HOW}")
        if host in ("", ANYWHERE):
            return cls(name=ANYWHERE if host else None, port=port)
        network = _network(host)
        return cls(network=network, port=port) if network else cls(name=_name(host, text), port=port)

    def has_port(self, port: int) -> bool:
        """Return whether a port is allowed."""
        return self.port is None or self.port == port

    def matches_name(self, name: str) -> bool:
        """Return whether a name, in lower case and without a trailing dot, matches."""
        if self.name is None or self.name == ANYWHERE:
            return self.network is None
        return name.endswith(self.name[1:]) if self.name.startswith("*.") else name == self.name

    def covers(self, address: IpAddress) -> bool:
        """Return whether an address of any kind is named explicitly."""
        if self.network is not None:
            return address in self.network
        if self.name is None:
            return not _is_reserved(address)
        return self.name == _LOCALHOST and address in _LOOPBACK


@dataclass(frozen=True, slots=True)
class Destinations:
    """All reachable destinations; if empty, none is reachable."""

    all: tuple[Destination, ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read destinations.

        Raises:
            ValueError: One of them is malformed.
        """
        return cls(tuple(Destination.parse(text) for text in texts))

    def may_look_up(self, name: str, port: int | None = None) -> bool:
        """Return whether a name may be looked up, for a port if it is known."""
        name = plain(name)
        if not is_name(name):
            return False
        return any((port is None or one.has_port(port)) and one.matches_name(name) for one in self.all)

    def may_reach(
        self,
        address: str,
        port: int,
        names: Collection[str],
        *,
        is_own: Callable[[IpAddress], bool] | None = None,
    ) -> bool:
        """Return whether an address may be reached on a port.

        Args:
            address: A numeric address.
            port: The port.
            names: Names known to resolve to this address.
            is_own: Returns whether an address is one of this machine, which then counts as private.
        """
        ip = _plain_address(address)
        fitting = [one for one in self.all if one.has_port(port)]
        if any(one.covers(ip) for one in fitting):
            return True
        if not is_public(ip):
            return False
        is_named = any(
            one.name == ANYWHERE or (one.name is not None and any(one.matches_name(name) for name in names))
            for one in fitting
        )
        return is_named and not (is_own is not None and is_own(ip))


def written(host: str, port: int | None) -> str:
    """Return a destination as it is written, for example after `--allow-net=`."""
    shown = f"[{host}]" if ":" in host else host
    return shown if port is None else f"{shown}:{port}"


def plain(name: str) -> str:
    """Return a name normalised for comparison: in lower case, in ASCII, without a trailing dot."""
    if not name.isascii():
        try:
            name = name.encode("idna").decode()
        except UnicodeError:
            return name
    return name.lower().removesuffix(".")


def is_name(name: str) -> bool:
    """Return whether a name, as `plain` returns it, may be passed to the C library.

    It must be a name by RFC 1123, or one with underscores, as some hosts have. The C library would read
    other names differently from what was checked here: it ends a name at a zero byte, and reads numbers
    as an address.
    """
    return bool(_NAME.fullmatch(name)) and not _NUMBER.fullmatch(name.rpartition(".")[2])


def is_public(address: IpAddress) -> bool:
    """Return whether an address is publicly routable."""
    if address.is_multicast or address == _AZURE_AGENT or _is_in(address, _SPECIAL):
        return False
    return address.is_global and (address.version == 4 or address in _GLOBAL_V6)


def _is_reserved(address: IpAddress) -> bool:
    """Return whether a bare port excludes this address: clouds give out keys at link-local ones."""
    nobody = address.is_multicast or address.is_unspecified or address.is_link_local
    return nobody or address == _AZURE_AGENT or _is_in(address, _CARRYING)


def _is_in(address: IpAddress, networks: Iterable[_Network]) -> bool:
    return any(address in network for network in networks)


def _plain_address(address: str) -> IpAddress:
    ip = ipaddress.ip_address(address.partition("%")[0])
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def _split(text: str) -> tuple[str, int | None]:
    if "://" in text or "@" in text or any(char.isspace() for char in text):
        raise ValueError(f"{text!r} is not a destination; {_HOW}, without a scheme or a path")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise ValueError(f"{text!r} is not a destination; an IPv6 address is written as [ADDRESS]:PORT")
        return host, _port(rest[1:], text) if rest else None
    if text.count(":") > 1:
        # IPv6 without brackets, thus without a port.
        return text, None
    host, colon, digits = text.partition(":")
    return host, _port(digits, text) if colon else None


def _port(digits: str, text: str) -> int:
    if not (digits.isascii() and digits.isdecimal() and 1 <= int(digits[:6]) <= 65535):
        raise ValueError(f"{text!r} is not a destination: a port is a number from 1 to 65535")
    return int(digits)


def _network(host: str) -> _Network | None:
    try:
        # A worker's address is compared without a zone, such as that of fe80::1%eth0.
        network = ipaddress.ip_network("" if "%" in host else host)
    except ValueError:
        if "/" in host or ":" in host or host.rpartition(".")[2].isdecimal():
            raise ValueError(
                f"{host!r} is not an address; write it in full, such as 10.0.0.5, or a network as 10.0.0.0/8"
            ) from None
        return None
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen == 128:
        mapped = network.network_address.ipv4_mapped
        return network if mapped is None else ipaddress.IPv4Network(mapped)
    return network


def _name(host: str, text: str) -> str:
    name = plain(host)
    if not is_name(name.removeprefix(_BELOW)):
        raise ValueError(f"{text!r} is not a destination; {_HOW}")
    return name
