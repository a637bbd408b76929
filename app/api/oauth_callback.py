"""What authorization servers and those they send back ask of this server as a client.

The state in the address that a person comes back to is the permission.
"""

from html import escape
from typing import Annotated

import httpx
from litestar import MediaType, Response, get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from app.base.errors import AppError
from app.credentials.client_registration import CALLBACK_PATH, DOCUMENT_PATH, client_metadata
from app.credentials.consent import end_consent, refuse_consent
from app.db.database import Sessions

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


@get(DOCUMENT_PATH, include_in_schema=False)
async def client_document(public_url: NamedDependency[str]) -> dict[str, str | list[str]]:
    """Describes this server to authorization servers that read Client ID Metadata Documents."""
    about = client_metadata(public_url)
    return {"client_id": f"{public_url}{DOCUMENT_PATH}", **about, "token_endpoint_auth_method": "none"}


@get(CALLBACK_PATH, include_in_schema=False)
async def oauth_callback(
    sessions: NamedDependency[Sessions],
    http_client: NamedDependency[httpx.AsyncClient],
    attempt: Annotated[str, QueryParameter(name="state")] = "",
    code: FromQuery[str] = "",
    error: FromQuery[str] = "",
    iss: FromQuery[str] = "",
) -> Response[str]:
    """Stores the tokens, and says so."""
    if error or not code:
        reason = f"the authorization server refused: {error[:200] or 'no code'}"
        if error:
            await refuse_consent(sessions, attempt[:500], reason)
        return _page(400, "Not connected", f"{reason.capitalize()}.")
    try:
        await end_consent(sessions, http_client, attempt[:500], code[:4_000], iss[:2_000])
    except AppError as failure:
        return _page(failure.status, "Not connected", f"{failure}.")
    return _page(200, "Connected", "The tokens are stored. You can close this window.")


def _page(status: int, title: str, text: str) -> Response[str]:
    page = f"<!doctype html><html lang=en><title>{title}</title><h1>{title}</h1><p>{escape(text)}</p></html>"
    return Response(page, status_code=status, media_type=MediaType.HTML, headers=_HEADERS)
