"""Looks whether the server of a new document answers, and where else the API may be."""

import asyncio
from urllib.parse import urlsplit

import httpx

from app.apis.address import origin
from app.apis.app_view import AppView
from app.base.errors import HostError

_SECONDS = 5.0


async def server_remark(client: httpx.AsyncClient, app: AppView, source: str | None) -> str | None:
    """What to tell about a server that does not answer, if there is another one to propose; else None.

    That is the first other one of the document that answers, or else the one that the document came from, at
    `source`. Any HTTP response counts as an answer.
    """
    base = app.default_url
    here = _origin(source)
    if "{" in base or _origin(base) == here:  # variables that each task gives; it has just answered
        return None
    if not app.other_servers and here is None:
        return None
    silence = await _silence(client, base)
    if silence is None:
        return None
    told = f"the document's server {base} does not answer ({silence})"
    found = await asyncio.gather(*(_silence(client, each) for each in app.other_servers))
    answering = next((each for each, none in zip(app.other_servers, found, strict=True) if none is None), None)
    if answering is not None:
        return f"{told}, but another one that it names does: send the document again with `server`: {answering}"
    others = f", nor do the {len(found)} others that it names" if len(found) > 1 else ""
    others = f", nor does {app.other_servers[0]}" if len(found) == 1 else others
    if here is None:
        return f"{told}{others}: if the API is elsewhere, send the document again with `server`"
    return (
        f"{told}{others}, and the document came from {here}: "
        f"if the API is there, send the document again with `server`: {here}{urlsplit(base).path}"
    )


def _origin(url: str | None) -> str | None:
    try:
        return None if url is None else origin(url)
    except ValueError:
        return None


async def _silence(client: httpx.AsyncClient, url: str) -> str | None:
    """Why a server does not answer; None if it does."""
    try:
        async with asyncio.timeout(_SECONDS), client.stream("GET", url, follow_redirects=False):
            return None
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError, HostError) as error:
        return str(error) or f"no answer within {_SECONDS:g} seconds"
