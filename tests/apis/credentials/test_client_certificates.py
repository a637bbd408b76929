"""Mutual TLS with an authority of the operator's, over real connections."""

import asyncio
import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from litestar import Litestar, get, post

from app.apis.calls.gateway import Gateway
from app.apis.calls.network import Certificates, CertificateTransport, open_client
from app.apis.catalog import Catalog
from app.apis.credentials.credential import FixedCredentials
from app.apis.credentials.schemes import CERTIFICATE, Authentication
from app.apis.documents.protocols import parse_document
from app.base.errors import SettingError
from tests.support.echo_service import raised
from tests.support.ledger_project import until
from tests.support.listening_app import listening_app

_NOW = dt.datetime.now(dt.UTC)
_LOCAL = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates, and writes them with their keys."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        made = self._begin("the authority", self._key).add_extension(x509.BasicConstraints(True, None), True)
        self.file = directory / "authority.pem"
        self.file.write_bytes(made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def write(self, name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._begin(name, key).add_extension(_LOCAL, False).sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path = self._directory / name
        path.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
        return path

    def _begin(self, name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(_name("the authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_NOW - dt.timedelta(days=1))
            .not_valid_after(_NOW + dt.timedelta(days=1))
        )


@get("/mails")
async def mails() -> list[str]:
    return ["first"]


class Desk:
    """Takes mails, and answers them once it is `open`."""

    def __init__(self) -> None:
        self.taken = 0
        self.open = asyncio.Event()

    async def take(self) -> int:
        self.taken += 1
        await self.open.wait()
        return self.taken


@pytest.fixture
async def desk() -> Desk:
    return Desk()


@pytest.fixture
async def url(tmp_path: Path, desk: Desk) -> AsyncIterator[str]:
    """A server that answers those alone who show a certificate of the authority."""
    authority = Authority(tmp_path)
    server = authority.write("server")
    (tmp_path / "own").mkdir()
    authority.write("own/mail.pem")
    (tmp_path / "own" / "broken.pem").write_text("no certificate")
    options: dict[str, Any] = {
        "ssl_certfile": str(server),
        "ssl_ca_certs": str(authority.file),
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }
    app = Litestar([mails, post("/mails")(desk.take)], openapi_config=None, logging_config=None)
    async with listening_app(app, lifespan="off", **options) as opened:
        yield opened.replace("http://", "https://")


def _gateway(client: httpx.AsyncClient, url: str, certificate: str) -> Gateway:
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": url}],
        "paths": {"/mails": {"get": {"operationId": "mails"}}},
    }
    catalog = Catalog({"mail": parse_document("mail", document)})
    return Gateway(catalog, client, credentials=FixedCredentials(Authentication(certificate=certificate)))


async def test_a_call_shows_the_certificate_that_its_credentials_name(url: str, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "own", tmp_path / "authority.pem")
    async with open_client(allow_private_hosts=True, certificates=certificates) as client:
        assert await _gateway(client, url, "mail.pem")("mail.mails", [], {}) == ["first"]
        for name, reason in (
            ("broken.pem", "the client certificate cannot be used"),
            ("absent.pem", "SAGE_CLIENT_CERTIFICATES has no file 'absent.pem'"),
            ("../server", "SAGE_CLIENT_CERTIFICATES has no file '../server'"),
        ):
            assert reason in (await raised(_gateway(client, url, name), "mail.mails")).message
        with pytest.raises(httpx.HTTPError):
            await client.get(f"{url}/mails")


def test_authorities_that_cannot_be_read_are_refused_by_the_setting(tmp_path: Path) -> None:
    (tmp_path / "broken.pem").write_text("no certificate")
    for name in ("absent.pem", "broken.pem"):
        with pytest.raises(SettingError, match=r"SAGE_CA_FILE: .* cannot be read"):
            open_client(allow_private_hosts=True, certificates=Certificates(authorities=tmp_path / name))


async def test_an_authority_that_is_not_named_is_not_trusted(url: str, tmp_path: Path) -> None:
    async with open_client(allow_private_hosts=True, certificates=Certificates(tmp_path / "own")) as client:
        error = await raised(_gateway(client, url, "mail.pem"), "mail.mails")
        assert "CERTIFICATE_VERIFY_FAILED" in error.message


def _rewrite(path: Path) -> None:
    """As a rotation does, though with the same content."""
    changed = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(changed, changed))


async def test_calls_under_way_are_answered_when_the_file_changes(url: str, tmp_path: Path, desk: Desk) -> None:
    certificates = Certificates(tmp_path / "own", tmp_path / "authority.pem")
    shown = {CERTIFICATE: "mail.pem"}
    async with open_client(allow_private_hosts=True, certificates=certificates) as client:
        sent = asyncio.create_task(client.post(f"{url}/mails", extensions=shown))
        await until(lambda: desk.taken == 1)
        _rewrite(tmp_path / "own" / "mail.pem")
        assert (await client.get(f"{url}/mails", extensions=shown)).json() == ["first"]
        desk.open.set()
        assert (await sent).json() == 1


class _Recorded(httpx.AsyncBaseTransport):
    """`closed` are those of `opened`, by number, in order."""

    def __init__(self, opened: "list[_Recorded]", closed: list[int]) -> None:
        self._number = len(opened)
        self._closed = closed
        opened.append(self)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=self._parts(), request=request)

    async def aclose(self) -> None:
        self._closed.append(self._number)

    async def _parts(self) -> AsyncIterator[bytes]:
        yield f"by {self._number}".encode()


async def test_the_connections_of_an_older_file_close_with_their_last_answer(url: str, tmp_path: Path) -> None:
    opened, closed = list[_Recorded](), list[int]()
    certificates = Certificates(tmp_path / "own", tmp_path / "authority.pem")
    transport = CertificateTransport(httpx.AsyncHTTPTransport(), lambda _: _Recorded(opened, closed), certificates)
    async with httpx.AsyncClient(transport=transport) as client:
        request = client.build_request("GET", url, extensions={CERTIFICATE: "mail.pem"})
        first, second = await asyncio.gather(client.send(request, stream=True), client.send(request))
        assert (len(opened), second.text) == (1, "by 0")
        _rewrite(tmp_path / "own" / "mail.pem")
        assert (await client.send(request)).text == "by 1"
        assert closed == []
        assert await first.aread() == b"by 0"
        assert closed == [0]
        _rewrite(tmp_path / "own" / "mail.pem")
        assert (await client.send(request)).text == "by 2"
        assert closed == [0, 1]
    assert closed == [0, 1, 2]
