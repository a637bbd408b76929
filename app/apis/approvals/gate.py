"""Holds back the calls that a person has to approve first, and shows their arguments to the person who decides.

What an API's answer, or the agent, called a secret may be what the call is about: it is shown, with a remark
that says where it comes from. Secrets of the project and of the task are shown by their length and origin.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from app.apis.catalog import Operation
from app.base.secrets import SecretValues, is_telling
from app.base.values import Call, Json
from app.projects.settings import ApprovalRules

_MOST = 100_000  # characters that a person can be shown
_REMARKS = 20
_NOT_COMPARED = "more was called a secret than can be compared with these arguments"
_MAX_REQUESTS = 3  # at one place of the code, which calls with other values each time it runs again


class ShownCall(msgspec.Struct, frozen=True):
    """`remarks` name the arguments that hold what was returned as a secret; `failure` is why only masked
    arguments can be shown.
    """

    arguments: dict[str, Json]
    remarks: list[str] = []
    failure: str | None = None


def shown_call(arguments: Mapping[str, Json], secrets: SecretValues) -> ShownCall:
    """An argument of a telling name is a secret as a whole: its API says so."""
    shown = dict(arguments)
    for text, origin in secrets.own.items():
        search = SecretValues(mask=_label(text, origin))
        search.add(text)
        shown = {name: search.mask_value(each) for name, each in shown.items()}
    remarks = []
    for name, value in arguments.items():
        if is_telling(name):
            shown[name] = _hidden(value, secrets)
            continue
        written = _text(value)
        found = {origin: text for text, origin in secrets.told.items() if _text(text)[1:-1] in written}
        remarks += [f"{name} holds what was {origin} as a secret" for origin in found]
    return ShownCall(shown, remarks[:_REMARKS] + ([_NOT_COMPARED] if secrets.cut else []))


def _hidden(value: Json, secrets: SecretValues) -> Json:
    if isinstance(value, list):
        return [_hidden(each, secrets) for each in value]
    if isinstance(value, dict):
        return {name: _hidden(each, secrets) for name, each in value.items()}
    if value is None or isinstance(value, bool):
        return value
    text = str(value)
    return _label(text, secrets.own.get(text) or secrets.told.get(text) or "of the agent's code")


def _label(text: str, origin: str) -> str:
    return f"[{len(text)} characters {origin}]"


def _text(value: Json) -> str:
    return json.dumps(value)


class ApprovalRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for a person, and why. `arguments` are the exact ones, which `digest` identifies;
    `changes` are the calls that the task has made before and that may have changed something, by `seq`.
    """

    seq: int
    turn: int
    api: str
    arguments: dict[str, Json]
    digest: str
    timeout_seconds: float
    because: str = ""
    changes: tuple[int, ...] = ()


class ApprovalDecision(msgspec.Struct, frozen=True, kw_only=True):
    """How a request was decided. It applies to the call with the same `seq` and `digest` only."""

    seq: int
    digest: str
    state: Literal["approved", "refused", "expired"]
    reason: str = ""

    def refusal(self, api: str) -> str | None:
        """What the agent reads; None if the call was approved."""
        if self.state == "approved":
            return None
        if self.state == "expired":
            return f"{api} was not called: nobody approved it in time"
        return f"{api} was refused by a person" + (f": {self.reason}" if self.reason else "")


class ApprovalWantedError(Exception):
    """The call may go out only once a person has approved it: the rollout has to wait."""

    def __init__(self, request: ApprovalRequest) -> None:
        super().__init__(f"{request.api} waits for a person's approval")
        self.request = request


class UnstableCallError(Exception):
    """The code calls with other values each time it runs again, so that no decision applies to it."""


