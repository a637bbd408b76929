"""The arguments of a call: validated against the document, completed by stored secrets, and encoded as it
specifies.

Nothing is coerced. `{"password": "secret:mail"}` binds the parameter of every operation that has it,
`{"log_in": {"password": "secret:mail"}}` that of one operation: the agent neither passes nor sees these.
Encoding follows OpenAPI 3.1, section 4.8.12.3.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, unquote, urlencode
from weakref import WeakKeyDictionary

import httpx
import msgspec

from app.apis.catalog import App, Body, BoundParameter, Operation, Parameter
from app.apis.credentials.schemes import is_header_name, is_reserved
from app.apis.documents.protocols import OutgoingRequest
from app.apis.documents.schemas import Check, TooComplexError, start_counting
from app.apis.listing import call_form, type_name
from app.apis.media_types import (
    JSON_PATCH,
    bare,
    file_type,
    fitting,
    is_binary_media,
    is_declared_json,
    is_form,
    is_json_lines,
    listed_types,
)
from app.apis.naming import nearest
from app.apis.values import body_takes_bytes, holds_bytes, is_binary, is_file, part_schemas, takes_bytes
from app.base.errors import HostError, InvalidError
from app.base.untrusted import is_in_range
from app.base.values import Json

_MESSAGE_CHARS = 300
_REFERENCE = re.compile(r"secret:([A-Za-z0-9][A-Za-z0-9_.-]{0,63})")
_SEPARATORS: Final = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}
_MARKS: Final = {"matrix": ";", "label": "."}
_COOKIE = re.compile(r"[\x21\x23-\x3a\x3c-\x5b\x5d-\x7e]*")
_HEADER = re.compile(r"[\t\x20-\x7e]*")
_SLASH = re.compile(r"[/\\]")
_DECODED = 4  # times that a text is decoded to find what it hides
_validators: WeakKeyDictionary[Operation, dict[str, Check]] = WeakKeyDictionary()


def bind(operation: Operation, args: list[Json], kwargs: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments by name, each valid for its schema. Raises HostError, a TypeError or a ValidationError.

    None for an optional argument leaves it out, unless its schema accepts null.
    """
    given = _by_name(operation, args, kwargs)
    checks = _checks(operation)
    start_counting()
    bound: dict[str, Json] = {}
    for parameter in operation.parameters:
        name = parameter.name
        if name not in given:
            if parameter.required:
                raise _type_error(operation, f"missing the required argument {name!r}")
            continue
        value, check = given[name], checks.get(name)
        if holds_bytes(value):
            if not takes_bytes(operation, parameter, value):
                refusal = "bytes is not JSON: pass None, bool, int, float, str, list or dict"
                raise HostError("TypeError", f"cannot pass the arguments of {operation.api}: {refusal}")
            bound[name] = value
            continue
        if check is not None and (reason := _reason(check, value)):
            if value is None and not parameter.required:
                continue
            raise HostError("ValidationError", f"{operation.name}() argument {name!r}: {reason}")
        bound[name] = value
    return bound


def _by_name(operation: Operation, args: list[Json], kwargs: Mapping[str, Json]) -> dict[str, Json]:
    names = dict.fromkeys(parameter.name for parameter in operation.parameters)
    if len(args) > len(names):
        raise _type_error(operation, f"takes {len(names)} arguments but {len(args)} were given")
    given = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise _type_error(operation, f"got more than one value for {name!r}")
        if name not in names:
            raise _type_error(operation, f"has no argument {name!r}, {nearest(name, names)}")
        given[name] = value
    return given


def _checks(operation: Operation) -> dict[str, Check]:
    """One validator per argument with a schema, built when the operation is first called."""
    if operation not in _validators:
        _validators[operation] = {each.name: Check(each.schema) for each in operation.parameters if each.schema}
    return _validators[operation]


def _type_error(operation: Operation, problem: str) -> HostError:
    return HostError("TypeError", f"{operation.name}() {problem}; signature: {call_form(operation)}")


def _reason(check: Check, value: Json) -> str | None:
    """Why the value is refused; None if it is valid."""
    try:
        if check.accepts(value):
            return None
        error = check.error(value)
    except TooComplexError:
        return "it takes too long to check against its schema; pass less at once"
    if error is None:
        return "does not fit its schema"
    place = "".join(f"[{part!r}]" for part in error.absolute_path)
    message = error.message if len(error.message) <= _MESSAGE_CHARS else f"{error.message[:_MESSAGE_CHARS]}..."
    return f"{place}: {message}" if place else message


