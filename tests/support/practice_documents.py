"""OpenAPI documents of different shapes, for the tests of practice: maps by id, records in records, wrapped
bodies, cursors, embedded links, replacements only, objects in records, Swagger 2.
"""

from typing import Any

from app.base.values import Json
from tests.support.double_documents import answer, body, document, errors, path, query

_TEXT: dict[str, Json] = {"type": "string"}
_WHOLE: dict[str, Json] = {"type": "integer"}
_FLAG: dict[str, Json] = {"type": "boolean"}
_DAY: dict[str, Json] = {"type": "string", "format": "date"}


def _object(required: list[str] | None = None, **fields: Json) -> dict[str, Json]:
    return {"type": "object", "required": required or [], "properties": fields}


def _listed(item: Json) -> dict[str, Json]:
    return {"type": "array", "items": item}


def _operations(name: str, **made: Any) -> dict[str, Json]:
    """The operations of a path: answer, body and parameters of each method."""
    found: dict[str, Json] = {}
    for method, (what, returned, *more) in made.items():
        sent, parameters = [*more, None, None][:2]
        status = "204" if returned is None else "201" if method == "post" and sent is not None else "200"
        found[method] = {
            "operationId": what,
            "summary": f"{what} of {name}",
            "responses": {status: answer(returned), **errors("400", "404", "422")},
            **({"requestBody": body(sent)} if sent is not None else {}),
            **({"parameters": parameters} if parameters else {}),
        }
    return found


