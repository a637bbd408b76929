"""What is stored for a security scheme, and what a call gets of it. Pure."""

import base64
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import msgspec

from app.apis.authentication import UNFIT_FOR_HEADERS, Authentication
from app.apis.catalog import App, Operation
from app.apis.request_headers import is_key_header
from app.apis.security_schemes import Grant, KeyPlace, SecurityScheme, bearer_for_oauth, chosen
from app.base.errors import InvalidError

MAX_SCOPES: Final = 300
CredentialText = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00\r\n]*(?!\n)$")]
_Url = Annotated[str, msgspec.Meta(max_length=2_000, pattern=r"^https?://[^\s\x00]+(?!\n)$")]
_Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\s\x00;=,]+(?!\n)$")]
_FileName = Annotated[str, msgspec.Meta(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*(?!\n)$")]
_Scope = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\s\x00]+(?!\n)$")]
_Scopes = Annotated[list[_Scope], msgspec.Meta(max_length=MAX_SCOPES)]
ClientAuth = Literal["basic", "post"]
SECRETS: Final = ("value", "password", "client_secret", "access_token", "refresh_token")


def _about(text: str) -> msgspec.Meta:
    return msgspec.Meta(description=text)


class Credential(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which fields are needed depends on the scheme: `credentials` of the API says which.

    `place`, `name` and `prefix` are for APIs whose documents do not declare what they need, or need it themselves.
    """

    value: Annotated[CredentialText, _about("an API key, or a token")] | None = None
    username: CredentialText | None = None
    password: CredentialText | None = None
    certificate: (
        Annotated[_FileName, _about("a file in SAGE_CLIENT_CERTIFICATES: chain and key in PEM")] | None
    ) = None
    grant: Annotated[Grant, _about("of OAuth; default: the first of the document that the fields fit")] | None = (
        None
    )
    client_id: CredentialText | None = None
    client_secret: CredentialText | None = None
    client_auth: (
        Annotated[ClientAuth, _about("how it sends its secret: in a header or the form; default: either")] | None
    ) = None
    scopes: Annotated[_Scopes, _about("of OAuth; default: those that the operations require")] | None = None
    client_scopes: (
        Annotated[_Scopes, _about("that a client which registered itself may ask for; default: any")] | None
    ) = None
    authorization_url: Annotated[_Url, _about("overrides the document's")] | None = None
    token_url: Annotated[_Url, _about("overrides the document's")] | None = None
    resource: Annotated[_Url, _about("that the tokens are for (RFC 8707); default: the document's")] | None = None
    issuer: Annotated[_Url, _about("of the authorization server; default: the document's")] | None = None
    access_token: CredentialText | None = None
    refresh_token: CredentialText | None = None
    place: KeyPlace | None = None
    name: Annotated[_Name, _about("of the header, query parameter or cookie")] | None = None
    prefix: Annotated[_Name, _about("before the value, such as Token; default: the scheme's")] | None = None

    def to_json(self) -> str:
        """As it is stored, before it is encrypted."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Self:
        return msgspec.json.decode(text, type=cls)


def checked(name: str, credential: Credential, scheme: SecurityScheme | None) -> tuple[Credential, str]:
    """The credential, and its kind: complete, so that it holds if the document changes.

    `scheme` is the one that the document declares under this name. Raises InvalidError that names the field.
    """
    where = f"credentials.{name}"
    if scheme is None or credential.place is not None:
        scheme = _own_scheme(name, credential)
        credential = msgspec.structs.replace(credential, place=scheme.place, name=scheme.parameter)
    if (credential.value or credential.access_token) and not authentication(scheme, credential).fits_headers:
        raise InvalidError(f"{where}: they {UNFIT_FOR_HEADERS}")
    if scheme.kind in ("oauth2", "openid"):
        return credential, scheme.kind
    missing = [field for field in needed_fields(scheme.kind) if getattr(credential, field) is None]
    if missing:
        raise InvalidError(f"{where}: {scheme.kind} needs {' and '.join(f'`{each}`' for each in missing)}")
    return credential, scheme.kind


def needed_fields(kind: str) -> tuple[str, ...]:
    """Of a credential, for each kind but those of OAuth, which depend on the grant."""
    return {"basic": ("username", "password"), "mutual_tls": ("certificate",)}.get(kind, ("value",))


def authentication(scheme: SecurityScheme | None, credential: Credential) -> Authentication:
    """What a call gets. Of OAuth it is the access token, which there must be."""
    if credential.certificate is not None and credential.value is None:
        return Authentication(certificate=credential.certificate)
    if scheme is None:
        scheme = SecurityScheme(name="", kind="api_key")
    place = credential.place or scheme.place
    parameter = credential.name or scheme.parameter
    prefix = scheme.prefix if credential.prefix is None else credential.prefix
    if credential.username is not None and credential.access_token is None:
        pair = base64.b64encode(f"{credential.username}:{credential.password or ''}".encode()).decode()
        hidden = (credential.password,) if credential.password else ()
        return Authentication(headers={parameter: f"{prefix or 'Basic'} {pair}"}, hidden=hidden)
    value = credential.access_token or credential.value or ""
    text = f"{prefix} {value}" if prefix else value
    if place == "query":
        return Authentication(query={parameter: text})
    if place == "cookie":
        return Authentication(cookies={parameter: text})
    return Authentication(headers={parameter: text})


def chosen_schemes(app: App, operation: Operation, held: Mapping[str, Credential]) -> list[str]:
    """Those of `held` whose credentials a call gets, by the document, and all that it does not declare."""
    wanted = app.security if operation.security is None else operation.security
    available = held.keys() & app.schemes.keys()
    instead = bearer_for_oauth(app.schemes, available)
    names = chosen(wanted, app.schemes, available) or chosen(wanted, app.schemes, available | instead.keys())
    declared = dict.fromkeys(instead.get(name, name) for name in names)
    return [*declared, *(name for name, each in held.items() if name not in app.schemes and each.place)]


def secrets_of(credential: Credential) -> Mapping[str, str]:
    """The fields that must not be seen."""
    return {name: text for name in SECRETS if (text := getattr(credential, name))}


def _own_scheme(name: str, credential: Credential) -> SecurityScheme:
    """Of a credential that the document does not declare."""
    if credential.certificate is not None:
        return SecurityScheme(name=name, kind="mutual_tls")
    if credential.username is not None:
        return SecurityScheme(name=name, kind="basic", prefix="Basic")
    if credential.place is None:
        raise InvalidError(
            f"credentials.{name}: the document declares no scheme of this name; to send it all the same, say "
            "where by `place` (header, query or cookie) and `name`"
        )
    parameter = credential.name or "Authorization"
    if credential.place != "query" and not is_key_header(parameter):
        raise InvalidError(f"credentials.{name}.name: {parameter!r} cannot be the name of a {credential.place}")
    return SecurityScheme(name=name, kind="api_key", place=credential.place, parameter=parameter)
