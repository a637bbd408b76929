"""Connections lead to the address that was checked, whatever a name resolves to later."""

import asyncio

import httpx
import pytest

from app.apis.calls.http_call import HttpCaller, WireRequest
from app.apis.calls.network import PublicNetwork, open_client
from app.apis.documents.protocols import download
from app.base.errors import ApiDocumentError, HostError
from tests.support.raw_server import raw_server
from tests.support.small_internet import SmallInternet, found, moved

CLOSED = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


def client(internet: SmallInternet) -> httpx.AsyncClient:
    return open_client(allow_private_hosts=False, network=internet.public)


async def test_a_name_is_looked_up_once_for_a_connection_and_that_address_is_connected_to() -> None:
    rebinding = iter(["9.9.9.9", "127.0.0.1", "127.0.0.1"])
    internet = SmallInternet({"rebind.test": rebinding}, {"/x": CLOSED})
    async with internet.online(), client(internet) as opened:
        assert (await opened.get("http://rebind.test/x")).text == "ok"
        assert internet.reached == ["9.9.9.9"]
        with pytest.raises(HostError, match=r"rebind\.test is at the private address 127\.0\.0\.1"):
            await opened.get("http://rebind.test/x")
    assert (internet.reached, list(rebinding)) == (["9.9.9.9"], ["127.0.0.1"])
    assert "Host: rebind.test" in internet.requests[0]


async def test_a_call_of_an_api_does_not_follow_a_name_that_turns_private() -> None:
    internet = SmallInternet({"rebind.test": ["9.9.9.9", "::ffff:10.0.0.1"]}, {"/x": moved("/y", "close")})
    async with internet.online(), client(internet) as opened:
        with pytest.raises(HostError, match="private address") as caught:
            await HttpCaller(opened, timeout=30).send(WireRequest("GET", "http://rebind.test/x"))
    assert caught.value.kind == "ApiError"
    assert internet.reached == ["9.9.9.9"]


async def test_a_document_is_not_fetched_from_a_name_that_turns_private() -> None:
    internet = SmallInternet({"rebind.test": ["9.9.9.9", "169.254.169.254"]}, {"/x": moved("/y", "close")})
    async with internet.online(), client(internet) as opened:
        with pytest.raises(ApiDocumentError, match=r"cannot be reached: .*link-local address 169\.254\.169\.254"):
            await download(opened, "http://rebind.test/x")
    assert internet.reached == ["9.9.9.9"]


async def test_a_redirect_within_a_host_keeps_its_name() -> None:
    internet = SmallInternet(
        {"docs.test": ["9.9.9.9", "9.9.9.9"]}, {"/x": moved("/y", "close"), "/y": found(b"{}")}
    )
    async with internet.online(), client(internet) as opened:
        assert await download(opened, "http://docs.test/x") == b"{}"
    assert ["Host: docs.test" in head for head in internet.requests] == [True, True]


async def test_two_names_at_one_address_share_no_connection() -> None:
    internet = SmallInternet({"a.test": ["9.9.9.9"], "b.test": ["9.9.9.9"]}, {"/x": found(b"ok")})
    async with internet.online(), client(internet) as opened:
        for name in ("a.test", "b.test", "a.test"):
            await opened.get(f"http://{name}/x")
    assert internet.reached == ["9.9.9.9", "9.9.9.9"]


async def test_a_host_one_of_whose_addresses_is_private_is_refused() -> None:
    async def both(_host: str, _port: int) -> list[str]:
        return ["9.9.9.9", "10.0.0.1"]

    async with open_client(allow_private_hosts=False, network=PublicNetwork(both)) as opened:
        with pytest.raises(HostError, match=r"private address 10\.0\.0\.1"):
            await opened.get("http://both.test/x")


async def test_a_document_that_trickles_in_is_given_up() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.02)

    async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server, httpx.AsyncClient() as opened:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(ApiDocumentError, match=r"takes longer than 0\.3 s"):
            await download(opened, url, seconds=0.3)


async def test_a_document_may_take_longer_than_an_answer_of_an_api() -> None:
    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(1.5)
        writer.write(found(b"{}"))
        await writer.drain()
        writer.close()

    async with (
        await asyncio.start_server(late, "127.0.0.1", 0) as server,
        open_client(allow_private_hosts=True, timeout=1) as opened,
    ):
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        assert await download(opened, url) == b"{}"


async def test_a_client_that_may_call_private_hosts_calls_them() -> None:
    async with raw_server(found(b"here")) as url, open_client(allow_private_hosts=True) as opened:
        assert (await opened.get(url)).text == "here"