def check_bindings(app: App, bind: Mapping[str, Json]) -> None:
    """Raises InvalidError that names what the API does not have, or what is not `secret:NAME`."""
    for name, target in bind.items():
        if isinstance(target, Mapping):
            known = (each for each in app.operations.values() if name in each.former_names)
            operation = app.operations.get(name) or next(known, None)
            if operation is None:
                raise InvalidError(f"bind: {app.name} has no operation {name!r}, {nearest(name, app.operations)}")
            _check(target, {each.name for each in operation.parameters}, f"{app.name}.{name}")
        else:
            every = {each.name for operation in app.operations.values() for each in operation.parameters}
            _check({name: target}, every, f"the API {app.name}")


def bind_parameters(app: App, bind: Mapping[str, Json]) -> App:
    """The app as the agent sees it: its operations lack the bound parameters. What it does not have is ignored."""
    if not bind:
        return app
    operations = {
        name: _bound(operation, dict(_targets(operation, bind))) for name, operation in app.operations.items()
    }
    return msgspec.structs.replace(app, operations=operations)


def filled(
    operation: Operation, arguments: Mapping[str, Json], values: Mapping[str, str]
) -> tuple[Operation, dict[str, Json]]:
    """The operation with all parameters and the arguments to send; `values` are those of its bound parameters.

    Raises HostError for a value that is no number where one is required.
    """
    parameters = tuple(each.parameter for each in operation.bound)
    given = {each.name: _typed(each, values[each.name]) for each in parameters}
    whole = msgspec.structs.replace(operation, parameters=(*operation.parameters, *parameters), bound=())
    return whole, {**arguments, **given}


def _check(targets: Mapping[str, Json], known: set[str], owner: str) -> None:
    for name, target in targets.items():
        if name not in known:
            raise InvalidError(f"bind: {owner} has no parameter {name!r}, {nearest(name, sorted(known))}")
        if not isinstance(target, str) or not _REFERENCE.fullmatch(target):
            raise InvalidError(f"bind: {name!r} must be `secret:NAME`, the name of a stored secret")


