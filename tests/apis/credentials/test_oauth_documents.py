"""OAuth as documents declare it: what is stored for it can be read again, or is refused by name."""

from typing import Any

import httpx
import pytest

from app.apis.credentials import oauth
from app.apis.credentials.credential import Credential
from app.apis.credentials.oauth import TokenError
from app.apis.credentials.schemes import OAuthFlow, SecurityScheme
from app.base.errors import InvalidError


async def complete(**declared: Any) -> Credential:
    """Client credentials, completed by a document that declares this."""
    flow = OAuthFlow(**{"token_url": "/token", **declared})
    scheme = SecurityScheme(name="o", kind="oauth2", flows={"client_credentials": flow})
    given = Credential(client_id="us", client_secret="secret")
    async with httpx.AsyncClient() as client:
        return await oauth.complete("o", given, scheme, "https://a.test", client)


@pytest.mark.parametrize(
    ("declared", "asked_for"),
    [(("read", "write"), ["read", "write"]), (("",), []), (("read write", "admin "), ["read", "write", "admin"])],
)
async def test_scopes_are_asked_for_one_by_one(declared: tuple[str, ...], asked_for: list[str]) -> None:
    made = await complete(scopes=declared)
    assert made.scopes == asked_for
    assert Credential.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("declared", "field"),
    [
        ({"scopes": tuple(map(str, range(301)))}, "scopes"),
        ({"scopes": ("a" * 201,)}, "scopes"),
        ({"token_url": "urn:token"}, "token_url"),
        ({"token_url": "https://a.test/<your token>"}, "token_url"),
    ],
)
async def test_what_could_not_be_read_again_is_refused_by_name(declared: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError, match=rf"^credentials\.o: the document's `{field}` cannot be used"):
        await complete(**declared)


@pytest.mark.parametrize("token", ["a" * 10_001, "a\nb"])
async def test_a_token_that_could_not_be_read_again_is_none(token: str) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json={"access_token": token})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(TokenError, match="none of OAuth"):
            await oauth.renewed(client, await complete())
