"""The scopes that a token lacks, as an API says by a challenge (RFC 6750, section 3.1). Pure."""

import re
from typing import Final

import httpx2
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, section 3.3
_MAX_SCOPES: Final = 100
_MAX_CHARS: Final = 4_000


def lacking_scopes(challenge: str) -> list[str]:
    """Of the header WWW-Authenticate of a 403. Empty if it is about something else, or names none.

    >>> lacking_scopes('Bearer error="insufficient_scope", scope="notes notes.audit"')
    ['notes', 'notes.audit']
    >>> lacking_scopes('Bearer error="invalid_token", scope="notes"'), lacking_scopes("")
    ([], [])
    """
    if not challenge or not challenge.isprintable() or not challenge.isascii() or len(challenge) > _MAX_CHARS:
        return []
    refusal = httpx2.Response(403, headers={"WWW-Authenticate": challenge})
    if extract_field_from_www_auth(refusal, "error") != "insufficient_scope":
        return []
    named = (extract_scope_from_www_auth(refusal) or "").split()
    return list(dict.fromkeys(filter(_SCOPE.fullmatch, named)))[:_MAX_SCOPES]
