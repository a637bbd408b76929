"""Checks that ports of this machine are free."""

import socket
from collections.abc import Iterable

import msgspec

from app.errors import SettingError


class Port(msgspec.Struct, frozen=True):
    """A port to listen on, and the setting it comes from."""

    host: str
    number: int
    setting: str


def check_ports(ports: Iterable[Port]) -> None:
    """Raises SettingError, naming the setting, if a port is in use or two of them are the same."""
    seen: dict[int, str] = {}
    for port in ports:
        if port.number in seen:
            raise SettingError(f"{seen[port.number]} and {port.setting} are both {port.number}: change one")
        seen[port.number] = port.setting
        check_port(port.host, port.number, port.setting)


def check_port(host: str, port: int, setting: str) -> None:
    """Raises SettingError, naming the setting, if the port cannot be listened on."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise SettingError(
            f"{host} is not an address of this machine ({error.strerror}): set SAGE_HOST"
        ) from error
    except OSError as error:
        raise SettingError(f"port {port} on {host} cannot be used ({error.strerror}): set {setting}") from error


def base_url(host: str, port: int) -> str:
    """The URL of a local server that listens on `host`."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
