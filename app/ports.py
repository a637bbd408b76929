"""Ports of this machine."""

import socket
from collections.abc import Iterable

import msgspec

from app.errors import SettingError


class Port(msgspec.Struct, frozen=True):
    """A port that something here is to listen on, and the setting it comes from."""

    host: str
    number: int
    setting: str


def refuse_taken(ports: Iterable[Port]) -> None:
    """Raises SettingError, naming what to set, if something listens there already, or two of them are the same."""
    seen: dict[int, str] = {}
    for port in ports:
        if port.number in seen:
            raise SettingError(f"{seen[port.number]} and {port.setting} are both {port.number}: change one")
        seen[port.number] = port.setting
        free_port(port.host, port.number, port.setting)


def free_port(host: str, port: int, setting: str) -> None:
    """Raises SettingError, naming what to set, if nothing here can listen on it."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except socket.gaierror as error:
        raise SettingError(f"{host} is no address of this machine ({error.strerror}): set SAGE_HOST") from error
    except OSError as error:
        raise SettingError(f"port {port} on {host} cannot be used ({error.strerror}): set {setting}") from error


def base_url(host: str, port: int) -> str:
    """Where what listens on `host` is reached from this machine."""
    near = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"http://[{near}]:{port}" if ":" in near else f"http://{near}:{port}"
