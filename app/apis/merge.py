"""Merges `allOf` into one schema, whose fields can be shown and passed as arguments."""

from typing import Final

from app.records import Json

_ABOUT: Final = {"description", "title", "default", "deprecated", "readOnly", "writeOnly"}


def merged(schema: dict[str, Json]) -> dict[str, Json]:
    """The schema with its allOf merged in; members that cannot be merged stay in allOf, to be validated.

    >>> merged({"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["a"], "minProperties": 2}]})
    {'type': 'object', 'properties': {'a': {}}, 'required': ['a'], 'minProperties': 2}
    """
    members = schema.get("allOf")
    if not members:
        return schema
    own = {word: value for word, value in schema.items() if word != "allOf"}
    result: dict[str, Json] = {}
    left: list[Json] = []
    for member in [*members, own]:
        if _fits(result, member):
            _take(result, member)
        else:
            _take(result, {word: member[word] for word in ("properties", "required") if word in member})
            left.append({word: value for word, value in member.items() if word not in ("properties", "required")})
    if len(members) > 1 or "properties" in own:
        # each member forbids the fields of the others
        result.pop("additionalProperties", None)
        left = [{word: value for word, value in each.items() if word != "additionalProperties"} for each in left]
    return {**result, "allOf": [each for each in left if each]} if any(left) else result


def _fits(result: dict[str, Json], member: dict[str, Json]) -> bool:
    free = _ABOUT | {"properties", "required", "additionalProperties"}
    return all(result[word] == member[word] for word in result.keys() & member.keys() - free)


def _take(result: dict[str, Json], member: dict[str, Json]) -> None:
    for word, value in member.items():
        if word == "properties":
            fields = dict(result.get("properties", {}))
            for name, field in value.items():
                fields[name] = merged({"allOf": [fields[name], field]}) if name in fields else field
            result["properties"] = fields
        elif word == "required":
            result["required"] = list(dict.fromkeys([*result.get("required", []), *value]))
        else:
            result[word] = value
