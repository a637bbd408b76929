"""The manual's pages of settings and of REST, made from the code. `make manual` writes them."""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from app.base.run_settings import RunSettings
from app.base.settings import Settings, variable_of
from app.projects.settings import ProjectSettings
from app.web.openapi import field_docs, field_sections
from app.web.problem import COMMON_PROBLEMS

Json = Mapping[str, Any]

_SETTINGS_HEAD = """# Settings

*Made from `settings.py` of `app/base` and `app/projects`, and `app/base/run_settings.py`.*

The server, each [project](#project) and each [training run](#training-run) have settings of their own.

## Server

Read once, from the environment. A value that does not fit is refused at the start, with the variable's name.
"""
_PROJECT = """## Project

Set by [`PATCH /v1/projects/{name}`](rest.md#patch-v1projectsname), as in
`{"settings": {"limits": {"running_tasks": 4}}}`, which changes only what it names, or on the page Projects of the
[console](interfaces.md#console). null restores a default. What `GET` shows of a `webhook` or a `verifier` lacks
the `secret`, which `PATCH` takes as well.
"""
_RUNS = """## Training run

For `sage train --set NAME=VALUE`, and as `settings` of [`POST /v1/training-runs`](rest.md#training) and of the
schedule. An unknown name or a value that does not fit is refused when the run is submitted.
"""
_REST_HEAD = """# REST

*Made from the OpenAPI document, which every server has at `/schema/openapi.json`; `/docs` shows the same, to try
out.*

Every request under `/v1` carries a key: `Authorization: Bearer sage_...`. Bodies are JSON. Errors are of the
type [Problem](#problem), as `application/problem+json`; besides those that are named below, every request may be
answered {common}. Two answers have another form: `/readyz` says with 503 what is not ready, as
[Readiness](#readiness), and errors of chats are [OpenAI's](interfaces.md#what-comes-back). Long lists come in
pages: send `next_cursor` as `cursor` for the next one.
"""
_METHODS = ("get", "post", "put", "patch", "delete")


def reference_pages(document: Json) -> dict[str, str]:
    """The Markdown by name. `document` is the OpenAPI document."""
    return {"settings": settings_page(), "rest": rest_page(document)}


class Setting(msgspec.Struct, frozen=True):
    section: str
    name: str
    values: str
    default: str
    description: str


def settings_page() -> str:
    server = _tables(Settings, variable_of)
    project, runs = _tables(ProjectSettings, str), _tables(RunSettings, str)
    return "\n".join([_SETTINGS_HEAD, *server, _PROJECT, *project, _RUNS, *runs]).rstrip() + "\n"


def described(kind: type[msgspec.Struct]) -> list[Setting]:
    """Every field with the comment above its section and the docstring below it. Fails where one has none."""
    sections = field_sections(kind)
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    shown = {field.name: field.type for field in types.type_info(kind).fields}  # type: ignore[attr-defined]
    found = []
    for name, text in field_docs(kind).items():
        section = sections.get(name, "")
        found.append(Setting(section, name, _values(shown[name]), _default(fields[name].default), text))
        found += _inside(section, name, shown[name])
    missing = fields.keys() - {each.name for each in found}
    assert not missing, f"{kind.__name__}: no docstring under {sorted(missing)}"
    return found


def _inside(section: str, name: str, kind: types.Type) -> Iterator[Setting]:
    """The fields of nested settings, named with a dot."""
    match kind:
        case types.Metadata():
            yield from _inside(section, name, kind.type)
        case types.UnionType():
            for choice in kind.types:
                yield from _inside(section, name, choice)
        case types.DictType():
            yield from _inside(section, f"{name}.NAME", kind.value_type)
        case types.StructType(cls=cls):
            for each in described(cls):
                yield msgspec.structs.replace(each, section=section, name=f"{name}.{each.name}")


def _tables(kind: type[msgspec.Struct], called: Any) -> Iterator[str]:
    settings = described(kind)
    for section in dict.fromkeys(each.section for each in settings):
        yield f"### {section}\n\n| name | value | default | |\n|---|---|---|---|"
        for each in settings:
            if each.section == section:
                yield f"| `{called(each.name)}` | {each.values} | {each.default} | {each.description} |"
        yield ""


def _default(value: object) -> str:
    """
    >>> [_default(each) for each in ("", "seed", 0.001, 0.0, 16_384, True, None, Path("data"))]
    ['', '`seed`', '`0.001`', '`0`', '`16384`', '`true`', '', '`data`']
    """
    if value in (None, "", msgspec.NODEFAULT) or isinstance(value, msgspec.Struct | Mapping | tuple):
        return ""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _values(kind: types.Type) -> str:
    """In words: the choices, or the type and its bounds."""
    match kind:
        case types.Metadata():
            return _values(kind.type)
        case types.UnionType():
            return " or ".join(_values(each) for each in kind.types if not isinstance(each, types.NoneType))
        case types.LiteralType():
            return ", ".join(f"`{each}`" if each else "empty" for each in kind.values)
        case types.EnumType():
            return ", ".join(f"`{each.value}`" for each in kind.cls)
        case types.BoolType():
            return "`true`, `false`"
        case types.IntType() | types.FloatType():
            return f"{'whole number' if isinstance(kind, types.IntType) else 'number'}{_bounds(kind)}"
        case types.DateTimeType():
            return "time, with its zone"
        case types.CustomType(cls=cls) if cls is Path:
            return "path"
        case types.StrType():
            return "text"
        case types.VarTupleType():
            return f"list of {_values(kind.item_type)}"
        case types.DictType() | types.StructType():
            return "object"
    raise AssertionError(f"no words for {kind}")


