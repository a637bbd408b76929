"""The immutable values that packages exchange, and who or what gave a task its score. No I/O, no torch."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

Json: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, or lists and string-keyed dicts of these."""


class Stop(StrEnum):
    """Why a rollout ended."""

    COMPLETED = "completed"  # the agent called complete_task
    NOTHING_DONE = "nothing_done"  # it did so without an API call or an answer, and with no score above 0
    NO_CODE = "no_code"  # a turn without code, which ends the task
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"  # generated tokens
    CONTEXT_FULL = "context_full"
    CALL_LIMIT = "call_limit"  # API calls
    ERROR_LIMIT = "error_limit"  # turns whose code raised
    STUCK = "stuck"  # the same code again with the same error, or the same turn again and again
    WALL_LIMIT = "wall_limit"  # seconds
    CANCELLED = "cancelled"
    IN_DOUBT = "in_doubt"  # what a call has changed is not known, and it is not safe to repeat
    CRASHED = "crashed"  # runners died during it, the last one while it executed nothing else


LIMITS = (
    Stop.TURN_LIMIT,
    Stop.TOKEN_LIMIT,
    Stop.CONTEXT_FULL,
    Stop.CALL_LIMIT,
    Stop.ERROR_LIMIT,
    Stop.STUCK,
    Stop.WALL_LIMIT,
)


_WHAT_TO_DO: Final[Mapping[str, str]] = {
    Stop.COMPLETED: "Check its answer and score it: skills and training runs learn from scores.",
    Stop.NOTHING_DONE: "Say in the instruction what to look up or change, and by which API, and send it again.",
    Stop.NO_CODE: "Read what the model said: it may be the answer, or a question that a new instruction answers.",
    Stop.STUCK: "Read what its last turn led to each time, and say in a new instruction how to go on instead.",
    Stop.TURN_LIMIT: "Ask for less in one task, or have the server allow more turns.",
    Stop.TOKEN_LIMIT: "Ask for less in one task, or have the server allow more generated tokens.",
    Stop.CONTEXT_FULL: "Ask for less in one task, or for fewer rows at once, or serve a model with more context.",
    Stop.CALL_LIMIT: "Ask for less in one task, or have the server allow more API calls.",
    Stop.ERROR_LIMIT: "Read the errors of its last turns: often an API refuses a value or lacks a permission.",
    Stop.WALL_LIMIT: "See which turns and calls were slow, and ask for less in one task, or allow more time.",
    Stop.CANCELLED: "Look at what its calls had changed by then: that stays. Run it again if it is still wanted.",
    Stop.IN_DOUBT: "Find out what its last call has changed before you send it again. Where the task asks whether "
    "that call arrived, say so, and it goes on.",
    Stop.CRASHED: "Have the log of the server read before it is sent again: it ended the processes that ran it.",
}


_TOO_WEAK: Final = (*LIMITS, Stop.NO_CODE, Stop.NOTHING_DONE)  # how tasks end whose model cannot use the APIs


def what_to_do(stop: str | None, score: float | None, unusable: Sequence[str] = ()) -> str | None:
    """What a person does about a task that ended so: the same in REST, CLI and console. None: nothing.

    `unusable` are the APIs of the project that its model was tried with, if it could use none of them.

    >>> what_to_do("turn_limit", None)
    'Ask for less in one task, or have the server allow more turns.'
    >>> what_to_do("completed", 1.0), what_to_do(None, None)
    (None, None)
    >>> what_to_do("turn_limit", None, ["desk"])
    'Its model answered no question right in the trial of desk: let a larger model serve, and send it again.'
    """
    if unusable and stop in _TOO_WEAK:
        of = f"trial{'' if len(unusable) == 1 else 's'} of {', '.join(unusable)}"
        return f"Its model answered no question right in the {of}: let a larger model serve, and send it again."
    return None if stop is None or (stop == Stop.COMPLETED and score is not None) else _WHAT_TO_DO.get(stop)


