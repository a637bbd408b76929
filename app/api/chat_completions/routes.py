"""Routes that clients of OpenAI's API know: chat completions, and models. Each chat is a task."""

from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody

from app.api.chat_completions.answering import ChatStream, ChatTask
from app.api.chat_completions.chat_request import ChatRequest
from app.api.chat_completions.completion import ChatCompletion
from app.api.chat_completions.openai_errors import OPENAI_HANDLERS, TASK_HEADER, TASK_STATE, openai_errors
from app.api.submission import submit_all
from app.api.tasks import IdempotencyKey
from app.db import tables
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.projects import store as projects
from app.projects.authorization import find_project
from app.projects.settings import Limits
from app.web.access import Caller, Db
from app.web.sse import event_stream

_ANSWER = ResponseSpec(
    ChatCompletion,
    description="With `stream`, server-sent events instead: chunks of type `chat.completion.chunk`, of which "
    "`reasoning_content` shows what the agent does and `content` is the answer, and `[DONE]`. The header "
    f"`{TASK_HEADER}` names the task",
    generate_examples=False,
)


class ChatModel(msgspec.Struct, frozen=True, kw_only=True):
    """A project, as a model that can be named in a chat."""

    id: str
    created: int
    object: str = "model"
    owned_by: str = "sage-server"

    @classmethod
    def of(cls, project: tables.Project) -> "ChatModel":
        return cls(id=project.name, created=int(project.created_at.timestamp()))


class ChatModels(msgspec.Struct, frozen=True, kw_only=True):
    """All that the key may name."""

    data: list[ChatModel]
    object: str = "list"


class ChatController(Controller):
    path = "/chat/completions"
    tags = ("Chat",)
    opt = {"scope": "tasks"}  # noqa: RUF012
    exception_handlers = OPENAI_HANDLERS

    @post(
        status_code=200,
        summary="Complete a chat",
        responses={200: _ANSWER, **openai_errors(400, 401, 403, 404, 409, 413, 422, 429)},
    )
    async def complete(  # noqa: PLR0913 - each is a part of the request or of the application
        self,
        data: JSONBody[ChatRequest],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
        chat_wait_seconds: NamedDependency[float],
        request: Request[Any, Any, Any],
        idempotency_key: IdempotencyKey = None,
    ) -> Response[Any]:
        """Has the agent of the project `model` carry out the last message, and answers when the task ends, at the
        latest after `SAGE_CHAT_WAIT_SECONDS`. A task without an answer is status 422, with a `code`: `failed`,
        `nothing_done`, `in_doubt`, `cancelled`, `crashed`, `waiting_for_approval` or `not_ended`. A client that
        hangs up cancels its task, unless the request had an `Idempotency-Key`.
        """
        [task] = await submit_all(session, access, data.submission(), idempotency_key, limits)
        if idempotency_key is None:
            request.state[TASK_STATE] = task.id  # now: an error may hide that the commit has succeeded
        await session.commit()
        chat = ChatTask(
            sessions,
            listener,
            access,
            task,
            model=data.model,
            seconds=chat_wait_seconds,
            kept=idempotency_key is not None,
        )
        if data.stream:
            stream = ChatStream(chat, usage=data.includes_usage)
            response = await event_stream(listener, task.id, access, stream.read, chat.hang_up)
        else:
            answer = await chat.completion(request)
            response = Response(answer, status_code=HTTPStatus.OK if answer else HTTPStatus.NO_CONTENT)
        response.headers[TASK_HEADER] = str(task.id)
        return response


class ChatModelController(Controller):
    path = "/models"
    tags = ("Chat",)
    opt = {"scope": "tasks"}  # noqa: RUF012
    exception_handlers = OPENAI_HANDLERS

    @get(summary="List the models of chats", responses=openai_errors(400, 401, 403))
    async def index(self, session: Db, access: Caller) -> ChatModels:
        """The projects that the key may submit tasks to, by name."""
        found = [each for each in await projects.list_all(session) if access.sees(each.id)]
        return ChatModels(data=list(map(ChatModel.of, found)))

    @get("/{project:str}", summary="Show a model of chats", responses=openai_errors(400, 401, 403, 404))
    async def show(self, project: FromPath[str], session: Db, access: Caller) -> ChatModel:
        return ChatModel.of(await find_project(session, access, project))
