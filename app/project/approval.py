"""Approvals of API calls by people: a project's rules, requests and decisions. Pure."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypeAlias

import msgspec

from app.records import Json

Risk: TypeAlias = Literal["none", "low", "medium", "high", "critical"]
"""The levels of the extension `x-risk` of an API document."""

ApprovalMode: TypeAlias = Literal["never", "first", "write", "always", "document"]

OperationPattern: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9_*?]{1,64}\.[A-Za-z0-9_*?]{1,200}(?!\n)$",
        description="`app.operation`; `*` stands for any characters, `?` for one",
    ),
]

_STRICTNESS: Sequence[ApprovalMode] = ("never", "document", "first", "write", "always")
_OF_RISK: dict[Risk, ApprovalMode] = {"medium": "write", "high": "always", "critical": "always"}


class ApprovalRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which calls wait for a person: `always`, `write` (unless the operation is read-only) or `never`.

    `document` follows the operation's `x-risk` in the API document: `high` and `critical` wait always, `medium` as
    `write`, all others never. `first` is `document`, and also lets an operation that may change something wait
    until a task of the project that was scored as a success has called it.
    """

    default: ApprovalMode = "document"
    """Mode of the operations that no pattern matches."""
    operations: Annotated[dict[OperationPattern, ApprovalMode], msgspec.Meta(max_length=1_000)] = {}
    """Modes by `app.operation`, with `*` and `?` as wildcards; the pattern with the most other characters wins."""
    timeout_seconds: Annotated[float, msgspec.Meta(ge=1, le=2_592_000)] = 86_400
    """A call that nobody decided on for this long counts as refused."""
    max_writes: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 10
    """Calls of one task that may change something and that nobody approved; the next one waits. An approved one
    lets as many go out, itself among them. 0: no limit."""

    def wants(
        self,
        api: str,
        *,
        safe: bool,
        risk: Risk | None,
        former: Sequence[str] = (),
        own: ApprovalMode | None = None,
    ) -> bool:
        """Whether each call of an operation waits. `safe` operations are read-only."""
        mode = self.mode(api, risk=risk, former=former, own=own)
        return mode == "always" or (mode == "write" and not safe)

    def mode(
        self,
        api: str,
        *,
        risk: Risk | None,
        former: Sequence[str] = (),
        own: ApprovalMode | None = None,
    ) -> ApprovalMode:
        """The mode of an operation, which is never `document`. `own` is what is set for it alone.

        Rules for one of its `former` names still hold: where they differ from those for its name, the stricter do.
        """
        ruled = [mode for each in former if (mode := self._ruled(each)) is not None]
        named = self._ruled(api) if own is None else max(own, self.operations.get(api, own), key=_STRICTNESS.index)
        ruled += [] if named is None else [named]
        strictest: ApprovalMode = max(ruled, key=_STRICTNESS.index, default=self.default)
        if strictest not in ("document", "first"):
            return strictest
        declared: ApprovalMode = _OF_RISK.get(risk, "never") if risk else "never"
        return declared if strictest == "document" else max(strictest, declared, key=_STRICTNESS.index)

    def _ruled(self, api: str) -> ApprovalMode | None:
        """The mode of the pattern that matches best."""
        matching = [pattern for pattern in self.operations if fnmatchcase(api, pattern)]
        if not matching:
            return None
        closest = max(matching, key=lambda each: (_literal(each), _STRICTNESS.index(self.operations[each])))
        return self.operations[closest]


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


def _literal(pattern: str) -> int:
    return sum(letter not in "*?" for letter in pattern)
