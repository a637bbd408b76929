"""Parts of the OpenAPI documents of generated apps."""

from app.records import Json

STRING: dict[str, Json] = {"type": "string"}
INTEGER: dict[str, Json] = {"type": "integer"}
BOOLEAN: dict[str, Json] = {"type": "boolean"}


def parameter_of(name: str, place: str, schema: Json) -> Json:
    return {"name": name, "in": place, "required": True, "schema": schema}


def optional_of(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def object_of(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def answer_of(schema: Json) -> Json:
    return {"200": {"description": "done", "content": {"application/json": {"schema": schema}}}}
