"""Practice environments by name, as settings say it: "office", "office?site=0", "office?busy=0.4&site=0"."""

from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import msgspec

from app.errors import InvalidError
from trainer.environment import Environment
from trainer.environments.office.environment import OfficeEnvironment


class _Office(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    site: int | None = None
    busy: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0


def open_environment(name: str) -> Environment:
    """Raises InvalidError for a name that nothing goes by, or an option that does not fit."""
    parts = urlsplit(name)
    if parts.path != "office":
        raise InvalidError(f"no environment is called {name!r}: there is office, with the options site and busy")
    try:
        options = msgspec.convert(
            dict(parse_qsl(parts.query, strict_parsing=bool(parts.query))), _Office, strict=False
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidError(f"the environment {name!r} does not fit: {error}") from error
    return OfficeEnvironment(options.site, busy=options.busy)
