"""Addresses that a written destination opens, and those that it never opens."""

import socket

import pytest

from sandbox.network.destinations import Destination, Destinations, written

PUBLIC = "93.184.215.14"


def test_own_address_counts_as_private() -> None:
    judged = []

    def is_own(address: object) -> bool:
        judged.append(str(address))
        return str(address) == PUBLIC

    def reached(rule: str, address: str, *names: str) -> bool:
        return Destinations.parse([rule]).may_reach(address, 443, names, is_own=is_own)

    assert not reached("*", PUBLIC)
    assert not reached("*", f"::ffff:{PUBLIC}")
    assert not reached("*:443", PUBLIC)
    assert not reached("good.test", PUBLIC, "good.test")
    assert not reached("*.test", PUBLIC, "good.test")
    assert reached("*", "151.101.1.69")
    assert reached("good.test", "151.101.1.69", "good.test")
    assert judged == [PUBLIC] * 5 + ["151.101.1.69"] * 2
    # Named by itself, as any private address.
    assert reached(PUBLIC, PUBLIC)
    assert reached(f"{PUBLIC}:443", f"::ffff:{PUBLIC}")
    assert reached("93.184.0.0/16", PUBLIC)
    assert reached(":443", PUBLIC)


@pytest.mark.parametrize(
    "carrying", ["64:ff9b::5db8:d70e", "2002:5db8:d70e::1", "64:ff9b:1::5db8:d70e", "2001::a247:28f1"]
)
def test_address_that_carries_an_own_one_is_not_public(carrying: str) -> None:
    assert not Destinations.parse(["*"]).may_reach(carrying, 443, (), is_own=lambda _: False)


def reach(rules: list[str], address: str, port: int, *names: str) -> bool:
    return Destinations.parse(rules).may_reach(address, port, names)