_EXPLORED: Final[Mapping[str | None, str]] = {
    None: "no",
    "no": "no, as it was submitted",
    "reads": "yes, without the calls that are not open to exploration",
    "writes": "yes, with calls that change something",
    "stopped": "no more: it began again before a call that is not open to exploration",
}


def explored(exploration: str | None) -> str:
    """Whether a task explored, for people: the same in CLI and console.

    >>> explored(None), explored("no")
    ('no', 'no, as it was submitted')
    """
    return _EXPLORED[exploration]


BASE = "base"
"""The name of the base model, without an adapter, on every model server."""
HOSTED = "hosted:"
"""How the names of hosted models begin."""


def hosted(model_id: UUID) -> str:
    """The name of a hosted model as the policy of a release."""
    return f"{HOSTED}{model_id}"


def hosted_id(model: str) -> UUID | None:
    """The hosted model of this name; None for one of the model servers': the base model, or an adapter.

    >>> hosted_id(hosted(UUID(int=7))), hosted_id(BASE)
    (UUID('00000000-0000-0000-0000-000000000007'), None)
    """
    return UUID(model.removeprefix(HOSTED)) if model.startswith(HOSTED) else None


def shown_model(name: str) -> str:
    """How a person reads the name of a model: the beginning of an adapter's hash, others whole.

    >>> shown_model("0123456789abcdef0123456789abcdef"), shown_model("claude-sonnet-4")
    ('0123456789ab', 'claude-sonnet-4')
    """
    return name[:12] if re.fullmatch("[0-9a-f]{32}", name) else name


class Policy(msgspec.Struct, frozen=True):
    """What generates: the base model, the base model with one adapter, or a hosted model."""

    model: str = BASE  #: `base`, the content hash of an adapter, or `hosted:` and the id of a hosted model
    release: UUID | None = None


class ProbePoint(msgspec.Struct, frozen=True):
    """The trainer's logprobs of one token after the first `position` tokens of the probe's prompt."""

    position: int
    token: int
    logprob: float  # with the adapter, at temperature 1
    base: float  # without it


class Probe(msgspec.Struct, frozen=True):
    """Fixed tokens by which a model server proves that it applies an adapter as it was trained."""

    prompt_ids: tuple[int, ...]
    points: tuple[ProbePoint, ...]  # where the adapter changes the logprobs most


class RunPart(msgspec.Struct, frozen=True):
    """How much is done of what a training run does now."""

    phase: str  #: "rollouts", "exam checks" or "exam tasks"; of practice also how much of its hours is used
    done: int
    total: int
    at: datetime | None = None  #: when it was; none from workers of earlier versions


class Task(msgspec.Struct, frozen=True):
    """One instruction to execute. Tasks of the same scenario differ only in details."""

    id: UUID
    instruction: str
    project: str = ""
    scenario: str | None = None
    variables: dict[str, str] = {}  # values for the server variables of the project's OpenAPI documents
    conversation: str = ""  # what was said before
    memory: str = ""  # what is remembered of tasks before it, beside skills


