"""Holds back the calls that a person has to approve first."""

import hashlib
import json
from collections.abc import Sequence

from app.apis.catalog import Operation
from app.project.approval import ApprovalDecision, ApprovalRequest, ApprovalRules
from app.records import Call
from app.security.shown_call import unshowable

_MAX_REQUESTS = 3  # at one place of the code, which calls with other values each time it runs again


class ApprovalWantedError(Exception):
    """The call may go out only once a person has approved it: the rollout has to wait."""

    def __init__(self, request: ApprovalRequest) -> None:
        super().__init__(f"{request.api} waits for a person's approval")
        self.request = request


class UnstableCallError(Exception):
    """The code calls with other values each time it runs again, so that no decision applies to it."""


class ApprovalGate:
    """The rules and the decisions that apply to one rollout.

    A decision holds for the exact call that a person decided on, also if the rules have changed since.
    """

    def __init__(self, rules: ApprovalRules, decisions: Sequence[ApprovalDecision] = ()) -> None:
        self._rules = rules
        self._decisions = decisions

    def wants(self, operation: Operation) -> bool:
        """Whether calls of the operation wait for a person."""
        former = [f"{operation.app}.{name}" for name in operation.former_names]
        return self._rules.wants(
            operation.api, safe=operation.safe, risk=operation.risk, former=former, own=operation.approval
        )

    def refusal(self, operation: Operation, call: Call, url: str) -> str | None:
        """Why the call must not be sent; None if it was approved or needs no approval.

        Raises ApprovalWantedError if it is undecided, UnstableCallError if asking again makes no sense.
        """
        here = [each for each in self._decisions if each.seq == call.seq]
        if not here and not self.wants(operation):
            return None
        digest = _digest(operation, call, url)
        for each in here:
            if each.digest == digest:
                return each.refusal(call.api)
        if not self.wants(operation):
            return None
        if len(here) >= _MAX_REQUESTS:
            raise UnstableCallError(
                f"each time its code ran again, {call.api} was called with other values than those decided on"
            )
        if (reason := unshowable(call.arguments)) is not None:
            return f"{call.api} was not called: {reason}"
        request = ApprovalRequest(
            seq=call.seq,
            turn=call.turn,
            api=call.api,
            arguments=call.arguments,
            digest=digest,
            timeout_seconds=self._rules.timeout_seconds,
        )
        raise ApprovalWantedError(request)


def _digest(operation: Operation, call: Call, url: str) -> str:
    """Identify a call with its exact arguments and target."""
    exact = json.dumps([operation.method, url, call.api, call.arguments], sort_keys=True)
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).hexdigest()