@pytest.mark.parametrize(
    "text",
    [
        "api.example.com",
        "api.example.com:443",
        "*.example.com:443",
        ":443",
        "*",
        "*:443",
        "10.0.0.5:5432",
        "10.0.0.0/8",
        "10.0.0.0/8:443",
        "[::1]:8080",
        "::1",
        "[fd00::/8]:443",
        "localhost:8080",
        "bücher.example:443",
        "_service.example",
    ],
)
def test_written_destination_can_be_parsed(text: str) -> None:
    assert Destination.parse(text) is not None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "an empty destination"),
        ("https://api.example.com", "without a scheme"),
        ("user@host:80", "without a scheme"),
        ("a b", "without a scheme"),
        ("host:", "a port is a number"),
        ("host:0", "a port is a number"),
        ("host:65536", "a port is a number"),
        ("host:٤٤٣", "a port is a number"),
        ("host:443/path", "a port is a number"),
        ("[::1", "an IPv6 address is written as"),
        ("[host]:80", "an IPv6 address is written as"),
        ("[::1]80", "an IPv6 address is written as"),
        ("10.0.0", "write it in full"),
        ("2130706433", "write it in full"),
        ("10.0.0.1/8", "write it in full"),
        ("fe80::1%eth0", "write it in full"),
        ("a..b", "is not a destination"),
        ("-a.example", "is not a destination"),
        ("a.*.example", "is not a destination"),
        ("*example.com", "is not a destination"),
        ("x" * 64 + ".example", "is not a destination"),
    ],
)
def test_invalid_destination_is_refused_with_a_sentence(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Destination.parse(text)


@pytest.mark.parametrize(
    ("rule", "name", "port", "may"),
    [
        ("a.example:443", "a.example", 443, True),
        ("a.example:443", "A.EXAMPLE.", 443, True),
        ("a.example:443", "a.example", 80, False),
        ("a.example:443", "a.example", None, True),
        ("a.example:443", "b.a.example", 443, False),
        ("a.example:443", "xa.example", 443, False),
        ("*.a.example", "b.a.example", 80, True),
        ("*.a.example", "c.b.a.example", 80, True),
        ("*.a.example", "a.example", 80, False),
        ("*.a.example", "xa.example", 80, False),
        ("*", "any.example", 80, True),
        (":80", "any.example", 80, True),
        (":80", "any.example", 81, False),
        ("10.0.0.5", "any.example", 80, False),
        ("bücher.example", "xn--bcher-kva.example", 80, True),
        ("bücher.example", "Bücher.example", 80, True),
        ("xn--bcher-kva.example", "bücher.example", 80, True),
        ("bücher.example", "ü" * 300, 80, False),
    ],
)
def test_a_name_is_looked_up_where_a_destination_has_it(
    rule: str, name: str, port: int | None, may: bool
) -> None:
    assert Destinations.parse([rule]).may_look_up(name, port) is may


@pytest.mark.parametrize(
    "name",
    [
        "8.8.8.8\0.a.example", "b\0.a.example", "b.a.example\0", "b c.a.example", "b\n.a.example",
        "b%eth0.a.example",
        "b..a.example", ".a.example", "..a.example", "b.a.example..", "-b.a.example", "b-.a.example",
        "b/c.a.example", "b:80.a.example", "*.a.example", "b\x7f.a.example", "x" * 64 + ".a.example",
        "x." * 130 + "a.example", "ü\0.a.example",
    ],
)  # fmt: skip
def test_invalid_name_is_never_looked_up(name: str) -> None:
    below, any_ = (Destinations.parse([rule]) for rule in ("*.a.example", "*"))

    assert below.may_look_up("b.a.example.")
    assert any_.may_look_up("B_1.a.example")
    assert not below.may_look_up(name)
    assert not any_.may_look_up(name)


@pytest.mark.parametrize("name", ["8.8.8.8", "8.8.2056", "134744072", "0x08080808", "a.0X8", "010.8.8.8"])
def test_names_parsed_as_addresses_by_libc_are_not_looked_up(name: str) -> None:
    assert socket.inet_aton("0x08080808") == socket.inet_aton("8.8.2056") == bytes([8] * 4)
    assert not Destinations.parse(["*"]).may_look_up(name)


@pytest.mark.parametrize("name", ["a.0x8", "*.a\0b", "*.*.a", "a_b\0"])
def test_a_destination_is_a_name_too(name: str) -> None:
    with pytest.raises(ValueError, match="is not a destination"):
        Destinations.parse([name])


def test_public_address_is_reachable_through_its_names_only() -> None:
    assert reach(["a.example:443"], PUBLIC, 443, "a.example")
    assert not reach(["a.example:443"], PUBLIC, 80, "a.example")
    assert not reach(["a.example:443"], PUBLIC, 443, "b.example")
    assert not reach(["a.example:443"], PUBLIC, 443)
    assert not reach([], PUBLIC, 443, "a.example")


NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.5",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.8.8.8",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:10.0.0.5",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_name_or_star_opens_no_private_address(address: str) -> None:
    assert reach(["a.example", "*"], PUBLIC, 80, "a.example")

    assert not reach(["a.example", "*", "*:80"], address, 80, "a.example")


@pytest.mark.parametrize("address", [a for a in NOT_PUBLIC if not a.startswith("::ffff")])
def test_any_address_is_opened_by_its_own_name(address: str) -> None:
    rule = written(address, 80)

    assert reach([rule], address, 80)
    assert not reach([rule], address, 81)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::1111", "2a00:1450::1"])
def test_a_star_opens_every_public_address(address: str) -> None:
    assert reach(["*"], address, 80)
    assert reach(["*:80"], address, 80)
    assert not reach(["*:80"], address, 81)


@pytest.mark.parametrize(
    "address", [PUBLIC, "2606:4700::1111", "10.0.0.5", "127.0.0.1", "::1", "192.168.1.1"]
)
def test_a_port_is_opened_at_every_address(address: str) -> None:
    assert reach([":5432"], address, 5432)
    assert not reach([":5432"], address, 5433)


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "168.63.129.16", "fe80::1", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::",
     "224.0.0.1", "ff02::1", "0.0.0.0", "::", "::ffff:169.254.169.254"],
)  # fmt: skip
def test_port_does_not_open_cloud_metadata_addresses(address: str) -> None:
    assert reach([":80"], PUBLIC, 80)

    assert not reach([":80"], address, 80)


def test_a_network_opens_its_addresses() -> None:
    rules = ["10.1.0.0/16:443", "[fd00::/8]:443"]

    assert reach(rules, "10.1.2.3", 443)
    assert reach(rules, "::ffff:10.1.2.3", 443)
    assert reach(rules, "fd00::5", 443)
    assert not reach(rules, "10.2.0.1", 443)
    assert not reach(rules, "fe80::5", 443)


def test_localhost_is_this_machine_and_nothing_else() -> None:
    assert reach(["localhost:80"], "127.0.0.1", 80)
    assert reach(["localhost:80"], "::1", 80)
    assert not reach(["localhost:80"], "127.0.0.2", 80)
    assert not reach(["localhost:80"], "10.0.0.5", 80, "localhost")


def test_ipv4_mapped_ipv6_destination_matches_its_ipv4_address() -> None:
    assert reach(["[::ffff:10.0.0.5]:80"], "10.0.0.5", 80)


@pytest.mark.parametrize(
    ("host", "port", "text"),
    [("a.example", 443, "a.example:443"), ("::1", 80, "[::1]:80"), ("a.example", None, "a.example")],
)
def test_destination_is_written_as_it_is_parsed(host: str, port: int | None, text: str) -> None:
    assert written(host, port) == text
    assert Destination.parse(text).port == port
