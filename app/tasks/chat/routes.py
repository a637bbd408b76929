"""Routes that clients of OpenAI's API know: chat completions, and models. Each chat is a task.

It is answered at the task's end, or piece by piece.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
from anyio import CancelScope
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, JSONBody
from litestar.response.sse import ServerSentEventMessage

from app.base.errors import ConflictError, NotFoundError
from app.base.values import Json
from app.db import results, tables
from app.db.database import TRANSIENT, Sessions, reading
from app.db.notify import NotificationListener
from app.db.tables import TASK_END_STATES, TaskState
from app.projects import store as projects
from app.projects.authorization import find_project
from app.projects.settings import Limits
from app.tasks import store as tasks
from app.tasks.chat.completion import (
    OPENAI_HANDLERS,
    TASK_HEADER,
    TASK_STATE,
    AnswerMessage,
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    ChatUsage,
    Choice,
    ChunkChoice,
    Delta,
    Finish,
    Outcome,
    TaskEndError,
    head_of,
    no_outcome,
    openai_errors,
    outcome_of,
    progress,
)
from app.tasks.events import TaskReader
from app.tasks.submission import submit_request
from app.web.access import Access, Caller, Db
from app.web.fields import IdempotencyKey
from app.web.problem import AnyRequest
from app.web.sse import EventBatch, event_stream

_DONE = ServerSentEventMessage(data="[DONE]")


class ChatTask:
    """The task of one chat, and how long its answer is waited for. `model` is as the client named it.

    Unless `kept`, the task is cancelled when its client hangs up: nobody else would get the answer.
    """

    def __init__(
        self,
        sessions: Sessions,
        listener: NotificationListener,
        access: Access,
        task: tables.Task,
        *,
        model: str,
        seconds: float,
        kept: bool,
    ) -> None:
        self.listener, self.task, self.model = listener, task, model
        self._sessions, self._access, self._kept = sessions, access, kept
        self._seconds, self._until = seconds, time.monotonic() + seconds

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() >= self._until

    async def completion(self, request: AnyRequest) -> ChatCompletion | None:
        """Once the task has ended. None if the client has hung up.

        Raises TaskEndError if there is no answer, and also once the task waits for a person: nobody would see it.
        If the server stops, the task is cancelled as if the client had hung up, and the client is told.
        """
        answering = asyncio.create_task(self._answer())
        hanging_up = asyncio.create_task(_hung_up(request))
        left = max(0.0, self._until - time.monotonic())
        try:
            await asyncio.wait([answering, hanging_up], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if hanging_up.done() and not answering.done():
                await self.hang_up()
                return None
            return answering.result() if answering.done() else await self._completion(await self._row())
        except asyncio.CancelledError:
            if self._kept:
                raise
            with CancelScope(shield=True):
                await self.hang_up()
            stops = f"the server stops, which cancels the task: GET /v1/tasks/{self.task.id} shows what it did"
            raise TaskEndError(stops, "cancelled", self.task.id) from None
        finally:
            answering.cancel()
            hanging_up.cancel()

    async def stopped(self) -> TaskEndError:
        """Why the answer is waited for no longer."""
        return no_outcome(await self._row(), self._seconds)

    async def outcome(self, turns: Sequence[str]) -> Outcome:
        """Of the task that has ended. Raises TaskEndError."""
        return outcome_of(await self._row(), turns)

    async def hang_up(self) -> None:
        """The client is gone."""
        if self._kept:
            return
        with suppress(ConflictError, NotFoundError):  # it has ended, or was erased
            async with self._sessions.begin() as session:
                await tasks.request_cancel(session, self.task.id, self._access.project_id)

    def reader(self) -> TaskReader:
        return TaskReader(self._sessions, self.task.id, 0)

    async def _answer(self) -> ChatCompletion:
        """Once the task has ended, or waits for a person. Raises TaskEndError."""
        with self.listener.subscribe(self.task.id) as news:
            while True:
                news.clear()  # before reading: what happens meanwhile wakes it again
                with suppress(*TRANSIENT):  # the listener wakes it, too, when it loses or has a connection
                    row = await self._row()
                    if row.state in TASK_END_STATES or row.state is TaskState.WAITING:
                        return await self._completion(row)
                await self.listener.wait(news)

    async def _completion(self, row: tables.Task) -> ChatCompletion:
        if row.state not in TASK_END_STATES:
            raise no_outcome(row, self._seconds)
        async with reading(self._sessions) as session:
            turns = await results.of_kind(session, row.id, "turn")
        found = outcome_of(row, [each["text"] for each in turns])
        choice = Choice(message=AnswerMessage(content=found.text), finish_reason=found.finish)
        return ChatCompletion(**head_of(row, self.model), choices=[choice], usage=ChatUsage.of(turns))

    async def _row(self) -> tables.Task:
        """Raises TaskEndError if it was erased."""
        try:
            async with reading(self._sessions) as session:
                return await tasks.get(session, self.task.id)
        except NotFoundError:
            raise TaskEndError("the task was erased", "failed", self.task.id) from None


class ChatStream:
    """Reads what is new of a task as chunks. The last line is `[DONE]`, also after an error."""

    def __init__(self, chat: ChatTask, *, usage: bool) -> None:
        self._chat, self._usage = chat, usage
        self._reader = chat.reader()
        self._turns: list[Mapping[str, Json]] = []
        self._unsent = [self._chunk(Delta(role="assistant", content=""))]

    async def read(self) -> EventBatch:
        """Nothing new while the database does not answer, unless the answer is overdue."""
        try:
            ended = await self._read()
        except TRANSIENT:
            if self._chat.is_overdue:
                raise
            ended = False
        messages, self._unsent = self._unsent, []
        return EventBatch(messages, ended=ended)

    async def _read(self) -> bool:
        """Whether nothing more will come. If it raises an error, the next call goes on where it stopped."""
        rows, ended = await self._reader.read()
        for row in rows:
            if row.kind == "turn":
                self._turns.append(row.data)
            if text := progress(row.kind, row.data):
                self._unsent.append(self._chunk(Delta(reasoning_content=text)))
        if ended or self._chat.is_overdue:
            self._unsent += await self._end(ended)
            return True
        return False

    async def _end(self, ended: bool) -> list[ServerSentEventMessage]:
        try:
            if not ended:
                raise await self._chat.stopped()
            found = await self._chat.outcome([str(each["text"]) for each in self._turns])
        except TaskEndError as error:
            return [ServerSentEventMessage(data=msgspec.json.encode(error.body)), _DONE]
        last = [self._chunk(Delta(content=found.text)), self._chunk(Delta(), found.finish)]
        if self._usage:
            last.append(self._message(choices=[], usage=ChatUsage.of(self._turns)))
        return [*last, _DONE]

    def _chunk(self, delta: Delta, finish: Finish | None = None) -> ServerSentEventMessage:
        return self._message(choices=[ChunkChoice(delta=delta, finish_reason=finish)], usage=None)

    def _message(self, choices: list[ChunkChoice], usage: ChatUsage | None) -> ServerSentEventMessage:
        chunk = ChatChunk(**head_of(self._chat.task, self._chat.model), choices=choices, usage=usage)
        return ServerSentEventMessage(data=msgspec.json.encode(chunk))


async def _hung_up(request: AnyRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


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
        request: AnyRequest,
        idempotency_key: IdempotencyKey = None,
    ) -> Response[Any]:
        """Has the agent of the project `model` carry out the last message, and answers when the task ends, at the
        latest after `SAGE_CHAT_WAIT_SECONDS`. A task without an answer is status 422, with a `code`: `failed`,
        `nothing_done`, `in_doubt`, `cancelled`, `crashed`, `waiting_for_approval` or `not_ended`. A client that
        hangs up cancels its task, unless the request had an `Idempotency-Key`.
        """
        [task] = await submit_request(session, access, data.task(), idempotency_key, limits)
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