class ApprovalGate:
    """The rules and the decisions that apply to one rollout, and what it has changed so far.

    A decision holds for the exact call that a person decided on, also if the rules have changed since. `is_proven`
    says whether a task that was scored as a success has called an "app.operation".
    """

    def __init__(
        self,
        rules: ApprovalRules,
        decisions: Sequence[ApprovalDecision] = (),
        is_proven: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        self._rules = rules
        self._decisions = decisions
        self._is_proven = is_proven
        self._changes: dict[int, str] = {}  # "app.operation" of what may have changed something, by `seq`

    def note(self, call: Call) -> None:
        """Count a call that is not read-only, once for each `seq`, unless it certainly changed nothing."""
        if not _changed_nothing(call):
            self._changes[call.seq] = call.api

    @property
    def has_changes(self) -> bool:
        """Whether a call may have changed something."""
        return bool(self._changes)

    def wants(self, operation: Operation) -> bool:
        """Whether the rules have each call of the operation wait for a person."""
        return self._rules.wants(operation.api, safe=operation.safe, **_known(operation))

    async def refusal(self, operation: Operation, call: Call, url: str) -> str | None:
        """Why the call must not be sent; None if it was approved or needs no approval.

        Raises ApprovalWantedError if it is undecided, UnstableCallError if asking again makes no sense.
        """
        here = [each for each in self._decisions if each.seq == call.seq]
        because = await self._because(operation)
        if not here and because is None:
            return None
        digest = _digest(operation, call, url)
        for each in here:
            if each.digest == digest:
                return each.refusal(call.api)
        if because is None:
            return None
        if not self.wants(operation) and (ended := self._no_more_changes()) is not None:
            return f"{call.api} was not called: {ended}"
        if len(here) >= _MAX_REQUESTS:
            raise UnstableCallError(
                f"each time its code ran again, {call.api} was called with other values than those decided on"
            )
        if len(_text(call.arguments)) > _MOST:
            return (
                f"{call.api} was not called: its arguments have more than {_MOST:,} characters, which cannot be "
                "shown to the person who approves"
            )
        request = ApprovalRequest(
            seq=call.seq,
            turn=call.turn,
            api=call.api,
            arguments=call.arguments,
            digest=digest,
            timeout_seconds=self._rules.timeout_seconds,
            because=because,
            changes=tuple(sorted(self._changes)),
        )
        raise ApprovalWantedError(request)

    async def _because(self, operation: Operation) -> str | None:
        """Why a call of the operation waits for a person; None if it does not."""
        reasons = []
        if not operation.safe and self._is_full:
            made = Counter(self._unapproved.values())
            each = ", ".join(f"{api} ({count})" if count > 1 else api for api, count in made.items())
            reasons.append(f"{_changes(len(self._unapproved))} made: {each}")
        if self.wants(operation):
            reasons.append("the rules of the project, or the API's document, ask for it")
        elif await self._is_first(operation):
            reasons.append("no task that was scored as a success has called it yet")
        return "; ".join(reasons) or None

    async def _is_first(self, operation: Operation) -> bool:
        if operation.safe or operation.api in self._changes.values():
            return False
        if self._rules.mode(operation.api, **_known(operation)) != "first":
            return False
        return self._is_proven is None or not await self._is_proven(operation.api)

    @property
    def _unapproved(self) -> dict[int, str]:
        """The changes from the last call on that a person approved: whoever did so saw those before it."""
        approved = max((each.seq for each in self._decisions if each.state == "approved"), default=0)
        return {seq: api for seq, api in self._changes.items() if seq >= approved}

    @property
    def _is_full(self) -> bool:
        return 0 < self._rules.max_writes <= len(self._unapproved)

    def _no_more_changes(self) -> str | None:
        """Why no change follows in this task: a person who was asked for more did not approve it."""
        if not self._is_full:
            return None
        last = max(self._unapproved)
        ended = next((each for each in self._decisions if each.seq > last and each.state != "approved"), None)
        if ended is None:
            return None
        who = "a person refused more" if ended.state == "refused" else "nobody approved more in time"
        return f"{_changes(len(self._unapproved))} made, and {who}"


def _known(operation: Operation) -> dict[str, Any]:
    """What rules go by, besides its name."""
    former = [f"{operation.app}.{name}" for name in operation.former_names]
    return {"risk": operation.risk, "former": former, "own": operation.approval}


def _changes(count: int) -> str:
    return "1 change was" if count == 1 else f"{count} changes were"


def _changed_nothing(call: Call) -> bool:
    """Whether a call has certainly changed nothing."""
    is_refused = call.error is not None and call.response is not None and 400 <= call.response.status < 500
    return not call.sent or is_refused


def _digest(operation: Operation, call: Call, url: str) -> str:
    """Identify a call with its exact arguments and target."""
    exact = json.dumps([operation.method, url, call.api, call.arguments], sort_keys=True)
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()
