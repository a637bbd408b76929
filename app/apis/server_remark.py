"""Looks whether the server of a new document answers, and where else the API may be."""

import asyncio
from urllib.parse import urlsplit

import httpx

from app.apis.address import origin
from app.apis.app_view import AppView
from app.errors import HostError

_SECONDS = 5.0


async def server_remark(client: httpx.AsyncClient, app: AppView, source: str) -> str | None:
    """What to tell about a server that does not answer, if the document came from another one; else None.

    Any HTTP response counts as an answer.
    """
    base = app.default_url
    if "{" in base:  # variables that each task gives
        return None
    try:
        here = origin(source)
        if origin(base) == here:
            return None
    except ValueError:
        return None
    try:
        async with asyncio.timeout(_SECONDS), client.stream("GET", base, follow_redirects=False):
            return None
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, HostError) as error:
        reason = str(error) or f"no answer within {_SECONDS:g} seconds"
    return (
        f"the document's server {base} does not answer ({reason}), and the document came from {here}: "
        f"if the API is there, send the document again with `server`: {here}{urlsplit(base).path}"
    )
