"""Parts that can be added without a change here: entry points by group and name, or any object by
"module:attribute".

A package offers a part by registering it in its own `pyproject.toml`; the built-in parts are registered the same
way:

    [project.entry-points."sage.rewards"]
    brevity = "my_package.rewards:brevity"

Groups, and where their parts are specified:

    sage.commands       a click command
    sage.environments   trainer.environment
    sage.rewards        trainer.sage.reward
    sage.retrieval      app.skills.search
    sage.skill_checks   app.skills.checks; all registered checks are used
    sage.api_protocols  app.apis.documents.protocols; the one that recognizes a document is used
    sage.experts        trainer.rollouts.episode
    sage.judges         app.base.judge
    sage.memories       trainer.rollouts.memories

Listing and finding names imports none of the parts.

Settings name a part with its options: "name", "name?site=0&busy=0.4", "module:attribute?option=x". The options are
the keyword parameters of the function that loads it: their annotations and defaults are its schema.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from app.base.errors import InvalidError
from app.base.values import Json


def names(group: str) -> list[str]:
    """The names registered in a group, sorted. Nothing is imported."""
    return sorted(entry_points(group=group).names)


def find(group: str, name: str) -> EntryPoint:
    """The registration of a name, or a reference to the object that `module:attribute` names. Nothing is imported.

    Raises InvalidError for an unknown name, listing the known ones.
    """
    registered = next(iter(entry_points(group=group, name=name)), None)
    if registered is not None:
        return registered
    if ":" in name:
        return EntryPoint(name, name, group)
    raise InvalidError(
        f"{group} has no {name!r}, it has {', '.join(names(group)) or 'none'}: name one of these, or register "
        "yours as an entry point of that group"
    )


def load(group: str, name: str) -> Any:
    """The part registered under a name, or the object that `module:attribute` names.

    Raises InvalidError for an unknown name, listing the known ones, and for a part that cannot be imported.
    """
    found = find(group, name)
    try:
        return found.load()
    except (ImportError, AttributeError) as error:
        raise InvalidError(f"the part {name!r} of {group} cannot be imported: {error}") from error


@cache
def load_all(group: str) -> MappingProxyType[str, Any]:
    """Every part registered in a group, in the order of the names. Read once per process. Raises InvalidError."""
    return MappingProxyType({name: load(group, name) for name in names(group)})


class PluginSpec(msgspec.Struct, frozen=True):
    """A plug-in's name, and its options as text."""

    name: str
    options: dict[str, str] = {}

    @classmethod
    def parse(cls, text: str) -> "PluginSpec":
        """Raises InvalidError for options that are not written `option=value&option=value`.

        >>> PluginSpec.parse("name?site=0&busy=0.4")
        PluginSpec(name='name', options={'site': '0', 'busy': '0.4'})
        """
        name, _, query = text.partition("?")
        try:
            return cls(name, dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))))
        except ValueError as error:
            raise InvalidError(f"{text!r}: write options as {name}?option=value&option=value") from error


@cache
def options_type(load: Callable[..., Any]) -> type[msgspec.Struct]:
    """The keyword-only parameters of a loader. Raises TypeError for one without an annotation."""
    parameters = inspect.signature(load, eval_str=True).parameters.values()
    fields: list[Any] = []
    for each in parameters:
        if each.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if each.annotation is inspect.Parameter.empty:
            raise TypeError(f"{load.__module__}.{load.__qualname__}: the option {each.name} needs a type")
        optional = each.default is not inspect.Parameter.empty
        fields.append((each.name, each.annotation, each.default) if optional else (each.name, each.annotation))
    return msgspec.defstruct("Options", fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


def options_schema(load: Callable[..., Any]) -> dict[str, Json]:
    """The JSON schema of a loader's options: an object whose properties are the options."""
    schema = msgspec.json.schema(options_type(load))
    shared = schema["$defs"]
    own: dict[str, Json] = shared.pop("Options")
    del own["title"]
    return own | ({"$defs": shared} if shared else {})


def load_options(load: Callable[..., Any], spec: PluginSpec) -> dict[str, Any]:
    """The keyword arguments for a loader, defaults included. Raises InvalidError as `read_options`."""
    given = read_options(spec, options_schema(load))
    return msgspec.structs.asdict(msgspec.convert(given, options_type(load)))


def read_options(spec: PluginSpec, schema: Mapping[str, Json]) -> dict[str, Json]:
    """The values in the text of the options: JSON where that fits the schema, otherwise text.

    Raises InvalidError that names an option that is unknown, missing or does not fit.
    """
    known = schema.get("properties", {})
    unknown = sorted(spec.options.keys() - known.keys())
    if unknown:
        there = f"it has {', '.join(sorted(known))}" if known else "it has none"
        raise InvalidError(f"{spec.name} has no option {', '.join(unknown)}; {there}")
    missing = [name for name in schema.get("required", ()) if name not in spec.options]
    if missing:
        raise InvalidError(f"{spec.name} needs the option {', '.join(missing)}: {spec.name}?{missing[0]}=...")
    shared = schema.get("$defs", {})
    return {
        name: _read(f"{spec.name}: {name}={text}", text, known[name] | {"$defs": shared})
        for name, text in spec.options.items()
    }


def _read(place: str, text: str, schema: dict[str, Json]) -> Json:
    import jsonschema  # noqa: PLC0415  every `sage` command imports this module

    validator = jsonschema.Draft202012Validator(schema)
    candidates: list[Json] = [text]
    with suppress(msgspec.DecodeError, RecursionError):
        candidates.insert(0, msgspec.json.decode(text))
    for value in candidates:
        if validator.is_valid(value):
            return value
    raise InvalidError(f"{place}: {next(validator.iter_errors(candidates[0])).message}")


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
