"""Credentials that stay what they are, by security scheme."""

from collections.abc import Mapping

from app.apis.authentication import Authentication, combined
from app.apis.catalog import App, Operation
from app.apis.credentials import Unrenewed, bearer
from app.credentials.credential import Credential, authentication, chosen_schemes


class StaticCredentials(Unrenewed):
    """Fulfils `Credentials`, by app and scheme. A token is sent where nothing else is in `Authorization`."""

    def __init__(
        self, credentials: Mapping[str, Mapping[str, Credential]], tokens: Mapping[str, str] | None = None
    ) -> None:
        self._credentials = credentials
        self._tokens = tokens or {}

    async def of(self, app: App, operation: Operation) -> Authentication:
        held = self._credentials.get(app.name, {})
        parts = [
            authentication(app.schemes.get(name), held[name]) for name in chosen_schemes(app, operation, held)
        ]
        if app.name in self._tokens and not any("Authorization" in each.headers for each in parts):
            parts.append(bearer(self._tokens[app.name]))
        return combined(parts)
