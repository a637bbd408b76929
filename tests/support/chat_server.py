"""A chat endpoint on a socket, answered by the scripted expert, which reads the `full` profile."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import uuid4

from litestar import Litestar, Request, Response, post
from litestar.params import JSONBody

from app.base.values import Offer
from tests.support.listening_app import listening_app
from tests.support.office_instructions import asked_by
from trainer.environment import Scenario
from trainer.worlds.office.apps import Site
from trainer.worlds.office.expert import ExpertScript
from trainer.worlds.office.scenarios import site_of

MODEL, KEY = "wise-1", "a good key"
_SKILL = re.compile(r"Written for the task: (?P<instruction>.+)\n```python\n(?P<source>.*?)\n```", re.DOTALL)
_NAME = re.compile(r"def (?P<name>\w+)\(")


class ChatServer:
    """Records its requests, and fails as the tests set it to."""

    def __init__(self, scenarios: Sequence[Scenario]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, str]] = []  # status and body of the next answers
        self.pause = 0.0  # before each answer
        self.key = KEY
        self.suffix = ""  # of every answer
        self.finish = "stop"
        self._sites: dict[str, Site] = {
            task.instruction: site_of(each) for each in scenarios for task in each.tasks
        }

    async def answer(self, data: dict[str, Any], key: str) -> Response[Any]:
        self.requests.append(data)
        await asyncio.sleep(self.pause)
        if self.refusals:
            status, body = self.refusals.pop(0)
            return Response(body, status_code=status, media_type="application/json")
        if key != f"Bearer {self.key}":
            return _error(401, "Incorrect API key provided")
        if data["model"] != MODEL:
            return _error(404, f"The model `{data['model']}` does not exist")
        message = {"role": "assistant", "content": self._next_turn(data["messages"]) + self.suffix}
        return Response({"choices": [{"index": 0, "message": message, "finish_reason": self.finish}]})

    def _next_turn(self, messages: list[dict[str, str]]) -> str:
        """Answers from the messages alone, as a model would, but looks up the site by the instruction."""
        assert messages[0]["role"] == "system"
        skills, _, instruction = messages[1]["content"].rpartition("Task: ")
        offers = [_offer(found) for found in _SKILL.finditer(skills)]
        observations = [message["content"] for message in messages[3::2]]
        expert = ExpertScript(self._sites[instruction], *asked_by(instruction), offers, rng=Random(0))
        return [expert.next_turn(observations[:count]) for count in range(len(observations) + 1)][-1]


@asynccontextmanager
async def chat_server(scenarios: Sequence[Scenario]) -> AsyncIterator[tuple[str, ChatServer]]:
    """Serve the endpoint; gives its URL."""
    server = ChatServer(scenarios)

    @post("/v1/chat/completions", status_code=200)
    async def complete(data: JSONBody[dict[str, Any]], request: Request[Any, Any, Any]) -> Response[Any]:
        return await server.answer(data, request.headers.get("authorization", ""))

    app = Litestar([complete], openapi_config=None, logging_config=None)
    async with listening_app(app, lifespan="off") as url:
        yield url, server


def _error(status: int, message: str) -> Response[Any]:
    return Response({"error": {"message": message, "type": "invalid_request_error"}}, status_code=status)


def _offer(found: re.Match[str]) -> Offer:
    name = _NAME.search(found["source"])
    assert name is not None
    return Offer(
        skill_id=uuid4(),
        name=name["name"],
        version=1,
        signature="",
        source=found["source"],
        instruction=found["instruction"],
    )
