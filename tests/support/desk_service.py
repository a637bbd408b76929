"""A small help desk over HTTP, whose data, paging and failures tests choose, and agents that use it or cannot."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from tests.support.listening_app import listening_app
from tests.support.scripted_engine import Script, block

RIGHT = {
    "How many agents are there": "len(apis.desk.list_agents())",
    "What is the team of the agent": "{each['name']: each['team'] for each in apis.desk.list_agents()}['Bob']",
    "What is the plan of the account": "apis.desk.show_account()['plan']",
    "How many notes of the ticket with the id 12": "len(apis.desk.list_notes(ticket_id=12))",
    "What is the subject of the ticket with the id 12": "apis.desk.show_ticket(ticket_id=12)['subject']",
}
"""Code for each question about the desk as it is at first."""


def tickets() -> list[dict[str, Any]]:
    return [
        {"id": 11, "subject": "Broken lamp", "priority": "low", "replies": 2},
        {"id": 12, "subject": "No heating", "priority": "high", "replies": 9},
        {"id": 13, "subject": "Lost key", "priority": "low", "replies": 1},
    ]


@dataclass
class Desk:
    """The service. `calls` are the paths of its requests, the document's not among them."""

    tickets: list[dict[str, Any]] = field(default_factory=tickets)
    agents: list[dict[str, Any]] = field(
        default_factory=lambda: [{"name": "Ann", "team": "North"}, {"name": "Bob", "team": "South"}]
    )
    account: dict[str, Any] = field(default_factory=lambda: {"plan": "pro"})
    page_size: int = 0  # 0: all at once
    token: str = ""  # that calls need; "": none
    fails_after: int = 1_000_000  # calls
    failure: int = 500  # the status after that
    version: str = "1"
    calls: list[str] = field(default_factory=list)
    written: int = 0
    url: str = ""

    def document(self) -> dict[str, Any]:
        paths = {
            "/tickets": {
                "get": operation("list_tickets", *(["page"] if self.page_size else [])),
                "post": operation("add_ticket"),
            },
            "/tickets/{ticket_id}": {"get": operation("show_ticket", "ticket_id")},
            "/tickets/{ticket_id}/notes": {"get": operation("list_notes", "ticket_id")},
            "/agents": {"get": operation("list_agents")},
            "/account": {"get": operation("show_account")},
        }
        info = {"title": "Desk", "version": self.version}
        document: dict[str, Any] = {
            "openapi": "3.1.0",
            "info": info,
            "servers": [{"url": self.url}],
            "paths": paths,
        }
        if self.token:
            document["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
            document["security"] = [{"key": []}]
        return document

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = {name: value[0] for name, value in parse_qs(scope["query_string"].decode()).items()}
        status, value = self._answer(scope["method"], scope["path"], query, headers.get("authorization", ""))
        body = json.dumps(value).encode()
        kind = (b"content-type", b"application/json")
        await send({"type": "http.response.start", "status": status, "headers": [kind]})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, method: str, path: str, query: dict[str, str], sent: str) -> tuple[int, Any]:
        if path == "/openapi.json":
            return 200, self.document()
        self.calls.append(path)
        if self.token and sent != f"Bearer {self.token}":
            return 401, {"message": "who are you?"}
        if len(self.calls) > self.fails_after:
            return self.failure, {"message": "the desk is closed"}
        if method == "POST":
            self.written += 1
            return 201, {}
        return self._read(path.strip("/").split("/"), query)

    def _read(self, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
        found = {"tickets": self._page(query), "agents": self.agents, "account": self.account}
        if len(parts) == 1:
            return (200, found[parts[0]]) if parts[0] in found else (404, {"message": "no such thing"})
        ticket = next((each for each in self.tickets if str(each["id"]) == parts[1]), None)
        if ticket is None:
            return 404, {"message": "no such ticket"}
        return 200, ticket if len(parts) == 2 else [{"id": 1, "text": "called"}, {"id": 2, "text": "waits"}]

    def _page(self, query: dict[str, str]) -> Any:
        if not self.page_size:
            return self.tickets
        first = (int(query.get("page", 1)) - 1) * self.page_size
        return {"items": self.tickets[first : first + self.page_size], "total": len(self.tickets)}


def operation(name: str, *parameters: str) -> dict[str, Any]:
    listed = [
        {
            "name": each,
            "in": "path" if each == "ticket_id" else "query",
            "required": each == "ticket_id",
            "schema": {"type": "integer"},
        }
        for each in parameters
    ]
    return {"operationId": name, "parameters": listed, "responses": {"200": {"description": ""}}}


@asynccontextmanager
async def served(desk: Desk) -> AsyncIterator[Desk]:
    async with listening_app(desk, lifespan="off") as desk.url:
        yield desk


def able(prompt: str, _: int) -> str:
    """Answers each question of the desk by what the API says."""
    code = next((code for asked, code in RIGHT.items() if asked in prompt), "'it was not foreseen'")
    return block(f"apis.supervisor.complete_task(answer={code})")


def unable(_prompt: str, _: int) -> str:
    """Calls nothing, and makes something up."""
    return block("apis.supervisor.complete_task(answer='7')")


def saying(code: str) -> Script:
    """Runs this code, whatever is asked."""
    return lambda _prompt, _turns: block(code)
