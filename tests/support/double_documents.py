"""Small OpenAPI documents of different shapes, for the tests of doubles."""

from typing import Any

from app.base.values import Json

_TEXT: dict[str, Json] = {"type": "string"}
_ERROR: dict[str, Json] = {
    "type": "object",
    "required": ["code", "message"],
    "properties": {"code": {"type": "integer"}, "message": _TEXT, "field": _TEXT},
}


def answer(schema: Json = None, **more: Json) -> dict[str, Json]:
    content = {} if schema is None else {"content": {"application/json": {"schema": schema}}}
    return {"description": "", **content, **more}


def errors(*statuses: str) -> dict[str, Json]:
    return {each: answer({"$ref": "#/components/schemas/Error"}) for each in statuses}


def body(schema: Json) -> dict[str, Json]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def query(name: str, **schema: Json) -> dict[str, Json]:
    return {"name": name, "in": "query", "schema": {"type": "string", **schema}}


def path(name: str, **schema: Json) -> dict[str, Json]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", **schema}}


def document(paths: dict[str, Any], schemas: dict[str, Any] | None = None, **more: Json) -> dict[str, Json]:
    components = {"schemas": {"Error": _ERROR, **(schemas or {})}, **more.pop("components", {})}
    return {
        "openapi": "3.0.3",
        "info": {"title": "Desk", "version": "1"},
        "servers": [{"url": "https://desk.test/api"}],
        "paths": paths,
        "components": components,
        **more,
    }


_NOTE = {"$ref": "#/components/schemas/Note"}
_FOLDER = {"$ref": "#/components/schemas/Folder"}
_NEW_NOTE: dict[str, Json] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["title", "folder_id"],
    "properties": {
        "title": {"type": "string", "minLength": 1, "maxLength": 80},
        "folder_id": {"type": "integer"},
        "text": _TEXT,
        "pinned": {"type": "boolean"},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
        "labels": {"type": "array", "items": _TEXT, "maxItems": 5},
    },
}

DESK = document(
    {
        "/folders": {
            "get": {
                "operationId": "listFolders",
                "responses": {"200": answer({"type": "array", "items": _FOLDER}), **errors("401")},
            },
            "post": {
                "operationId": "createFolder",
                "requestBody": body(
                    {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string", "minLength": 1}},
                    }
                ),
                "responses": {"201": answer(_FOLDER), **errors("400", "401", "409", "422")},
            },
        },
        "/folders/{folder_id}": {
            "parameters": [path("folder_id", type="integer")],
            "get": {
                "operationId": "getFolder",
                "responses": {"200": answer(_FOLDER), **errors("401", "404", "422")},
            },
            "delete": {
                "operationId": "deleteFolder",
                "responses": {"204": answer(), **errors("401", "404", "422")},
            },
        },
        "/folders/{folder_id}/notes": {
            "get": {
                "operationId": "listNotesOfFolder",
                "parameters": [path("folder_id", type="integer")],
                "responses": {
                    "200": answer({"type": "array", "items": _NOTE}),
                    **errors("401", "404", "422"),
                },
            }
        },
        "/notes": {
            "get": {
                "operationId": "listNotes",
                "parameters": [
                    query("state", enum=["open", "closed"]),
                    query("q"),
                    query("created_after", format="date-time"),
                    query("pinned", type="boolean"),
                    query("min_priority", type="integer"),
                    query("sort"),
                    query("order", enum=["asc", "desc"]),
                    query("page", type="integer", minimum=1, default=1),
                    query("per_page", type="integer", minimum=1, maximum=50, default=10),
                ],
                "responses": {
                    "200": answer(
                        {
                            "type": "object",
                            "required": ["items", "total"],
                            "properties": {
                                "items": {"type": "array", "items": _NOTE},
                                "total": {"type": "integer"},
                                "page": {"type": "integer"},
                                "next": {"type": "string", "format": "uri", "nullable": True},
                            },
                        }
                    ),
                    **errors("401", "422", "429"),
                },
            },
            "post": {
                "operationId": "createNote",
                "requestBody": body(_NEW_NOTE),
                "responses": {"201": answer(_NOTE), **errors("400", "401", "422")},
            },
        },
        "/notes/{id}": {
            "parameters": [path("id", type="string", format="uuid")],
            "get": {"operationId": "getNote", "responses": {"200": answer(_NOTE), **errors("401", "404")}},
            "put": {
                "operationId": "replaceNote",
                "requestBody": body(_NEW_NOTE),
                "responses": {"200": answer(_NOTE), **errors("400", "401", "404", "422")},
            },
            "patch": {
                "operationId": "updateNote",
                "requestBody": body({**_NEW_NOTE, "required": []}),
                "responses": {"200": answer(_NOTE), **errors("400", "401", "404", "422")},
            },
            "delete": {
                "operationId": "deleteNote",
                "responses": {"204": answer(), **errors("401", "404")},
            },
        },
        "/notes/{id}/close": {
            "post": {
                "operationId": "closeNote",
                "parameters": [path("id", type="string", format="uuid")],
                "responses": {"200": answer(_NOTE), **errors("401", "404")},
            }
        },
        "/notes/{id}/sync": {
            "post": {
                "operationId": "syncNote",
                "parameters": [path("id", type="string", format="uuid")],
                "responses": {"200": answer(_NOTE), **errors("401", "404")},
            }
        },
        "/settings": {
            "get": {
                "operationId": "getSettings",
                "responses": {"200": answer({"$ref": "#/components/schemas/Settings"}), **errors("401")},
            },
            "patch": {
                "operationId": "updateSettings",
                "requestBody": body({"$ref": "#/components/schemas/Settings"}),
                "responses": {
                    "200": answer({"$ref": "#/components/schemas/Settings"}),
                    **errors("400", "401", "422"),
                },
            },
        },
    },
    {
        "Folder": {
            "type": "object",
            "required": ["id", "name"],
            "properties": {"id": {"type": "integer", "readOnly": True}, "name": _TEXT},
        },
        "Note": {
            "type": "object",
            "required": ["id", "title", "folder_id", "state", "created_at"],
            "properties": {
                "id": {"type": "string", "format": "uuid", "readOnly": True},
                "title": _TEXT,
                "folder_id": {"type": "integer"},
                "text": {"type": "string", "nullable": True},
                "state": {"type": "string", "enum": ["open", "closed"]},
                "pinned": {"type": "boolean"},
                "priority": {"type": "integer", "minimum": 1, "maximum": 5},
                "labels": {"type": "array", "items": _TEXT, "maxItems": 5},
                "closed_at": {"type": "string", "format": "date-time", "nullable": True},
                "created_at": {"type": "string", "format": "date-time", "readOnly": True},
                "updated_at": {"type": "string", "format": "date-time", "readOnly": True},
            },
        },
        "Settings": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "language": {"type": "string", "enum": ["en", "de"]},
                "digest": {"type": "boolean"},
            },
        },
    },
    components={"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    security=[{"key": []}],
)
"""Notes in folders, behind a key: every role once, and one action of which nobody knows what it does."""
