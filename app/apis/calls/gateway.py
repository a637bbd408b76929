"""Sends the sandbox's calls to live APIs: validated, limited, authenticated and recorded."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import httpx
import msgspec

from app.apis.approvals.gate import ApprovalGate, UnstableCallError
from app.apis.calls.arguments import bind
from app.apis.calls.http_call import REDIRECTS, GoingOut, HttpCaller
from app.apis.calls.live_calls import (
    AuthenticatedCaller,
    Caller,
    LiveCalls,
    Patience,
    RequestSecrets,
)
from app.apis.calls.recorded_calls import CallJournal, InDoubtError, KeptBytes, RecordedCalls
from app.apis.calls.skill_guard import SkillGuard
from app.apis.catalog import COMPLETE_TASK, App, Catalog, Operation, with_builtins
from app.apis.credentials.credential import Credentials, SecretStore
from app.apis.documents.protocols import OutgoingRequest
from app.apis.look_ups import LookUps, checked_answer, unknown_app, unknown_operation
from app.apis.pagination import next_page
from app.apis.servers import address
from app.apis.values import recordable, recorded_hash
from app.base.errors import HostError
from app.base.secrets import SecretValues
from app.base.telemetry import Attributes, Phase, phase, span
from app.base.values import NOT_OPEN, Call, Json
from app.sandbox.protocol import Answer, EnteredSkill, RefusalError

_NO_VARIABLES: Final[Mapping[str, str]] = {}
_NOTHING_DONE = (
    "no API was called, and no answer given, so the task goes on. Make the calls that it asks for, and give what "
    "it asks for as the answer. If there is nothing to do, complete it again in the next turn"
)
_GO_ON = (
    "It would be refused again, so do not try it again or by another way. Do what else the task asks for; if that "
    "is not all, complete it with status='fail' and say in the answer what was not done"
)
_STOPPED = "TimeoutError: the code was stopped before the answer came: whether the call arrived is not known"
_NOT_SENT = "TimeoutError: the code was stopped before the call was sent"


class ExplorationEndedError(Exception):
    """A task that explores, or may only read, and has changed nothing yet wants to make a call that is not open to
    it, which may change something or needs a person's approval.
    """

    def __init__(self, api: str) -> None:
        super().__init__(f"{api} is not open to this task")
        self.api = api


class Gateway:
    """Fulfils `HostCall` for one rollout. Not for concurrent use: a session has one call in flight.

    `instruction`, that of the task, says what to show of a long document, `variables` fill the servers' URLs,
    `read_only` permits only safe operations that need no approval, `is_open` says which others do not end the
    rollout, or fail once it has changed something, `approvals` decides which calls wait for a person,
    `may_end_idle` whether the first turn may complete the task without a call or an answer, and `max_calls`
    limits the calls sent. Safe calls are repeated after a `Retry-After` that ends within `patience` seconds.
    With a `recording` none is sent, and one that it cannot answer is in doubt. Look-ups and the completion of
    the task are answered here: they are neither counted nor recorded. `secrets` collects what must not be
    stored in the clear. `callers` are the senders of protocols that are not plain HTTP.
    """

    def __init__(  # noqa: PLR0913 - the only way out, with many rules
        self,
        catalog: Catalog,
        client: httpx.AsyncClient,
        *,
        instruction: str = "",
        variables: Mapping[str, str] = _NO_VARIABLES,
        credentials: Credentials | None = None,
        journal: CallJournal | None = None,
        approvals: ApprovalGate | None = None,
        read_only: bool = False,
        is_open: Callable[[Operation], bool] | None = None,
        may_end_idle: bool = False,
        max_calls: int = 200,
        timeout: float = 30,
        patience: float = 0,
        secrets: SecretValues | None = None,
        store: SecretStore | None = None,
        recording: RecordedCalls | None = None,
        callers: Mapping[str, Caller] | None = None,
    ) -> None:
        self.catalog = with_builtins(catalog)  # the project's apps, api_docs and supervisor
        self.look_ups = LookUps(self.catalog, instruction)
        self._variables = variables
        self._journal = journal
        self._approvals = approvals
        self._read_only = read_only
        self._is_open = is_open
        self._may_end_idle = may_end_idle
        self._max_calls = max_calls
        self._recording = recording
        self._kept = KeptBytes()
        self.made = 0  # calls so far, and the `seq` of the next
        self._calls: list[Call] = []
        self._replayed: deque[Call | None] = deque()  # None: no call may follow
        self.turn = 0
        self.completed = False
        self.answer: Json = None
        self.status = ""  # the success or failure that the agent reported with its completion
        self.call_limit_hit = False
        self.in_doubt: str | None = None  # why calls are no longer answered
        self.would_write: str | None = None  # the first "app.operation" refused because it is not read-only
        self.guard = SkillGuard({})  # of the skills that the rollout is offered
        self.secrets = SecretValues() if secrets is None else secrets
        self.secrets.note("", variables)
        self._request_secrets = RequestSecrets(variables, credentials, store, self.secrets)
        caller = AuthenticatedCaller(HttpCaller(client, timeout=timeout), self._request_secrets, callers)
        self._live = LiveCalls(caller, self._request_secrets, Patience(patience), self._kept)

    def names(self) -> dict[str, list[str]]:
        """What the sandbox's code may call of each app, the built-in operations included."""
        return self.catalog.callables()

    @property
    def unreachable(self) -> str | None:
        """Why a server could not be connected to, if one could not."""
        return self._live.unreachable

    def resume(self, calls: Sequence[Call]) -> None:
        """Go on after these calls, which earlier processes made for the rollout."""
        self.made = max((call.seq for call in calls), default=-1) + 1
        for call in calls:
            if self._approvals is not None and not self.catalog.is_read(call.api):
                self._approvals.note(call)

    def replay(self, calls: Sequence[Call], *, closed: bool = False) -> None:
        """Answer the next calls with the results of these, in order, without sending them.

        A call that differs from the recorded one, or if `closed` one more, is in doubt: the code went another way.
        """
        self._replayed = deque([*calls, None] if closed else calls)

    def take_calls(self) -> tuple[Call, ...]:
        """The calls since the last time."""
        taken, self._calls = tuple(self._calls), []
        return taken

    async def __call__(
        self, api: str, args: list[Json], kwargs: dict[str, Json], *, skill: EnteredSkill | None = None
    ) -> Json:
        """The value that `answer` has."""
        return (await self.answer_call(api, args, kwargs, skill=skill)).value

    async def answer_call(
        self, api: str, args: list[Json], kwargs: dict[str, Json], *, skill: EnteredSkill | None = None
    ) -> Answer:
        """Call "app.operation". Raises HostError: TypeError, ValidationError, ApiError, CallLimit, and so on.

        Raises ApprovalWantedError, which ends the session, for a call that nobody has decided on yet, and
        ExplorationEndedError, which does so too, for one that is not open to a task which has changed nothing.
        """
        app, operation = await self._find(api)
        arguments = bind(operation, args, kwargs)
        shown = recordable(arguments)
        if skill is not None:
            self.guard.check(skill, operation, shown)
        if not operation.method:
            return Answer(await self._built_in(operation, arguments))
        self._check_doubt()
        self.secrets.note(api, shown)
        done = await self._recorded(app, operation, arguments)
        if done is None:
            with phase(Phase.CALLS), span(f"execute_tool {api}", _attributes(operation, self.made)) as opened:
                done = await self._make(app, operation, arguments, skill.name if skill else None)
                if done.error is not None:
                    opened.fail(done.error.partition(":")[0])
        self.secrets.note_call(done)
        self.made = max(self.made, done.seq + 1)
        self._note_change(operation, done)
        if skill is not None:
            skill.calls.append(done.seq)
            self.guard.returned(skill, done)
            done = msgspec.structs.replace(done, skill=skill.name)
        self._calls.append(done)
        if done.error is not None:
            raise self._error(done, operation)
        return await self._answer(done, app, operation, arguments)

    async def _answer(self, done: Call, app: App, operation: Operation, arguments: dict[str, Json]) -> Answer:
        """The answer that was recorded, with its bytes."""
        value, response = done.result, done.response
        if (digest := recorded_hash(value)) is not None:
            value = self._kept.find(digest)
            if value is None and operation.safe and self._recording is None:
                request, url = await self._prepare(app, operation, arguments)
                again = await self._live.ask(app, operation, url, request)
                value = again.value if recorded_hash(recordable(again.value)) == digest else None
            if value is None:
                raise self._doubtful(f"the bytes that {operation.api} returned were not kept")
        if response is None:
            return Answer(value)
        url = self._address(app, operation) + operation.path
        following = next_page(operation, done.arguments, value, response.headers, url)
        return Answer(value, response.status, response.headers, following, response.remark)

    def _error(self, done: Call, operation: Operation) -> HostError:
        """What a failed call raises. No other follows a change of which nobody knows whether it was made."""
        kind, _, text = str(done.error).partition(": ")
        if done.response is None:
            return HostError(kind, text)
        status = done.response.status  # a success or a redirect did not refuse the call, though it failed
        if not operation.safe and (200 <= status < 300 or status in REDIRECTS):
            self.in_doubt = f"{operation.api}: {text}"
        return RefusalError(text, done.response)

    async def _recorded(self, app: App, operation: Operation, arguments: dict[str, Json]) -> Call | None:
        if not self._replayed:
            return None
        call, api = self._replayed[0], operation.api
        if call is None or (call.api, call.arguments) != (api, recordable(arguments)):
            await self._prepare(app, operation, arguments)  # one that cannot be sent was not recorded either
            self._authorize(operation)
            other = f"instead of {call.api}, or with other values" if call else "after all its calls"
            raise self._doubtful(f"run again, the code called {api} {other}")
        return self._replayed.popleft()

    async def _make(self, app: App, operation: Operation, arguments: dict[str, Json], skill: str | None) -> Call:
        request, url = await self._prepare(app, operation, arguments)
        self._authorize(operation)
        shown = recordable(arguments)
        call = Call(seq=self.made, turn=self.turn, api=operation.api, arguments=shown, skill=skill)
        refusal = await self._refusal(operation, call, url)
        self.made += 1
        if refusal is not None:
            return await self._refuse(call, refusal)
        if self._recording is not None:
            answered = self._recording.answer(call)
            if answered is None:
                raise self._doubtful(f"no recorded call answers {call.api} with these values, in this order")
            return answered
        return await self._begin(call, operation.repeatable) or await self._send(call, operation, url, request)

    async def _prepare(
        self, app: App, operation: Operation, arguments: dict[str, Json]
    ) -> tuple[OutgoingRequest, str]:
        """The request and its URL. Raises HostError for a call that cannot be sent."""
        request = await self._request_secrets.encode(app, operation, arguments)
        if self._waits(operation):
            request = msgspec.structs.replace(request, approved=True)
        return request, self._address(app, operation) + request.target

    async def _find(self, api: str) -> tuple[App, Operation]:
        app_name, _, name = api.partition(".")
        app = self.catalog.apps.get(app_name)
        if app is None:
            raise HostError("AttributeError", await asyncio.to_thread(unknown_app, self.catalog, app_name))
        operation = app.operations.get(name)
        if operation is None:
            raise HostError("AttributeError", await asyncio.to_thread(unknown_operation, app, name))
        return app, operation

    async def _built_in(self, operation: Operation, arguments: dict[str, Json]) -> Json:
        if operation is not COMPLETE_TASK:
            return await self.look_ups.answer(operation, arguments, self.turn)
        self._check_doubt()
        answer = checked_answer(arguments.get("answer"))
        if self.turn == 0 and not (self._calls or self._may_end_idle) and answer is None:
            raise HostError("ValueError", _NOTHING_DONE)
        self.answer = answer
        self.completed = True
        self.status = arguments.get("status", "success")
        return {"message": "the task is complete"}

    def _doubtful(self, reason: str) -> HostError:
        self.in_doubt = reason
        return HostError("InDoubt", reason)

    def _check_doubt(self) -> None:
        """Neither a call nor an answer follows what is in doubt."""
        if self.in_doubt is not None:
            raise HostError("InDoubt", self.in_doubt)

    def _address(self, app: App, operation: Operation) -> str:
        try:
            return address(app, operation.server or app.server, self._variables)
        except ValueError as error:
            raise HostError("ApiError", str(error)) from error

    def _authorize(self, operation: Operation) -> None:
        if self._is_closed(operation) and not (self._approvals is not None and self._approvals.has_changes):
            raise ExplorationEndedError(operation.api)
        if self._read_only and (not operation.safe or self._waits(operation)):
            self.would_write = self.would_write or operation.api
            reason = (
                "needs a person's approval, so it is not called here"
                if operation.safe
                else "changes things, and only reading is allowed here"
            )
            raise HostError("PermissionError", f"{operation.api} {reason}")
        if self.made >= self._max_calls:
            self.call_limit_hit = True
            raise HostError("CallLimit", f"all {self._max_calls} API calls of this task are used up")

    def _is_closed(self, operation: Operation) -> bool:
        if self._is_open is None or self._is_open(operation):
            return False
        return not operation.safe or self._waits(operation)

    def _waits(self, operation: Operation) -> bool:
        """Whether each of its calls waits for a person."""
        return self._approvals is not None and self._approvals.wants(operation)

    def _note_change(self, operation: Operation, call: Call) -> None:
        if self._approvals is not None and not operation.safe:
            self._approvals.note(call)

    async def _refusal(self, operation: Operation, call: Call, url: str) -> str | None:
        """Why the call is not sent; None to send it. Raises ApprovalWantedError."""
        if self._is_closed(operation):
            return f"{operation.api} {NOT_OPEN}{_GO_ON}"
        if self._approvals is None:
            return None
        try:
            return await self._approvals.refusal(operation, call, url)
        except UnstableCallError as error:
            raise self._doubtful(str(error)) from error

    async def _refuse(self, call: Call, refusal: str) -> Call:
        """Record a call that is not sent, so that it is not asked for again when the code is run again."""
        refused = msgspec.structs.replace(call, error=f"PermissionError: {refusal}", sent=False)
        if self._journal is not None:
            await self._journal.begin(call, repeatable=True)
            await self._journal.end(refused)
        return refused

    async def _begin(self, call: Call, repeatable: bool) -> Call | None:
        try:
            return None if self._journal is None else await self._journal.begin(call, repeatable)
        except InDoubtError as doubt:
            self.in_doubt, error = doubt.known, f"InDoubt: {doubt}"
            lost = msgspec.structs.replace(call, api=doubt.api, arguments=doubt.arguments, error=error)
            self._calls.append(lost)
            raise HostError("InDoubt", str(doubt)) from doubt

    async def _send(self, call: Call, operation: Operation, url: str, request: OutgoingRequest) -> Call:
        app, journal = self.catalog.apps[operation.app], self._journal
        going_out = GoingOut(None if journal is None or operation.repeatable else journal.sending)
        try:
            done = await self._live.make(call, app, operation, url, request, None if operation.safe else going_out)
        except BaseException:
            sent = operation.safe or going_out.sent
            stopped = msgspec.structs.replace(call, error=_STOPPED if sent else _NOT_SENT, sent=sent)
            self._note_change(operation, stopped)
            self._calls.append(stopped)  # of a turn that goes on to its end
            if journal is not None:
                await journal.abort()
            raise
        if not operation.safe:
            answered = done.error is None or done.response is not None
            done = msgspec.structs.replace(done, sent=going_out.sent or answered)
        if journal is not None:
            await journal.end(done)
        return done


def _attributes(operation: Operation, seq: int) -> Attributes:
    """Of a call's span, by OpenTelemetry's GenAI semantic conventions. No argument, no result."""
    return {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": operation.api,
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.call.id": str(seq),
        "http.request.method": operation.method.upper(),
    }