class SkillRun(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that a task calls, with arguments by parameter, instead of having the policy write code."""

    skill_id: UUID
    arguments: dict[str, Json] = {}


class CallResponse(msgspec.Struct, frozen=True, kw_only=True):
    """What an API answered a call with, besides the result."""

    status: int
    headers: dict[str, str] = {}  #: those that agents may see
    body: Json = None  #: of a status that is an error: JSON, or text
    attempts: int = 1  #: times that the request was sent
    remark: str = ""  #: what the result does not show of the answer


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One API call from the sandbox, and its result. Bytes, in arguments too, are recorded by length and hash."""

    seq: int  #: position among the calls of the rollout, from 0
    turn: int
    api: str  #: "app.operation"
    arguments: dict[str, Json]
    result: Json = None
    error: str | None = None  #: the error raised in the agent's code; None if the call returned
    response: CallResponse | None = None  #: None if no answer came, or an earlier version recorded it
    seconds: float = 0.0
    skill: str | None = None  #: the name of the offered skill that made it
    sent: bool = True  #: False: no request of it has left this server, so it has certainly changed nothing


NOT_OPEN: Final = "was not called, because this task explores and the operation is not open to that. "
"""In the error of a call from which an exploring task was kept."""


class Use(msgspec.Struct, frozen=True):
    """How often a function was called in one turn, and how often it returned instead of raising.

    Of an offered skill the host has counted this, and a call counts as returned only if the skill called an API in
    it. Of a function written in this rollout it is a claim of the process that ran it: it may choose what is worth
    checking and be shown in a report, but nothing is earned or decided by it.
    """

    function: str
    inherited: bool  #: True: an offered skill, not redefined by the agent; False: written in this rollout
    calls: int
    returned: int


class SkillCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an offered skill, as the host saw it."""

    name: str
    turn: int
    arguments: dict[str, Json]  #: by parameter; a large one is cut to a text
    exact: bool = False  #: the arguments are complete, and plain JSON
    first_call: int | None  #: the `seq` of the first API call made in it; None without one
    calls: int  #: recorded API calls made in it: consecutive ones
    returned: bool
    error: str | None = None  #: the last line of the traceback
    seconds: float = 0.0


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A skill offered to the agent."""

    skill_id: UUID
    name: str
    version: int
    signature: str  #: "name(who: str) -> int"
    source: str  #: a complete function with the imports it needs
    instruction: str  #: of the task it was written for
    ranks: dict[str, int] = {}  #: from 1, in each retrieval list that contains it


class CountedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What the turn of a hosted model used: of the whole prompt, and generated with its thoughts."""

    prompt: int = 0
    generated: int = 0
    estimated: bool = False  #: from the lengths of texts, as the endpoint does not count
    context: int = 0  #: of the prompt that was sent last: `prompt` has that of each request; 0: not recorded


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of the policy, and the observation it led to.

    `context_ids` are the prompt tokens that are new since the last turn (the initial prompt in the first turn,
    later the observation with the template's tokens), so the engine's prompt of turn k is the concatenation of
    context_ids and sampled_ids of all turns before k, plus context_ids of k. If the chat template rewrites earlier
    turns, `extends` is False and `context_ids` is the whole prompt. A hosted model takes messages and has no ids:
    then `counted` says what the turn used.
    """

    context_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of each sampled token, as the engine reported them
    text: str
    opened: str = ""  # the tag at the end of the prompt that opened a thought, which the text goes on with
    finish: str = "stop"  # the engine's finish reason
    extends: bool = True
    observation: str = ""  # as shown to the policy
    outcome: str = ""  # of the code in the sandbox: ok, error, cpu, wall, ...; "" if none ran
    alive: bool = True  # False: the session died in this turn, and its definitions were lost
    calls: tuple[Call, ...] = ()
    uses: tuple[Use, ...] = ()
    skill_calls: tuple[SkillCall, ...] = ()  # in order; of very many in one turn the first ones
    engine_seconds: float = 0.0
    sandbox_seconds: float = 0.0
    prompt: str = ""  # hash of the prompt that it was sampled under; "" where no one recorded it
    thought: str = ""  # that a hosted model put beside its text
    counted: CountedTokens | None = None  # by a hosted model

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.sampled_ids)} sampled tokens but {len(self.logprobs)} logprobs")

    @property
    def failed(self) -> bool:
        """Whether its code raised or was stopped."""
        return self.outcome not in ("", "ok")

    @property
    def full_text(self) -> str:
        """The text after the tag that opened its thought, so that it shows where the thought ends."""
        return _beside(self.thought, self.text) + self.opened + self.text

    @property
    def generated_tokens(self) -> int:
        return self.counted.generated if self.counted else len(self.sampled_ids)


