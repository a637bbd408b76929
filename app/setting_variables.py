"""The environment variables that settings are read from."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from app.errors import SettingError
from app.setting_lists import check_value, from_text
from app.similar_names import did_you_mean

_PREFIX = "SAGE_"
_OF_COMMANDS = {"SAGE_URL", "SAGE_KEY"}
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


def unread_variables(env: Iterable[str], kinds: Iterable[str]) -> dict[str, str]:
    """Variables that resemble a setting and are none, with the question whether that one was meant.

    >>> unread_variables(["SAGE_TASK_MAX_SECONDS", "SAGE_PORT", "SAGE_URL"], ["max_task_seconds", "port"])
    {'SAGE_TASK_MAX_SECONDS': 'did you mean SAGE_MAX_TASK_SECONDS?'}
    """
    known = {variable_of(name): name for name in kinds}
    found: dict[str, str] = {}
    for variable in sorted(env):
        if variable.startswith(_PREFIX) and variable not in known and variable not in _OF_COMMANDS:
            hint = did_you_mean(variable.removeprefix(_PREFIX).lower(), known.values())
            for name in known.values():
                hint = re.sub(rf"\b{name}\b", variable_of(name), hint)
            found |= {variable: hint} if hint else {}
    return found


def variable_of(name: str) -> str:
    """The environment variable of a setting.

    >>> variable_of("port"), variable_of("database_url")
    ('SAGE_PORT', 'DATABASE_URL')
    """
    return name.upper() if name in _PLAIN else f"SAGE_{name.upper()}"
