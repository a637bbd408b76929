"""Ports of this machine."""

import socket

from app.errors import SettingError


def free_port(host: str, port: int, setting: str) -> None:
    """Raises SettingError, naming what to set, if something listens there already."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingError(f"port {port} on {host} is taken ({error.strerror}): set {setting}") from error
