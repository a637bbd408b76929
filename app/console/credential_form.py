"""The form of credentials for one security scheme. Which fields it has depends on the kind of the scheme."""

from typing import Final

import msgspec

from app.api.submission import Principal
from app.apis.authentication import UNFIT_FOR_HEADERS
from app.apis.credentials import bearer
from app.base.errors import InvalidError
from app.credentials.credential import Credential

_OAUTH: Final = ("client_id", "client_secret", "value")
FIELDS: Final = {
    "api_key": ("value",),
    "http": ("value",),
    "basic": ("username", "password"),
    "oauth2": _OAUTH,
    "openid": _OAUTH,
    "mutual_tls": ("certificate",),
}
"""By the kind of a scheme."""


class PrincipalFields(msgspec.Struct, frozen=True):
    """Whose credentials are meant; without one, those for all tasks."""

    principal: Principal = ""


class CredentialFields(msgspec.Struct, frozen=True, kw_only=True):
    """Whatever was left empty is not sent."""

    value: str | None = None
    username: str | None = None
    password: str | None = None
    certificate: str | None = None
    client_id: str | None = None
    client_secret: str | None = None
    principal: Principal = ""

    def credential(self) -> Credential:
        """Raises InvalidError that names the field."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value}
        given.pop("principal", None)
        if not given:
            raise InvalidError("fill in at least one field")
        try:
            return msgspec.convert(given, Credential)
        except msgspec.ValidationError as error:
            raise InvalidError(f"credentials: {error}") from error

    def token(self) -> str:
        """Raises InvalidError."""
        if not self.value:
            raise InvalidError("value: must be filled in")
        if not bearer(self.value).fits_headers:
            raise InvalidError(f"value: they {UNFIT_FOR_HEADERS}")
        return self.value
