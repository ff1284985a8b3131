"""Addresses of this machine, by the current routes of the kernel.

Interfaces change while a server runs, so nothing is cached. Connecting a datagram socket sends nothing, but
gives it the source address that packets would have. Only for an own address are source and destination equal.
A local IPv6 route does not assign an address to the machine, so the loopback interface that it leads to is
recognised by its MTU. No netlink socket is needed, which a service manager may deny.

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
# Only the loopback interface has a longer MTU, and every local route leads there.
_IPV6_MTU, _LONGEST_MTU = 24, 65535
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def is_own_address(address: IpAddress) -> bool:
    """Return whether this machine receives packets sent to an address.

    Without a route it does not. If the kernel denies the query, the address counts as own.
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
