"""The HTTP client for servers that are not ours: live APIs, their documents, and webhooks."""

import ssl
from collections.abc import Collection
from http.cookiejar import CookieJar
from typing import Any, Final

import httpx

from app.base.untrusted_http import HttpTransport
from app.gateway.bounded_transport import BoundedTransport
from app.gateway.certificate_transport import CertificateTransport
from app.gateway.certificates import Certificates
from app.gateway.own_services import OwnServices
from app.gateway.ssrf import PublicNetwork

_IDLE_SECONDS: Final = 2.0
"""Many servers close a connection that was idle for 5 s; a write sent at that moment fails and is not repeated."""


class NoCookies(CookieJar):
    """Keeps no cookies: a client that all tasks share must neither send nor collect those of one response."""

    def extract_cookies(self, response: Any, request: Any) -> None:  # noqa: ARG002
        return


async def _forget_no_address(response: httpx.Response) -> None:
    """A redirect to what is no address has none: httpx would raise an error, as if there had been no answer."""
    try:
        target = httpx.URL(response.headers.get("location", ""))
        response.request.url.join(target)
        is_address = bool(target.host) or not target.scheme
    except (httpx.InvalidURL, UnicodeError):
        is_address = False
    if not is_address:
        del response.headers["location"]


def open_client(  # noqa: PLR0913 - options of one client
    *,
    allow_private_hosts: bool,
    connections: int = 100,
    kept: int = 20,
    timeout: float = 5,
    network: PublicNetwork | None = None,
    own: OwnServices = OwnServices(),  # noqa: B008 - frozen
    only: Collection[str] | None = None,
    certificates: Certificates = Certificates(),  # noqa: B008 - frozen
) -> httpx.AsyncClient:
    """Without cookies, and without the proxies that the environment names. At most `kept` idle connections.

    Every connection goes through a network, those of redirects, too: to no link-local address and to none of the
    services `own`, and if private hosts are not allowed, to none of them. With `only` it reaches no servers but
    those of these URLs. Requests may name an own one of the `certificates`.
    """
    open_to = network or PublicNetwork(private=allow_private_hosts, own=own)
    limits = httpx.Limits(
        max_connections=connections, max_keepalive_connections=kept, keepalive_expiry=_IDLE_SECONDS
    )

    def open_transport(tls: ssl.SSLContext) -> httpx.AsyncBaseTransport:
        return HttpTransport(limits, tls, open_to)

    plain = open_transport(certificates.context())
    transport = CertificateTransport(plain, open_transport, certificates)
    return httpx.AsyncClient(
        event_hooks={"response": [_forget_no_address]},
        transport=transport if only is None else BoundedTransport(transport, only),
        timeout=timeout,
        trust_env=False,
        cookies=NoCookies(),
    )