def _beside(thought: str, text: str) -> str:
    """The thought between tags. It ends where its text says so only if a text follows."""
    if not thought:
        return ""
    within = thought.replace("</think>", "</ think>")
    return f"<think>\n{within}\n</think>\n\n" if text else f"<think>\n{within}"


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The full record of a rollout: enough to replay it, score it and train on it."""

    task: Task
    policy: Policy
    profile: str  # the prompt profile that rendered it
    turns: tuple[Turn, ...]
    stop: Stop
    answer: Json = None
    detail: str = ""  # about the stop, such as the call in doubt
    offered: tuple[Offer, ...] = ()
    seconds: float = 0.0
    temperature: float = 0.0  # of sampling; 0 is greedy
    masked: bool = False  # its texts held secrets: these are ***, and the token ids are gone
    phases: dict[str, float] = {}  # seconds of the task by `Phase`, from its submission until this was stored

    @property
    def flaw(self) -> Literal["secret", "hosted", "empty"] | None:
        """Why it cannot be trained on: its tokens held secrets, a hosted model has none, or nothing was sampled.
        None if it can be.
        """
        if self.masked:
            return "secret"
        if hosted_id(self.policy.model) is not None:
            return "hosted"
        return None if self.generated_tokens else "empty"

    @property
    def generated_tokens(self) -> int:
        return sum(turn.generated_tokens for turn in self.turns)

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together, whether a model server had them in its cache or not."""
        total = position = 0
        for turn in self.turns:
            if turn.counted is not None:
                total += turn.counted.prompt
                continue
            start = (position if turn.extends else 0) + len(turn.context_ids)
            total += start
            position = start + len(turn.sampled_ids)
        return total

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for turn in self.turns for call in turn.calls)

    @property
    def kept_back(self) -> bool:
        """Whether it was kept from a call because it explored."""
        return any(
            call.error is not None and call.response is None and NOT_OPEN in call.error for call in self.calls
        )

    @property
    def prompts(self) -> tuple[str, ...]:
        """The hashes of the prompts it was sampled under, in order: several if another version continued it."""
        return tuple(dict.fromkeys(turn.prompt for turn in self.turns if turn.prompt))

    def used(self) -> Iterator[Offer]:
        """The offered skills of which a call returned and had called an API, as the host saw it."""
        returned = {use.function for turn in self.turns for use in turn.uses if use.inherited and use.returned}
        return (offer for offer in self.offered if offer.name in returned)


class CalledOperation(msgspec.Struct, frozen=True):
    api: str
    error: str | None = None


class CallsOfTurn(msgspec.Struct, frozen=True):
    calls: tuple[CalledOperation, ...] = ()


class TrajectoryCalls(msgspec.Struct, frozen=True):
    """The calls of a stored trajectory: to decode these alone takes a quarter of the time."""

    turns: tuple[CallsOfTurn, ...] = ()


GOOD = 0.5  # scores from here on are successes
SOLVED = 1.0  # scores from here on are worth imitating
GRADES: Final = (("Solved", 1.0), ("Half", 0.5), ("Failed", 0.0))  # that a person gives in the console


def in_words(score: float | None) -> str:
    """A score as console and CLI say it.

    >>> in_words(1.0), in_words(0.5), in_words(0.25), in_words(0.0), in_words(None)
    ('solved', 'solved 0.5', 'failed 0.25', 'failed', 'unscored')
    """
    if score is None:
        return "unscored"
    word = "solved" if score >= GOOD else "failed"
    return word if score in (0.0, 1.0) else f"{word} {score:.3g}"


class ScoreSource(StrEnum):
    """The first ones count for more than those after them."""

    PERSON = "person"
    CHECK = "check"  # that the task brought
    VERIFIER = "verifier"  # a server of the project
    JUDGE = "judge"  # a model

    def yields_to(self, other: "ScoreSource") -> bool:
        """Whether a score of `other` counts for more.

        >>> ScoreSource.JUDGE.yields_to(ScoreSource.PERSON), ScoreSource.CHECK.yields_to(ScoreSource.CHECK)
        (True, False)
        """
        order = list(ScoreSource)
        return order.index(self) > order.index(other)
