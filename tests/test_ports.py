"""An occupied port is known before anything starts on it."""

import socket

import pytest

from app.errors import SettingError
from app.ports import Port, base_url, free_port, refuse_taken


def test_an_occupied_port_is_refused_and_a_free_one_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(SettingError, match=f"port {port} on 127.0.0.1 .*: set SAGE_PORT"):
            free_port("127.0.0.1", port, "SAGE_PORT")
        with pytest.raises(SettingError, match="set SAGE_PORT"):
            free_port("0.0.0.0", port, "SAGE_PORT")
    free_port("127.0.0.1", port, "SAGE_PORT")


def test_an_address_of_no_one_here_is_refused() -> None:
    with pytest.raises(SettingError, match="SAGE_PORT"):
        free_port("192.0.2.1", 8000, "SAGE_PORT")


def test_two_parts_cannot_share_a_port() -> None:
    with pytest.raises(SettingError, match="SAGE_PORT and SAGE_DEMO_PORT are both 47000"):
        refuse_taken([Port("127.0.0.1", 47000, "SAGE_PORT"), Port("127.0.0.1", 47000, "SAGE_DEMO_PORT")])


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
def test_a_part_is_reached_where_it_listens(host: str, url: str) -> None:
    assert base_url(host, 80) == url
