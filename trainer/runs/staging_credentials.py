"""The credentials of staging servers, with the stored secrets that the project's settings name."""

from collections.abc import Mapping

import msgspec

from app.apis.catalog import App
from app.apis.credentials import SecretStore
from app.credentials.credential import Credential, checked
from app.credentials.static_credentials import StaticCredentials
from app.errors import HostError, InvalidError
from app.project.staging import StagingApi, StagingCredential

_REFERENCE = "secret:"


async def staging_credentials(
    apps: Mapping[str, App], staging: Mapping[str, StagingApi], store: SecretStore
) -> StaticCredentials:
    """Raises InvalidError that names the field, or the secret that is not stored."""
    tokens, credentials = {}, {}
    for name, each in staging.items():
        if each.token_secret is not None:
            tokens[name] = await stored_secret(store, each.token_secret)
        schemes = each.credentials.items()
        credentials[name] = {
            scheme: await _credential(apps[name], scheme, given, store) for scheme, given in schemes
        }
    return StaticCredentials(credentials, tokens)


async def stored_secret(store: SecretStore, name: str) -> str:
    try:
        return await store.value(name)
    except HostError as error:
        raise InvalidError(f"staging: {error.message}") from error


async def _credential(app: App, scheme: str, given: StagingCredential, store: SecretStore) -> Credential:
    where = f"staging.{app.name}"
    fields = msgspec.to_builtins(given)
    for name in ("value", "password"):
        if name in fields:
            fields[name] = await stored_secret(store, fields[name].removeprefix(_REFERENCE))
    try:
        credential, kind = checked(scheme, msgspec.convert(fields, Credential), app.schemes.get(scheme))
    except msgspec.ValidationError as error:
        raise InvalidError(f"{where}.credentials.{scheme}: {error}") from error
    except InvalidError as error:
        raise InvalidError(f"{where}.{error}") from error
    if kind in ("oauth2", "openid") and credential.value is None:
        raise InvalidError(
            f"{where}.credentials.{scheme}: trials ask no authorization server for tokens: give one that lasts, "
            "as `value`"
        )
    return credential
