"""A small desk API on a real socket: it answers by a table, keeps who called what, and can ask for a pause."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from app.base.values import Json
from tests.support.double_documents import answer, body, document, path, query
from tests.support.http_handlers import AnyMethodHandler, serving_handler

_TEXT: dict[str, Json] = {"type": "string"}
_CARD: dict[str, Json] = {
    "type": "object",
    "required": ["id", "title"],
    "properties": {
        "id": {"type": "integer"},
        "title": _TEXT,
        "state": _TEXT,
        "paused": {"type": "boolean"},
        "owner": _TEXT,
    },
}
_LIST = {
    "type": "object",
    "properties": {"cards": {"type": "array", "items": _CARD}, "total": {"type": "integer"}},
}
_LIMIT = query("limit", type="integer")
_ID = path("id", type="integer")
TOKEN = "desk-token-4711"


def desk_document(server: str) -> dict[str, Json]:
    cards = {
        "get": {"operationId": "cards/list", "parameters": [_LIMIT], "responses": {"200": answer(_LIST)}},
        "post": {"operationId": "cards/create", "requestBody": body(_CARD), "responses": {"201": answer(_CARD)}},
    }  # fmt: skip
    card = {
        "get": {"operationId": "cards/get", "parameters": [_ID], "responses": {"200": answer(_CARD)}},
        "delete": {"operationId": "cards/delete", "parameters": [_ID], "responses": {"204": answer()}},
    }
    merged = {"post": {"operationId": "cards/merge", "parameters": [_ID], "responses": {"200": answer(_CARD)}}}
    notes = {"get": {"operationId": "notes/list", "responses": {"200": answer()}}}
    paths = {"/cards": cards, "/cards/{id}": card, "/cards/{id}/merge": merged, "/notes": notes}
    return {**document(paths), "servers": [{"url": server}]}


class Desk:
    """Its `calls` are method and path, `pauses` how many calls are asked to wait for a second."""

    def __init__(self) -> None:
        rows = [
            {"id": at, "title": f"Ring Anna {at}", "state": "open" if at % 2 else "closed"} for at in range(1, 7)
        ]
        self.answers: dict[str, Json] = {
            "/cards": {"cards": rows, "total": 6},
            **{f"/cards/{each['id']}": {**each, "owner": "Anna"} for each in rows},
            "/notes": [{"id": "n1", "text": "of Anna"}, {"id": "n2", "text": "of Bob"}],
        }
        self.calls: list[str] = []
        self.tokens: set[str] = set()
        self.pauses, self.status = 0, 200

    def answer(self, method: str, place: str, token: str) -> tuple[int, Json]:
        self.calls.append(f"{method} {place}")
        self.tokens.add(token)
        if self.pauses:
            self.pauses -= 1
            return 429, {"message": "wait"}
        found = self.answers.get(place)
        return (404, {"message": "no such thing"}) if found is None else (self.status, found)


@contextmanager
def serving_desk(desk: Desk) -> Iterator[str]:
    """Its address."""

    class Handler(AnyMethodHandler):
        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            place = self.path.partition("?")[0]
            status, value = desk.answer(self.command, place, self.headers.get("authorization", ""))
            content = json.dumps(value).encode()
            self.send_response(status)
            if status == 429:
                self.send_header("retry-after", "1")
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serving_handler(Handler) as url:
        yield url
