"""Ports in use are detected before anything is started."""

import socket

import pytest

from app.base.errors import SettingError
from app.base.processes import Port, base_url, check_port, check_ports
from tests.support.processes import free_ports


def test_a_port_in_use_is_refused_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} on 127.0.0.1 .*: set SAGE_PORT"):
            check_port("127.0.0.1", port, "SAGE_PORT")
        with pytest.raises(SettingError, match="set SAGE_PORT"):
            check_port("0.0.0.0", port, "SAGE_PORT")
    check_port("127.0.0.1", port, "SAGE_PORT")


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(SettingError, match="SAGE_PORT"):
        check_port("192.0.2.1", 8000, "SAGE_PORT")


def test_two_servers_cannot_share_a_port() -> None:
    [port] = free_ports(1)
    with pytest.raises(SettingError, match=f"SAGE_PORT and SAGE_DEMO_PORT are both {port}"):
        check_ports([Port("127.0.0.1", port, "SAGE_PORT"), Port("127.0.0.1", port, "SAGE_DEMO_PORT")])


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("::", "http://[::1]:80"),
        ("box.lan", "http://box.lan:80"),
    ],
)
def test_a_server_is_reached_at_the_address_it_listens_on(host: str, url: str) -> None:
    assert base_url(host, 80) == url
