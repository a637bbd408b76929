"""The words of the system: immutable values that pass between its parts. No I/O, no torch."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

Json: TypeAlias = Any
"""What JSON can say: None, bool, int, float, str, lists and string-keyed dicts of these."""


class Stop(StrEnum):
    """Why a rollout ended."""

    COMPLETED = "completed"  # the agent called complete_task
    NO_CODE = "no_code"  # a turn without a python block
    TURN_LIMIT = "turn_limit"
    TOKEN_LIMIT = "token_limit"  # generated tokens
    CONTEXT_FULL = "context_full"
    CALL_LIMIT = "call_limit"  # API calls
    ERROR_LIMIT = "error_limit"  # turns whose code raised
    WALL_LIMIT = "wall_limit"  # seconds
    CANCELLED = "cancelled"
    IN_DOUBT = "in_doubt"  # a call went out, its result was lost, and it may not be repeated


BASE = "base"
"""The name by which every model server knows its base model, without an adapter."""


class Policy(msgspec.Struct, frozen=True):
    """Which weights answer: the base model, or the base model wearing one adapter version."""

    model: str = BASE  # the name the engine knows: that, or the adapter's content hash
    release: UUID | None = None


class ProbePoint(msgspec.Struct, frozen=True):
    """What the trainer's model says of one token after the first `position` tokens of the probe's prompt."""

    position: int
    token: int
    logprob: float  # of the base model wearing the adapter, at temperature 1
    base: float  # of the base model


class Probe(msgspec.Struct, frozen=True):
    """Fixed tokens by which a model server proves that it wears an adapter as it was trained."""

    prompt_ids: tuple[int, ...]
    points: tuple[ProbePoint, ...]  # where adapter and base differ most


class Task(msgspec.Struct, frozen=True):
    """One instruction to carry out. Tasks of one scenario ask for the same thing with other details."""

    id: UUID
    instruction: str
    project: str = ""
    scenario: str | None = None
    variables: dict[str, str] = {}  # values for the server variables of the project's OpenAPI documents


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One API call that left the sandbox, and what came of it."""

    seq: int  # position among the calls of the rollout, from 0
    turn: int
    api: str  # "app.operation"
    arguments: dict[str, Json]
    result: Json = None
    error: str | None = None  # what the agent's code saw raised; None if the call returned
    seconds: float = 0.0


class Use(msgspec.Struct, frozen=True):
    """How often one function was called in one turn, and how often it returned instead of raising."""

    function: str
    inherited: bool  # True: an offered skill, not redefined by the agent; False: written in this rollout
    calls: int
    returned: int


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A skill put before the agent."""

    skill_id: UUID
    name: str
    version: int
    signature: str  # "name(who: str) -> int"
    source: str  # a complete function with the imports it needs
    instruction: str  # of the task it was written for
    ranks: dict[str, int] = {}  # its place, from 1, in each retrieval list that held it


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the policy, and what the sandbox said to it.

    `context_ids` are the prompt tokens that are new since the last turn (the opening prompt in the first turn,
    later the template's glue and the observation), so the engine's prompt of turn k is the concatenation of
    context_ids and sampled_ids of all turns before k, plus context_ids of k. Where the chat template rewrites what
    went before, `extends` is False and `context_ids` is the whole prompt.
    """

    context_ids: tuple[int, ...]
    sampled_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of each sampled token, under the policy that sampled it, as the engine said
    text: str
    finish: str = "stop"  # the engine's finish reason
    extends: bool = True
    observation: str = ""  # as shown to the policy
    outcome: str = ""  # the sandbox's verdict on the code: ok, error, cpu, wall, ...; "" if no code ran
    alive: bool = True  # False: the session died in this turn, and the next one began without what it had defined
    calls: tuple[Call, ...] = ()
    uses: tuple[Use, ...] = ()
    engine_seconds: float = 0.0
    sandbox_seconds: float = 0.0

    def __post_init__(self) -> None:
        if len(self.sampled_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.sampled_ids)} sampled tokens but {len(self.logprobs)} logprobs")


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """The full record of one rollout: enough to replay it, score it and train on it."""

    task: Task
    policy: Policy
    profile: str  # the prompt profile that rendered it
    turns: tuple[Turn, ...]
    stop: Stop
    answer: Json = None
    detail: str = ""  # more about the stop, such as the call in doubt
    offered: tuple[Offer, ...] = ()
    seconds: float = 0.0
    temperature: float = 0.0  # it was sampled at; 0: greedily

    @property
    def flaw(self) -> Literal["rewritten", "empty"] | None:
        """Why no update can learn from it: the chat template rewrote earlier turns, so that it is no single
        sequence of tokens, or the policy sampled nothing. None for a sound one.
        """
        if not all(turn.extends for turn in self.turns):
            return "rewritten"
        return None if self.generated_tokens else "empty"

    @property
    def generated_tokens(self) -> int:
        return sum(len(turn.sampled_ids) for turn in self.turns)

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for turn in self.turns for call in turn.calls)

    def used(self) -> Iterator[Offer]:
        """The offered skills that were executed and returned at least once."""
        returned = {use.function for turn in self.turns for use in turn.uses if use.inherited and use.returned}
        return (offer for offer in self.offered if offer.name in returned)