def _targets(operation: Operation, bind: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Parameter and name of its secret; what is bound for one operation comes last and wins."""
    flat = {name: target for name, target in bind.items() if isinstance(target, str)}
    for known in (*operation.former_names, operation.name):
        own = bind.get(known)
        flat |= dict(own) if isinstance(own, Mapping) else {}
    for name, target in flat.items():
        if match := _REFERENCE.fullmatch(target):
            yield name, match[1]


def _bound(operation: Operation, secrets: Mapping[str, str]) -> Operation:
    bound = tuple(
        BoundParameter(each, secrets[each.name]) for each in operation.parameters if each.name in secrets
    )
    if not bound:
        return operation
    kept = tuple(each for each in operation.parameters if each.name not in secrets)
    return msgspec.structs.replace(operation, parameters=kept, bound=bound)


def _typed(parameter: Parameter, value: str) -> Json:
    if type_name(parameter.schema) not in ("integer", "number"):
        return value
    with suppress(ValueError):
        number = json.loads(value)
        if type(number) in (int, float) and is_in_range(number):
            return number
    raise HostError("ApiError", f"the secret bound to {parameter.name!r} is not a number")


def encode(operation: Operation, arguments: Mapping[str, Json]) -> OutgoingRequest:
    """The request of a call. Raises HostError, a ValidationError, for a value that cannot be sent in its place."""
    places: dict[str, list[tuple[Parameter, Json]]] = {}
    for parameter in operation.parameters:
        if parameter.name in arguments:
            places.setdefault(parameter.place, []).append((parameter, arguments[parameter.name]))
    path = operation.path
    for parameter, value in places.get("path", ()):
        path = path.replace("{" + parameter.wire_name + "}", _segment(parameter, value))
    query = "&".join(_query(places))
    if path != operation.path and _climbs(path):  # several arguments may form one segment
        raise HostError("ValidationError", f"the arguments make {path!r}, which cannot be an address")
    headers = {parameter.wire_name: _header(parameter, value) for parameter, value in places.get("header", ())}
    if operation.answers.accept:
        headers["Accept"] = operation.answers.accept
    if cookies := [each for parameter, value in places.get("cookie", ()) for each in _cookies(parameter, value)]:
        headers["Cookie"] = "; ".join(cookies)
    content, content_type = _body(operation, {each.wire_name: value for each, value in places.get("body", ())})
    if content_type:
        headers["Content-Type"] = content_type
    mark = "&" if "?" in path else "?"  # some documents put a part of the query into the path
    return OutgoingRequest(f"{path}{mark}{query}" if query else path, headers, content)


def _query(places: Mapping[str, list[tuple[Parameter, Json]]]) -> Iterable[str]:
    if pairs := [pair for parameter, value in places.get("query", ()) for pair in _pairs(parameter, value)]:
        yield urlencode(pairs, quote_via=quote)
    for parameter, value in places.get("querystring", ()):
        if isinstance(value, dict) and parameter.style == "form":
            yield _form(value)
        elif value is not None:
            yield quote(",".join(_parts(parameter, value)), safe="")


def _pairs(parameter: Parameter, value: Json) -> Iterable[tuple[str, str]]:
    """The name-value pairs of a query or a cookie. Nulls are left out."""
    name, style = parameter.wire_name, parameter.style
    if value is None:
        return []
    if style == "json":
        return [(name, msgspec.json.encode(value).decode())]
    if style == "deepObject":
        return _nested(name, value)
    if isinstance(value, dict):
        if parameter.explode:
            return [(key, _text(each)) for key, each in value.items() if each is not None]
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list):
        if parameter.explode and style in ("form", "cookie"):
            return [(name, _text(each)) for each in value]
        return [(name, _joined(parameter, value))]
    return [(name, _text(value))]


def _joined(parameter: Parameter, values: Iterable[Json]) -> str:
    return _SEPARATORS.get(parameter.style, ",").join(map(_text, values))


def _nested(name: str, value: Json) -> Iterable[tuple[str, str]]:
    """`name[key]` for the fields of an object, `name[0]` for the items of a list; nulls are left out."""
    if isinstance(value, dict):
        parts = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list):
        parts = [(str(index), each) for index, each in enumerate(value)]
    else:
        return [] if value is None else [(name, _text(value))]
    return [pair for key, each in parts for pair in _nested(f"{name}[{key}]", each)]


def _cookies(parameter: Parameter, value: Json) -> Iterator[str]:
    """As they are in style `cookie`, unless that would end them."""
    for name, each in _pairs(parameter, value):
        is_plain = parameter.style == "cookie" and _COOKIE.fullmatch(each)
        yield f"{quote(name, safe='')}={each if is_plain else quote(each, safe='')}"


def _segment(parameter: Parameter, value: Json) -> str:
    """A path segment that cannot change the rest of the path (RFC 6570, sections 3.2.2, 3.2.5 and 3.2.7)."""
    parts = ["=".join(quote(each, safe="") for each in part) for part in _named_parts(parameter, value)]
    mark, name = _MARKS.get(parameter.style, ""), quote(parameter.wire_name, safe="")
    if parameter.style == "matrix" and parameter.explode and isinstance(value, list):
        parts = [f"{name}={each}" for each in parts]
    elif parameter.style == "matrix" and not (parameter.explode and isinstance(value, dict)):
        parts = [f"{name}={each}" if (each := ",".join(parts)) else name]
    joint = mark if mark and parameter.explode else ","
    text = mark + joint.join(parts)
    if text == mark or _climbs(unquote(text)):
        raise HostError("ValidationError", f"argument {parameter.name!r}: {text!r} cannot be part of an address")
    return text


def _climbs(text: str) -> bool:
    """Whether a segment is . or .., also for a server that decodes the text again."""
    for _ in range(_DECODED):
        if any(segment in (".", "..") for segment in _SLASH.split(text)):
            return True
        text = unquote(text)
    return False


def _header(parameter: Parameter, value: Json) -> str:
    if is_reserved(parameter.wire_name) or not is_header_name(parameter.wire_name):
        raise HostError("ValidationError", f"argument {parameter.name!r}: this header cannot be set")
    text = ",".join(_parts(parameter, value))
    if not _HEADER.fullmatch(text):
        raise HostError(
            "ValidationError", f"argument {parameter.name!r} is sent as a header, which takes printable ASCII only"
        )
    return text


def _parts(parameter: Parameter, value: Json) -> list[str]:
    """The parts that style `simple` joins with commas."""
    return ["=".join(each) for each in _named_parts(parameter, value)]


def _named_parts(parameter: Parameter, value: Json) -> list[tuple[str, ...]]:
    """As `_parts`, each a value or, of an object, a name and its value."""
    if parameter.style == "json":
        return [(msgspec.json.encode(value).decode(),)]
    if isinstance(value, list):
        return [(_text(each),) for each in value]
    if isinstance(value, dict):
        if parameter.explode:
            return [(key, _text(each)) for key, each in value.items()]
        return [(_text(part),) for pair in value.items() for part in pair]
    return [(_text(value),)]


def _text(value: Json) -> str:
    """Scalars as in JSON, strings without quotes, null as nothing; nested values as JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()


def _body(operation: Operation, fields: Mapping[str, Json]) -> tuple[bytes | None, str]:
    if not fields and not any(each.required and each.is_object for each in operation.offered_bodies):
        return None, ""
    body = _fitting_body(operation, fields)
    media_type = body.media_type
    kind = bare(media_type)
    value = fields if body.is_object else fields["body"]
    declared = {each.wire_name: each for each in (body.fields if body.is_object else body.parts)}
    if is_declared_json(kind):
        return msgspec.json.encode(value), media_type
    if isinstance(value, bytes):
        return value, fitting(listed_types(media_type), value) or "application/octet-stream"
    if isinstance(value, list) and is_json_lines(kind):
        mark = b"\x1e" if "seq" in kind else b""
        return b"".join(mark + msgspec.json.encode(each) + b"\n" for each in value), media_type
    if isinstance(value, Mapping) and kind == "multipart/form-data":
        return _multipart(media_type, declared, value)
    if isinstance(value, Mapping) and is_form(kind):
        return _form(value, declared).encode(), media_type
    content = _text(value).encode()
    media_type = fitting(listed_types(media_type), content, is_text=True) or "application/octet-stream"
    has_charset = "charset" in media_type or is_binary_media(bare(media_type))
    return content, media_type if has_charset else f"{media_type}; charset=utf-8"


def _fitting_body(operation: Operation, fields: Mapping[str, Json]) -> Body:
    """The first that takes these fields; files rather in parts. Raises HostError, a TypeError, if none does."""
    offered = operation.offered_bodies
    found = [body for body in offered if len(offered) == 1 or _fits(body, fields)]
    if found:
        in_parts = (body for body in found if bare(body.media_type) == "multipart/form-data")
        return next(in_parts, found[0]) if any(map(holds_bytes, fields.values())) else found[0]
    needs = (
        (each.media_type, ", ".join(one.wire_name for one in each.fields if one.required)) for each in offered
    )
    told = ", ".join(f"{kind} (requires {names})" if names else kind for kind, names in needs)
    raise HostError("TypeError", f"{operation.name}(): no body takes {', '.join(fields)} together, of {told}")


def _fits(body: Body, given: Mapping[str, Json]) -> bool:
    fields = {each.wire_name: each for each in body.fields}
    if bare(body.media_type) == JSON_PATCH and not isinstance(given.get("body"), list):
        return False
    return (
        given.keys() <= fields.keys()
        and all(name in given for name, field in fields.items() if field.required)
        and all(body_takes_bytes(body, fields[name], value) for name, value in given.items() if holds_bytes(value))
    )


def _form(fields: Mapping[str, Json], declared: Mapping[str, Parameter] = MappingProxyType({})) -> str:
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in fields.items():
        field = declared.get(name)
        if field is not None and field.style == "deepObject":
            pairs += _nested(name, value)
        else:
            pairs += [(name, _plain(each)) for each in _many(field, value)]
    return urlencode(pairs)


def _plain(value: Json) -> str | bytes:
    """As text, or the bytes of a file."""
    if is_file(value):
        return value if isinstance(value, bytes) else value[1]
    return _text(value)


def _field_parts(
    name: str, field: Parameter | None, value: Json
) -> Iterator[tuple[str | None, str | bytes, str | None]]:
    """File name, content and type: None leaves it to the end of the name. Text is a file without a name of its own
    if the document declares it binary.
    """
    kinds = listed_types(field.part_type) if field and field.part_type else []
    file_name = name if field and all(map(is_binary, part_schemas(field.schema))) else None
    for each in _many(field, value):
        if is_file(each):
            content: bytes = each if isinstance(each, bytes) else each[1]
            own_name, own_type = (name, file_type(each)) if isinstance(each, bytes) else (each[0], None)
            yield own_name, content, fitting(kinds, content) if kinds else own_type
        else:
            only = kinds[0] if len(kinds) == 1 and "*" not in kinds[0] else None
            structure = "application/json" if isinstance(each, Mapping) else None
            yield file_name, _text(each), only or structure


def _many(field: Parameter | None, value: Json) -> list[Json]:
    """What a field of a form is sent as: null is left out, and the items of a list are joined if so declared."""
    if value is None:
        return []
    if not isinstance(value, list) or is_file(value):
        return [value]
    if field is None or field.explode or any(map(is_file, value)):
        return value
    return [_joined(field, value)]


def _multipart(
    media_type: str, declared: Mapping[str, Parameter], fields: Mapping[str, Json]
) -> tuple[bytes, str]:
    """Fields as parts of a form; those the document declares binary are sent as files."""
    parts = [
        (name, each) for name, value in fields.items() for each in _field_parts(name, declared.get(name), value)
    ]
    form = httpx.Request("POST", "http://form", files=parts)
    return form.read(), form.headers.get("Content-Type", media_type)  # a form of no parts has none
