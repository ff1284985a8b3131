"""Change the addresses of a network namespace, and print after each change which ones are its own.

usage: unshare --net python own_addresses.py
"""

import ipaddress
import json
import subprocess

from sandbox.network.own_addresses import is_own_address

ASKED = (
    "93.184.215.14",
    "93.184.215.15",
    "2606:2800:220:1::14",
    "2606:2800:220:1::15",
    "203.0.113.7",
    "2606:2800:220:9::7",
    "127.0.0.1",
    "::1",
)
CHANGES = (
    "link set lo up",
    "link add own type veth peer name other",
    "link set other up",
    "link set own up",
    "address add 93.184.215.14/24 dev own",
    "address add 2606:2800:220:1::14/64 dev own nodad",
    "route add default dev own",
    "address del 93.184.215.14/24 dev own",
    "route add local 203.0.113.0/24 dev lo",
    "route add local 2606:2800:220:9::/64 dev own",
)


def main() -> None:
    """Print a line for each change: the addresses that are own ones after it."""
    for change in CHANGES:
        subprocess.run(["ip", *change.split()], check=True)
        own = [text for text in ASKED if is_own_address(ipaddress.ip_address(text))]
        print(json.dumps([change, own]), flush=True)


main()
