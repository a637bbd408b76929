"""The environment variables that settings are read from."""

from collections.abc import Mapping
from typing import Any

import msgspec

from app.errors import SettingError
from app.setting_lists import check_value, from_text

_PLAIN = {  # names that other tools also set
    "database_url",
    "database_direct_url",
    "broker_url",
    "engine_urls",
    "embeddings_url",
    "otel_exporter_otlp_endpoint",
    "notify_socket",
}


def values_in(env: Mapping[str, str], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the environment has, by name. `kinds` are the types of all.

    Raises SettingError with the name of the variable that has an invalid value.
    """
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        variable = variable_of(name)
        if variable in env:
            try:
                values[name] = msgspec.convert(env[variable], kind, strict=False, dec_hook=from_text)
            except msgspec.ValidationError as error:
                raise SettingError(f"{variable}={env[variable]!r}: {error}") from error
            check_value(name, variable, env[variable])
    return values


def variable_of(name: str) -> str:
    """The environment variable of a setting.

    >>> variable_of("port"), variable_of("database_url")
    ('SAGE_PORT', 'DATABASE_URL')
    """
    return name.upper() if name in _PLAIN else f"SAGE_{name.upper()}"
