"""Addresses that are not on the public Internet, in every spelling."""

from ipaddress import ip_address

import pytest

from app.apis.calls.network import is_public, open_client
from app.base.errors import HostError
from tests.support.every_row import every_row

PRIVATE = """
0.0.0.0 10.1.2.3 100.64.0.1 127.0.0.1 169.254.169.254 172.16.0.1 192.0.0.8 192.0.2.1 192.88.99.1 192.168.0.1
198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 240.0.0.1 255.255.255.255
:: ::1 ::7f00:1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:0:8.8.8.8 64:ff9b::a00:1 64:ff9b::808:808 64:ff9b:1::808:808
100::1 2001::1 2001:0:808:808::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:a00:1::1 3fff::1 5f00::1 fc00::1 fd12::1
fe80::1 fec0::1 ff02::1 4000::1
"""
PUBLIC = "8.8.8.8 9.9.9.9 ::ffff:8.8.8.8 2002:808:808::1 2606:4700:4700::1111 2620:fe::fe 2a00:1450:4001::1"


def test_an_address_that_leads_anywhere_else_than_the_internet_is_private() -> None:
    with every_row() as row:
        for text in PRIVATE.split():
            with row(text):
                assert not is_public(ip_address(text))


def test_an_address_of_the_internet_is_public() -> None:
    with every_row() as row:
        for text in PUBLIC.split():
            with row(text):
                assert is_public(ip_address(text))


PRIVATE_HOSTS: list[str] = [
    "2130706433",
    "0x7f000001",
    "017700000001",
    "127.1",
    "localhost",
    "localhost.",
    "127.0.0.1",
    "[::1]",
    "[fe80::1]",
]


async def test_every_spelling_of_a_private_host_is_refused() -> None:
    with every_row() as row:
        for host in PRIVATE_HOSTS:
            with row(host):
                async with open_client(allow_private_hosts=False) as client:
                    with pytest.raises(HostError, match=r"(private|link-local) address|cannot be found"):
                        await client.get(f"http://{host}/x")
