"""One signed POST to a server of a project, as Standard Webhooks describes it."""

import asyncio
import time
from typing import NamedTuple

import httpx

from app.errors import HostError, first_line
from app.project.webhook import signed_headers
from app.untrusted.http_body import BodyError, read_body


class SignedPost(NamedTuple):
    """A message, where it goes, and the key that signs it."""

    url: str
    key: bytes
    id: str
    body: bytes


class PostAnswer(NamedTuple):
    """A response. The body is b"" if none was wanted, or the status is not 2xx."""

    status: int
    body: bytes


class PostError(Exception):
    """There is no response. The message is for the project."""


class PostTimeoutError(PostError):
    """There is none in time."""


async def post(client: httpx.AsyncClient, message: SignedPost, *, seconds: float, limit: int = 0) -> PostAnswer:
    """The response, within so many seconds in all. Redirects are not followed, and the body is read up to `limit`
    bytes; 0 leaves it unread.

    Raises PostError.
    """
    headers = signed_headers(message.key, message.id, int(time.time()), message.body)
    headers |= {"Content-Type": "application/json", "User-Agent": "sage-server"}
    extensions = {"timeout": httpx.Timeout(seconds).as_dict()}
    try:
        async with asyncio.timeout(seconds):
            request = httpx.Request(
                "POST", message.url, headers=headers, content=message.body, extensions=extensions
            )
            response = await client.send(request, stream=True, follow_redirects=False)
            try:
                wanted = limit and response.is_success
                return PostAnswer(response.status_code, await read_body(response, limit) if wanted else b"")
            finally:
                await response.aclose()
    except (TimeoutError, httpx.TimeoutException) as error:
        raise PostTimeoutError(f"no answer within {seconds:g} seconds") from error
    except HostError as error:
        raise PostError(error.message) from error
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last of a name such as `xn--`
        raise PostError(f"it cannot be reached: {first_line(error)}") from error
    except BodyError as error:
        raise PostError(f"the answer {error}") from error


def status_problem(status: int) -> str | None:
    """Why a status is no success; None for 2xx."""
    if 200 <= status < 300:
        return None
    reason = "it redirects, which is not followed" if 300 <= status < 400 else "it answered with an error"
    return f"{reason}: status {status}"
