"""HTTP of foreign servers: bodies read within limits of size, and a lost connection as an error of httpx, at
whatever moment a server resets it.
"""

import asyncio
import ssl
import zlib
from collections.abc import Iterator
from traceback import walk_tb

import httpcore
import httpx

_CODINGS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_PIECE = 64 << 10  # of output at a time
_PARTS = 20_000  # of one body: each costs tens of microseconds, however short it is
_PARTS_AT_ONCE = 32


class BodyError(Exception):
    """The body cannot be read. The message completes "the answer ..."."""


class BodySizeError(BodyError):
    """The body is larger than allowed."""


async def read_body(response: httpx.Response, limit: int) -> bytes:
    """The decompressed body, at most `limit` bytes of it. Others run in between.

    Memory is bounded by the limit whatever the ratio of compression, since decompression stops there. Raises
    BodyError, and httpx.HTTPError if the connection fails.
    """
    body = bytearray()
    await read_into(body, response, limit)
    return bytes(body)


async def read_into(body: bytearray, response: httpx.Response, limit: int) -> None:
    """As `read_body`. When it raises, `body` has what arrived before, perhaps a piece more than the limit."""
    if not response.is_stream_consumed:
        await _read_stream(body, response, limit)
    elif len(response.content) > limit:  # bytes that a transport in this process held
        raise _too_large(limit)
    else:
        body += response.content


async def _read_stream(body: bytearray, response: httpx.Response, limit: int) -> None:
    decoder = _decoder(response.headers.get_list("content-encoding", split_commas=True))
    received, parts = 0, 0
    async for part in response.aiter_raw():
        received, parts = received + len(part), parts + 1
        if received > limit:
            raise _too_large(limit)
        if parts > _PARTS:
            raise BodyError(f"comes in more than {_PARTS:,} parts")
        if parts % _PARTS_AT_ONCE == 0:
            await asyncio.sleep(0)
        for piece in decoder.feed(part):
            body += piece
            if len(body) > limit:
                raise _too_large(limit)
            if len(piece) == _PIECE:
                await asyncio.sleep(0)
    decoder.end()


def _too_large(limit: int) -> BodySizeError:
    return BodySizeError(f"is larger than {limit >> 20} MB")


class _Identity:
    def feed(self, part: bytes) -> Iterator[bytes]:
        yield part

    def end(self) -> None:
        return


class _Inflater:
    """Decompresses in pieces of bounded size, each only when it is asked for."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream = zlib.decompressobj(_CODINGS[coding])
        self._begun = False

    def feed(self, part: bytes) -> Iterator[bytes]:
        self._begin(part)
        while part and not self._stream.eof:  # bytes after the end are ignored, as browsers do
            try:
                piece = self._stream.decompress(part, _PIECE)
            except zlib.error as error:
                raise BodyError(f"is not the {self._coding} data that it claims to be") from error
            part = self._stream.unconsumed_tail
            if piece:
                yield piece

    def _begin(self, part: bytes) -> None:
        """Some servers send deflate data without its header: recognized by the first byte."""
        if not self._begun and part:
            self._begun = True
            if self._coding == "deflate" and part[0] & 0x0F != zlib.DEFLATED:
                self._stream = zlib.decompressobj(-zlib.MAX_WBITS)

    def end(self) -> None:
        if self._begun and not self._stream.eof:
            raise BodyError(f"ends within its {self._coding} data")


def _decoder(declared: list[str]) -> _Identity | _Inflater:
    codings = [name for each in declared if (name := each.strip().lower()) not in ("", "identity")]
    if not codings:
        return _Identity()
    if len(codings) > 1:
        raise BodyError(f"is compressed {len(codings)} times over")
    if codings[0] not in _CODINGS:
        raise BodyError(f"has the content coding {codings[0][:40]!r}; gzip and deflate are supported")
    return _Inflater(codings[0])


_MAX_PORT = 65_535
_BELOW = ("anyio", "asyncio", "httpcore", "uvloop")


class _Pool(httpcore.AsyncConnectionPool):
    """Closes every connection that leaves it: a cancelled task would close the first, which httpcore cannot shield
    from asyncio, and forget the others.
    """

    async def _close_connections(self, closing: list[httpcore.AsyncConnectionInterface]) -> None:
        if closing:
            await asyncio.shield(asyncio.gather(*map(self._close, closing)))

    async def aclose(self) -> None:
        """Connections in use, too."""
        closing, self._connections = self._connections, []
        await asyncio.shield(asyncio.gather(*(each.aclose() for each in closing)))

    async def _close(self, connection: httpcore.AsyncConnectionInterface) -> None:
        """One that expired after it was assigned to a request, and before that began, may be in use by now."""
        if connection.is_idle():
            await connection.aclose()
        else:
            self._connections.append(connection)


class HttpTransport(httpx.AsyncHTTPTransport):
    """With uvloop, a connection that is reset as soon as it is open has no socket any more, and anyio uses it."""

    def __init__(
        self,
        limits: httpx.Limits,
        tls: ssl.SSLContext | None = None,
        network: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        """Without the proxies that the environment names. Every connection goes through `network`."""
        context = tls or httpx.create_ssl_context(trust_env=False)
        super().__init__(verify=context, trust_env=False)
        self._pool = _Pool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=network,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """A GET that meets a kept connection which the server has closed meanwhile is sent on another one."""
        if request.url.port is not None and request.url.port > _MAX_PORT:  # anyio raises an exception group for it
            raise httpx.ConnectError(f"{request.url.port} is no port", request=request)
        if request.method != "GET" or "trace" in request.extensions:
            return await self._send(request)
        while True:
            is_new = False

            async def trace(event: str, _info: object) -> None:
                nonlocal is_new
                is_new = is_new or event.startswith("connection.connect")

            request.extensions = {**request.extensions, "trace": trace}
            try:
                return await self._send(request)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                if is_new:
                    raise

    async def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return await super().handle_async_request(request)
        except AttributeError as error:
            frames = [frame for frame, _ in walk_tb(error.__traceback__)]
            module = frames[-1].f_globals.get("__name__", "") if frames else ""
            if error.obj is not None or module.partition(".")[0] not in _BELOW:
                raise
            raise httpx.ReadError("the server reset the connection", request=request) from error