def _bounds(kind: types.IntType | types.FloatType) -> str:
    """
    >>> _bounds(types.IntType(ge=1, le=65_535)), _bounds(types.FloatType(gt=0)), _bounds(types.FloatType())
    (', 1 to 65535', ', above 0', '')
    """
    low = f"above {kind.gt:g}" if kind.gt is not None else f"{kind.ge}" if kind.ge is not None else ""
    if low and kind.le is not None:
        return f", {low}{' up' if kind.gt is not None else ''} to {kind.le}"
    return f", {low}{'' if kind.gt is not None else ' or more'}" if low else ""


def rest_page(document: Json) -> str:
    """`document` is the OpenAPI document."""
    common = [f"`{status.value}`" for status in COMMON_PROBLEMS]
    parts = [_REST_HEAD.format(common=f"{', '.join(common[:-1])} or {common[-1]}")]
    for tag in document["tags"]:
        parts.append(f"## {tag['name']}\n\n{tag['description']}\n")
        parts += [_operation(method, path, each) for method, path, each in _operations(document, tag["name"])]
    parts.append("## Types\n")
    schemas = document["components"]["schemas"]
    parts += [_type(name, schemas[name]) for name in sorted(schemas)]
    return "\n".join(parts).rstrip() + "\n"


def _operations(document: Json, tag: str) -> Iterator[tuple[str, str, Json]]:
    for path in sorted(document["paths"]):
        for method in _METHODS:
            operation = document["paths"][path].get(method)
            if operation and tag in operation["tags"]:
                yield method.upper(), path, operation


def _operation(method: str, path: str, operation: Json) -> str:
    summary = operation["summary"]
    about = f"**{summary}{'' if summary.endswith('?') else '.'}** {_flat(operation.get('description'))}".strip()
    lines = [f"### {method} {path}", "", about, "", *_parameters(operation.get("parameters", []))]
    body = operation.get("requestBody")
    if body:
        lines += [f"Body: {_kind(next(iter(body['content'].values()))['schema'])}.", ""]
    return "\n".join([*lines, _answers(operation["responses"]), ""])


def _parameters(parameters: list[Json]) -> list[str]:
    if not parameters:
        return []
    rows = [
        f"| `{each['name']}` | {each['in']} | {_kind(each['schema'])} | {_remark(each['schema'], each)} |"
        for each in parameters
    ]
    return ["| parameter | in | type | |", "|---|---|---|---|", *rows, ""]


def _answers(responses: Json) -> str:
    good = [_answer(code, each) for code, each in responses.items() if code < "400"]
    problems = [f"`{code}`" for code in sorted(responses) if code >= "400" and int(code) not in COMMON_PROBLEMS]
    return "; ".join([*good, *([f"errors {', '.join(problems)}"] if problems else [])]) + "."


def _answer(code: str, response: Json) -> str:
    content = response.get("content") or {}
    kinds = dict.fromkeys(_kind(each["schema"]) for each in content.values() if each.get("schema"))
    media = [name for name in content if name != "application/json"]
    shown = [kind for kind in kinds if kind != "any"] or [f"`{name}`" for name in media]
    return f"Answers `{code}`{': ' if shown else ''}{' or '.join(shown)}"


def _type(name: str, schema: Json) -> str:
    about = _flat(schema.get("description"))
    lines = [f"### {name}", "", *([about, ""] if about else [])]
    if "enum" in schema:
        return "\n".join([*lines, f"One of {', '.join(f'`{each}`' for each in schema['enum'])}.", ""])
    rows = [f"| `{field}` | {_kind(each)} | {_remark(each, {})} |" for field, each in schema["properties"].items()]
    return "\n".join([*lines, "| field | type | |", "|---|---|---|", *rows, ""])


def _kind(schema: Json) -> str:
    """In words, with links to the named types.

    >>> _kind({"type": "array", "items": {"$ref": "#/components/schemas/Use"}})
    'list of [Use](#use)'
    >>> _kind({"oneOf": [{"type": "string", "format": "uuid"}, {"type": "null"}]})
    'uuid or null'
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(map(_kind, schema[key])))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return _plain_kind(schema)


def _plain_kind(schema: Json) -> str:
    kinds = schema.get("type", "any")
    if isinstance(kinds, list):
        return " or ".join(_plain_kind({**schema, "type": kind}) for kind in kinds)
    if kinds == "array":
        return f"list of {_kind(schema.get('items') or {})}"
    if kinds == "object":
        values = schema.get("additionalProperties")
        return f"object of {_kind(values)}" if isinstance(values, Mapping) and values else "object"
    return str(schema.get("format", kinds))


def _remark(schema: Json, parameter: Json) -> str:
    text = _flat(parameter.get("description") or schema.get("description"))
    default = schema.get("default")
    if default in (None, "", {}, []) or isinstance(default, Mapping | list):
        return text
    shown = str(default).lower() if isinstance(default, bool) else default
    return f"{text.removesuffix('.')}; default `{shown}`" if text else f"default `{shown}`"


def _flat(text: str | None) -> str:
    """Fit for a cell of a table."""
    return " ".join((text or "").split()).replace("|", "\\|")
