"""Webhooks of projects: their events, and the signatures of Standard Webhooks (standardwebhooks.com). Pure."""

import base64
import binascii
import hashlib
import hmac
from typing import Annotated, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from app.errors import InvalidError

WebhookEvent: TypeAlias = Literal[
    "approval.wanted", "task.done", "task.failed", "task.cancelled", "release.rolled_back"
]

_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)
_HINT = 'create one with `echo "whsec_$(openssl rand -base64 32)"`'


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address that is told of events. `PATCH` also takes a `secret`, which is never shown again."""

    url: Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://")]
    """Receives one POST for each event, signed with the secret."""
    events: Annotated[tuple[WebhookEvent, ...], msgspec.Meta(min_length=1, max_length=20)] = get_args(WebhookEvent)
    """The events to send; without it all."""

    def masked(self) -> "Webhook":
        """Without the path and query of the URL, which may hold a token.

        >>> Webhook(url="https://example.org:8443/hooks/token?key=1").masked().url
        'https://example.org:8443/***'
        """
        return msgspec.structs.replace(self, url=without_path(self.url))


def without_path(url: str) -> str:
    """The URL without path and query, which may hold a token."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/***"


def is_callable_url(url: str) -> bool:
    """Whether an address can be called, and holds no password."""
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0 and parts.username is None and not parts.fragment
    except ValueError:  # of a port that is not a number, or a bracket that does not close
        return False
    return valid and url.isprintable() and " " not in url


def check_url(url: str, setting: str) -> None:
    """Raises InvalidError for an address that cannot be called, or that holds a password."""
    if not is_callable_url(url):
        raise InvalidError(
            f"settings: {setting}.url: write http://host/path or https://, without a user or fragment"
        )


def signing_key(secret: str, field: str = "webhook.secret") -> bytes:
    """The key that a secret `whsec_<base64>` encodes. Raises InvalidError if it is none."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"settings: {field} is not `whsec_` and base64: {_HINT}") from error
    if not secret.startswith(_PREFIX) or len(key) not in _KEY_BYTES:
        raise InvalidError(f"settings: {field} is not `whsec_` and the base64 of 24 to 64 bytes: {_HINT}")
    return key


def signed_headers(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove where a message comes from, and when it was sent.

    >>> key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    >>> message = b'{"test": 2432232314}'
    >>> signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, message)["webhook-signature"]
    'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='
    """
    signed = b".".join([message_id.encode(), str(timestamp).encode(), body])
    signature = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
