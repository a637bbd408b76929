"""Certificates of the operator's: authorities to trust besides the public ones, and those for mutual TLS."""

import re
import ssl
from functools import cache
from pathlib import Path
from typing import Final, Self

import httpx
import msgspec

from app.base.errors import SettingError
from app.base.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Certificates(msgspec.Struct, frozen=True):
    """`own` is a directory of PEM files, each a chain with its key; `authorities` is one file."""

    own: Path | None = None
    authorities: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.client_certificates, settings.ca_file)

    def path(self, name: str) -> Path:
        """Of an own one. Raises FileNotFoundError that names the setting."""
        if self.own is None:
            raise FileNotFoundError("SAGE_CLIENT_CERTIFICATES names no directory of certificates")
        path = self.own / name
        if not _NAME.fullmatch(name) or not path.is_file():
            raise FileNotFoundError(f"SAGE_CLIENT_CERTIFICATES has no file {name!r}")
        return path

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        """For connections that show an own certificate, or none.

        Raises OSError or SSLError for one that cannot be read, SettingError for such authorities.
        """
        if own is None and self.authorities is None:
            return _public()
        context = httpx.create_ssl_context(trust_env=False)
        if self.authorities is not None:
            try:
                context.load_verify_locations(self.authorities)
            except (OSError, ssl.SSLError) as error:
                reason = f"{self.authorities} cannot be read as certificates in PEM: {error}"
                raise SettingError(f"SAGE_CA_FILE: {reason}") from error
        if own is not None:
            context.load_cert_chain(own)
        return context


@cache
def _public() -> ssl.SSLContext:
    """For all clients of a process: reading the authorities takes 15 ms."""
    return httpx.create_ssl_context(trust_env=False)
