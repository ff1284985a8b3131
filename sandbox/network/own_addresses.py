"""Addresses of this machine, by the routes of the kernel at the moment of the question.

Interfaces change while a server runs, so nothing is remembered. A datagram socket is connected, which sends
nothing: it is given the source address that packets would have. Packets to an own address have that address
as their source, and no others do, except that a local route of IPv6 does not give an address to the machine:
the interface it leads to is known by its MTU. This needs no netlink socket, which a service manager may deny.

Source: ip(7); RFC 1122, section 3.3.4.3; RFC 6724, section 5, rule 1; Linux net/ipv4/route.c, RTN_LOCAL;
ipv6(7), IPV6_MTU; Linux net/ipv6/route.c, ip6_rt_get_dev_rcu.
"""

import errno
import ipaddress
import socket

from sandbox.network.destinations import IpAddress

__all__ = ["is_own_address"]

# Any port but 0. Nothing is sent to it.
_PORT = 9
# Of all interfaces, only loopback has a longer MTU: every local route leads there.
_IPV6_MTU, _LONGEST_MTU = 24, 65535
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def is_own_address(address: IpAddress) -> bool:
    """Return whether this machine receives what is sent to an address.

    Without a route it does not. Where the kernel refuses to say, it counts as one of this machine.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as probe:
            probe.connect((str(address), _PORT))
            if address.version == 6 and probe.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU) > _LONGEST_MTU:
                return True
            source = str(probe.getsockname()[0]).partition("%")[0]
    except OSError as error:
        return error.errno not in _NO_ROUTE
    return ipaddress.ip_address(source) == address
