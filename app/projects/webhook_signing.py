"""Signs the messages that a project's servers receive, as Standard Webhooks (standardwebhooks.com) do."""

import base64
import binascii
import hashlib
import hmac

from app.base.errors import InvalidError

_PREFIX = "whsec_"
_KEY_BYTES = range(24, 65)
_HINT = 'create one with `echo "whsec_$(openssl rand -base64 32)"`'


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
