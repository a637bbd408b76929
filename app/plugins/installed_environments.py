"""The environments that workers have installed, and what a setting may name of them. Pure."""

from collections.abc import Sequence

import msgspec

from app.errors import InvalidError
from app.plugins.plugin_options import PluginSpec, read_options
from app.records import Json


class EnvironmentInfo(msgspec.Struct, frozen=True):
    """An installed environment."""

    name: str
    version: str  # of the distribution that registers it
    options: dict[str, Json]  # JSON schema of an object whose properties are the options


def check_environment(text: str, installed: Sequence[EnvironmentInfo]) -> None:
    """Raises InvalidError for an unknown environment, and for an option that is unknown, missing or does not fit.

    While no worker has reported, only the worker that takes the run can check.
    """
    spec = PluginSpec.parse(text)
    if not installed:
        return
    versions = [each for each in installed if each.name == spec.name]
    if not versions:
        there = ", ".join(sorted({each.name for each in installed}))
        raise InvalidError(
            f"unknown environment {spec.name!r}: the workers have {there}; name one of these, or install the "
            "package that registers it on every worker"
        )
    failures = [error for each in versions if (error := _failure(spec, each)) is not None]
    if len(failures) == len(versions):
        raise failures[0]


def _failure(spec: PluginSpec, environment: EnvironmentInfo) -> InvalidError | None:
    try:
        read_options(spec, environment.options)
    except InvalidError as error:
        return error
    return None