_SENSOR = _object(
    ["label"],
    label={"type": "string", "minLength": 1, "maxLength": 60},
    feed_url={"type": "string", "format": "uri"},
    muted=_FLAG,
    paused={"type": "boolean", "description": "Paused"},
    interval={"type": "integer", "minimum": 1, "maximum": 600, "description": "The interval of the sensor"},
    mode={"type": "string", "enum": ["poll", "push", "batch"]},
    labels=_listed(_TEXT),
)
_SETTINGS = _object(
    [], language={"type": "string", "enum": ["en", "de", "fr"]}, digest=_FLAG, receivers=_listed(_TEXT), site=_TEXT
)
SENSORS = document(
    {
        "/sensors": _operations(
            "sensors",
            get=(
                "sensors_list",
                {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Sensor"}},
            ),
            post=("sensors_add", _object(["id"], id=_TEXT), _SENSOR),
        ),
        "/sensors/{sensor}": {
            "parameters": [path("sensor")],
            **_operations(
                "a sensor",
                get=("sensors_show", {"$ref": "#/components/schemas/Sensor"}),
                patch=("sensors_edit", {"$ref": "#/components/schemas/Sensor"}, {**_SENSOR, "required": []}),
                delete=("sensors_drop", None),
            ),
        },
        "/settings": _operations(
            "the settings", get=("settings_show", _SETTINGS), put=("settings_put", _SETTINGS, _SETTINGS)
        ),
        "/health": _operations(
            "h", get=("health", _object(["version"], version=_TEXT, queue_size=_WHOLE, db=_FLAG))
        ),
        "/sensors/{sensor}/pause": _operations("s", post=("sensors_pause", None, None, [path("sensor")])),
        "/sensors/{sensor}/resume": _operations("s", post=("sensors_resume", None, None, [path("sensor")])),
    },
    {"Sensor": {**_SENSOR, "properties": {"id": _TEXT, **_SENSOR["properties"]}}},
)
"""A map by id without pages, flags, lists of texts, addresses, two actions that are opposite, and settings."""

_ADDRESS = _object(
    ["street", "city"], street=_TEXT, city=_TEXT, region={"type": "string", "enum": ["north", "south", "east"]}
)
_ALERTS = _object(
    muted=_FLAG, every_hours={"type": "integer", "minimum": 1, "maximum": 48}, receivers=_listed(_TEXT)
)
_CLIENT = _object(["name", "address"], name=_TEXT, address=_ADDRESS, alerts=_ALERTS)
_CLIENT_SHOWN = _object(
    ["id", "name", "address"],
    id=_WHOLE,
    **_CLIENT["properties"],
    visits=_object(["count"], count={**_WHOLE, "minimum": 0}, last_seen=_DAY),
)
_OFFICE = _object(["address"], address=_ADDRESS, hours=_object(opens=_WHOLE, public=_FLAG))
CLIENTS = document(
    {
        "/clients": _operations(
            "clients",
            get=("listClients", _listed(_CLIENT_SHOWN)),
            post=("createClient", _CLIENT_SHOWN, _CLIENT),
        ),
        "/clients/{clientId}": {
            "parameters": [path("clientId", type="integer")],
            **_operations(
                "a client",
                get=("getClient", _CLIENT_SHOWN),
                patch=("updateClient", _CLIENT_SHOWN, {**_CLIENT, "required": []}),
                delete=("deleteClient", None),
            ),
        },
        "/office": _operations(
            "the office", get=("getOffice", _OFFICE), patch=("setOffice", _OFFICE, {**_OFFICE, "required": []})
        ),
        "/branches": _operations(
            "branches",
            get=("listBranches", _listed(_object(["id"], id=_WHOLE, **_OFFICE["properties"]))),
            post=("createBranch", _object(["id"], id=_WHOLE, **_OFFICE["properties"]), _OFFICE),
        ),
        "/branches/{branchId}": {
            "parameters": [path("branchId", type="integer")],
            **_operations(
                "a branch",
                get=("getBranch", _object(["id"], id=_WHOLE, **_OFFICE["properties"])),
                put=("putBranch", _object(["id"], id=_WHOLE, **_OFFICE["properties"]), _OFFICE),
            ),
        },
    }
)
"""Objects in records: needed and not, read only, of settings, and of records that are replaced as a whole."""

_STEP = _object(
    ["name"],
    name=_TEXT,
    estimate=_WHOLE,
    done=_FLAG,
    due_date={**_DAY, "description": "Due date of the step"},
    level={"type": "string", "enum": ["low", "normal", "high"]},
)
_STEP_SHOWN = _object(["id", "name"], id=_WHOLE, **_STEP["properties"])
_PROJECT = _object(["title"], title=_TEXT, archived=_FLAG, budget=_WHOLE)
_PROJECT_SHOWN = _object(["id", "title"], id=_WHOLE, **_PROJECT["properties"])
_SLICE = [query("offset", type="integer", default=0), query("limit", type="integer", default=3, maximum=20)]
STEPS = document(
    {
        "/v1/projects": _operations(
            "projects",
            get=("listProjects", _object(projects=_listed(_PROJECT_SHOWN), total=_WHOLE), None, _SLICE),
            post=("createProject", _object(project=_PROJECT_SHOWN), _object(["project"], project=_PROJECT)),
        ),
        "/v1/projects/{project_id}": {
            "parameters": [path("project_id", type="integer")],
            **_operations(
                "a project",
                get=("getProject", _object(project=_PROJECT_SHOWN)),
                put=("putProject", _object(project=_PROJECT_SHOWN), _object(["project"], project=_PROJECT)),
                delete=("deleteProject", None),
            ),
        },
        "/v1/projects/{project_id}/steps": {
            "parameters": [path("project_id", type="integer")],
            **_operations(
                "steps",
                get=("listSteps", _object(steps=_listed(_STEP_SHOWN), total=_WHOLE), None, _SLICE),
                post=("createStep", _object(step=_STEP_SHOWN), _object(["step"], step=_STEP)),
            ),
        },
        "/v1/projects/{project_id}/steps/{step_id}": {
            "parameters": [path("project_id", type="integer"), path("step_id", type="integer")],
            **_operations(
                "a step",
                get=("getStep", _object(step=_STEP_SHOWN)),
                put=("putStep", _object(step=_STEP_SHOWN), _object(["step"], step=_STEP)),
                delete=("deleteStep", None),
            ),
        },
    }
)
"""Records in records, wrapped, replaced as a whole, on pages by offset."""

_WRITER = _object(["slug", "name"], slug=_TEXT, name=_TEXT)
_ARTICLE = _object(
    ["slug", "headline"],
    slug=_TEXT,
    headline=_TEXT,
    body={"type": "string", "nullable": True},
    words=_WHOLE,
    rating={"type": "number", "minimum": 0, "maximum": 5},
    state={"type": "string", "enum": ["draft", "published", "retired"]},
    publishedAt={"type": "string", "format": "date-time", "nullable": True},
    createdAt={"type": "string", "format": "date-time"},
    writer=_WRITER,
)
_ARTICLE_SENT = _object(["headline"], headline=_TEXT, body=_TEXT, words=_WHOLE)
_CURSOR = [query("cursor"), query("page_size", type="integer", default=4, maximum=50)]
PRESS = document(
    {
        "/articles": _operations(
            "articles",
            get=(
                "fetchArticles",
                _object(["data"], data=_listed(_ARTICLE), next_cursor={"type": "string", "nullable": True}),
                None,
                [*_CURSOR, query("state", enum=["draft", "published", "retired"])],
            ),
            post=("addArticle", _object(data=_ARTICLE), _ARTICLE_SENT),
        ),
        "/articles/{slug}": {
            "parameters": [path("slug")],
            **_operations(
                "an article",
                get=("readArticle", _object(data=_ARTICLE)),
                patch=("editArticle", _object(data=_ARTICLE), {**_ARTICLE_SENT, "required": []}),
                delete=("removeArticle", None),
            ),
        },
        "/articles/{slug}/publish": _operations(
            "one", put=("publishArticle", _object(data=_ARTICLE), None, [path("slug")])
        ),
        "/articles/{slug}/retire": _operations(
            "one", put=("retireArticle", _object(data=_ARTICLE), None, [path("slug")])
        ),
        "/writers": _operations("writers", get=("fetchWriters", _object(["data"], data=_listed(_WRITER)))),
        "/writers/{slug}": {
            "parameters": [path("slug")],
            **_operations("a writer", get=("readWriter", _object(data=_WRITER))),
        },
    },
    components={"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    security=[{"bearer": []}],
)
"""Cursors, envelopes, keys that are texts, an embedded link, and actions that move a state."""

_PRODUCT = _object(
    ["name", "price"],
    name=_TEXT,
    price={"type": "number", "minimum": 0.5, "maximum": 900},
    stock=_WHOLE,
    shelf_id=_WHOLE,
    on_sale=_FLAG,
)
_PRODUCT_SHOWN = {**_PRODUCT, "properties": {"id": {**_WHOLE, "readOnly": True}, **_PRODUCT["properties"]}}
_SHELF_SHOWN = _object(["id", "name"], id=_WHOLE, name=_TEXT)
_PAGE = [
    {"name": "page", "in": "query", "type": "integer"},
    {"name": "size", "in": "query", "type": "integer", "default": 5},
]


def _two(name: str, returned: Json = None, parameters: list[Json] | None = None) -> dict[str, Json]:
    schema = {} if returned is None else {"schema": returned}
    return {
        "operationId": name,
        "parameters": parameters or [],
        "responses": {"200": {"description": "", **schema}, "404": {"description": ""}},
    }


_KEY: dict[str, Json] = {"name": "id", "in": "path", "required": True, "type": "integer"}
_SENT: dict[str, Json] = {"name": "product", "in": "body", "required": True, "schema": _PRODUCT}
STORE: dict[str, Json] = {
    "swagger": "2.0",
    "info": {"title": "Store", "version": "1"},
    "host": "store.test",
    "basePath": "/rest",
    "schemes": ["https"],
    "produces": ["application/json"],
    "consumes": ["application/json"],
    "securityDefinitions": {"key": {"type": "apiKey", "in": "query", "name": "token"}},
    "security": [{"key": []}],
    "paths": {
        "/products": {
            "get": _two(
                "findProducts",
                _listed(_PRODUCT_SHOWN),
                [*_PAGE, {"name": "shelf_id", "in": "query", "type": "integer"}],
            ),
            "post": _two("insertProduct", _PRODUCT_SHOWN, [_SENT]),
        },
        "/products/{id}": {
            "get": _two("getProduct", _PRODUCT_SHOWN, [_KEY]),
            "put": _two("saveProduct", _PRODUCT_SHOWN, [_KEY, _SENT]),
            "delete": _two("removeProduct", None, [_KEY]),
        },
        "/shelves": {"get": _two("findShelves", _listed(_SHELF_SHOWN))},
        "/shelves/{id}": {"get": _two("getShelf", _SHELF_SHOWN, [_KEY])},
    },
}
"""Swagger 2: a key in the query, pages without a sign of the next one, a link by number, replacements only."""

STATUS = document({"/status": _operations("status", get=("getStatus", _object(up=_FLAG)))})
"""Nothing that can be practised."""

_FREE: dict[str, Json] = {"type": "object", "additionalProperties": {}}
_GRANTS = _object(read=_listed(_TEXT), write=_listed(_TEXT))


def _free(name: str, above: list[str], key: str = "id") -> dict[str, Any]:
    """The paths of records that may have any fields, in an envelope beside grants."""
    parameters, one = [path(each) for each in above], _object(data=_FREE, grants=_GRANTS)
    many = _object(data=_listed(_FREE))
    place = "".join(f"/{each.removesuffix('_id')}s/{{{each}}}" for each in above) + f"/{name}s"
    written = _operations(
        name,
        get=(f"get_{name}", one),
        put=(f"put_{name}", one, one),
        patch=(f"patch_{name}", one, one),
        delete=(f"delete_{name}", one),
    )
    written["put"]["responses"]["201"] = answer(one)
    found: dict[str, Any] = {
        place: {"parameters": parameters}
        | _operations(name, get=(f"get_{name}s", many), post=(f"create_{name}", one, one)),
        f"{place}/{{{key}}}": {"parameters": [*parameters, path(key)], **written},
    }
    return found


VAULT = document(
    {
        **_free("room", []),
        **_free("shelf_set", ["room_id"]),
        **_free("record", ["room_id", "shelf_set_id"]),
    }
)
"""Records whose fields no schema has: what they are depends on the set, in a room, that the path names."""


def _made(count: int, **fields: Any) -> list[Json]:
    """Rows with an id and the time of the last change; a list of values is gone through again and again."""
    rows: list[Json] = []
    for number in range(count):
        chosen = {
            name: each[number % len(each)] if isinstance(each, list) else each(number)
            for name, each in fields.items()
        }
        rows.append({"id": f"r-{number:04x}", "last_modified": 1795985881233 + number, **chosen})
    return rows


def _titles(number: int) -> str:
    return f"A title of its own, the {number}th"


_ARTICLES = _made(
    12,
    title=_titles,
    status=["draft", "published", "archived"],
    words=lambda number: 120 + 37 * number,
    featured=[True, False, False],
    published_on=lambda number: f"2026-03-{number + 1:02}" if number % 4 else None,
    editor_id=lambda number: f"r-{number % 4:04x}",
)
_EDITORS = _made(4, name=lambda number: f"Editor {number}", active=[True, False])
_WINES = _made(8, label=_titles, color=["red", "white"], price=lambda number: 8.5 + number, stock=[3, 0, 12])
_SETS = [{"id": each, "last_modified": 1795985881233} for each in ("articles", "editors")]
VAULT_SAMPLES: dict[str, Json] = {
    "get_rooms": {"data": [{"id": each, "last_modified": 17959858812} for each in ("blog", "archive", "cellar")]},
    "get_shelf_sets": {"data": [*_SETS, {"id": "wines", "last_modified": 1795985881233}]},
    "get_records?room_id=blog&shelf_set_id=articles": {"data": _ARTICLES},
    "get_record?room_id=blog&shelf_set_id=articles": {"data": _ARTICLES[0], "grants": {"write": ["someone"]}},
    "get_records?room_id=blog&shelf_set_id=editors": {"data": _EDITORS},
    "get_records?room_id=archive&shelf_set_id=articles": {"data": _ARTICLES[4:9]},
    "get_records?room_id=cellar&shelf_set_id=wines": {"data": _WINES},
}
LOCKER = document(
    {
        "/items/{collection}": {
            "parameters": [path("collection")],
            **_operations(
                "items",
                get=("readItems", _object(data=_listed({"type": "object"})), None, _SLICE),
                post=("createItem", _object(data={"type": "object"}), {"type": "object"}),
            ),
        },
        "/items/{collection}/{id}": {
            "parameters": [path("collection"), path("id")],
            **_operations(
                "an item",
                get=("readItem", _object(data={"type": "object"})),
                patch=("updateItem", _object(data={"type": "object"}), {"type": "object"}),
                delete=("deleteItem", None),
            ),
        },
    }
)
"""The same with the kind of the records at the end of the path, and a body without fields."""


def _numbered(rows: list[Json]) -> list[Json]:
    return [{**row, "id": number} for number, row in enumerate(rows, 1)]


LOCKER_SAMPLES: dict[str, Json] = {
    "read_items?collection=articles": {"data": _numbered(_ARTICLES)},
    "read_items?collection=wines": {"data": _numbered(_WINES)},
}
