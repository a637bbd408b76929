"""Route for the full record of a task: every turn with its prompt, tokens, logprobs, observation and calls."""

import asyncio
from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from msgspec import UNSET, UnsetType

from app.base.values import Call, CountedTokens, Json, Offer, Policy, SkillCall, Stop, Trajectory, Turn, Use
from app.db import results, tasks
from app.engine.tokenizer import ChatTokenizer
from app.web.access import Caller, Db
from app.web.problem import problems


class TurnView(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. Tokens `sampled_span[0]` to `sampled_span[1]` of the sequence were sampled, all others given.

    `prompt` is the text of the prompt that is new in this turn, with the model's markers: the whole prompt is that
    of all turns up to this one, each with its `text`, since the last that does not extend. Null where the tokens
    are gone, or are those of another model than the one that is served now.
    """

    prompt: str | UnsetType | None = UNSET
    text: str
    finish_reason: str
    observation: str
    outcome: str
    calls: tuple[Call, ...]
    uses: tuple[Use, ...]
    skill_calls: tuple[SkillCall, ...]
    engine_seconds: float
    sandbox_seconds: float
    extends: bool  #: False: the prompt was rewritten, and the sequence restarts with this turn
    sampled_span: tuple[int, int]
    context_ids: tuple[int, ...] | UnsetType = UNSET  #: new prompt tokens
    sampled_ids: tuple[int, ...] | UnsetType = UNSET
    logprobs: tuple[float, ...] | UnsetType = UNSET  #: of the sampled ids
    thought: str  #: that a hosted model put beside its text
    counted: CountedTokens | None  #: by a hosted model, which has no token ids


class TrajectoryView(msgspec.Struct, frozen=True, kw_only=True):
    """The token sequence is context_ids and sampled_ids of all turns in order."""

    task_id: UUID
    policy: Policy
    profile: str
    prompt_hashes: tuple[str, ...]  #: of the prompts it was sampled under: several if another version continued it
    temperature: float  #: 0 is greedy
    stop_reason: Stop
    stop_detail: str
    answer: Json
    seconds: float
    phases: dict[str, float]  #: seconds of the task in each, from its submission until its end was stored
    offered: tuple[Offer, ...]
    turns: tuple[TurnView, ...]
    masked: bool  #: the policy read or wrote secrets: they are shown as ***, and there are no token ids


class TrajectoryController(Controller):
    path = "/tasks/{task_id:uuid}/trajectory"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012  (the framework copies it)

    @get(summary="Show the trajectory of a task", responses=problems(400, 401, 403, 404))
    async def trajectory(
        self,
        task_id: FromPath[UUID],
        session: Db,
        access: Caller,
        tokenizer: NamedDependency[ChatTokenizer | None],
        tokens: Annotated[bool, QueryParameter(description="include token ids and logprobs")] = True,
        prompt: Annotated[bool, QueryParameter(description="include the prompt of each turn as text")] = True,
    ) -> TrajectoryView:
        """404 until the rollout has ended."""
        task = await tasks.get(session, task_id, access.project_id)
        found = await results.of_task(session, task.id)
        prompts: list[str | None] | None = None
        if prompt:
            prompts = await asyncio.to_thread(prompts_of, found.turns, tokenizer)
        return view(found, tokens=tokens, prompts=prompts)


def prompts_of(turns: Sequence[Turn], tokenizer: ChatTokenizer | None) -> list[str | None]:
    """The text of each turn's `context_ids`; None where they are gone or the tokenizer is not theirs."""
    known = tokenizer is not None and all(tokenizer.is_text_of(turn.text, turn.sampled_ids) for turn in turns)
    return [tokenizer.decode(turn.context_ids) if tokenizer and known else None for turn in turns]


def view(trajectory: Trajectory, *, tokens: bool, prompts: Sequence[str | None] | None = None) -> TrajectoryView:
    """Pure: the span of each turn's sampled tokens follows from the lengths before it."""
    turns = []
    position = 0
    for index, turn in enumerate(trajectory.turns):
        start = (position if turn.extends else 0) + len(turn.context_ids)
        position = start + len(turn.sampled_ids)
        viewed = _view_turn(turn, (start, position), tokens=tokens)
        turns.append(viewed if prompts is None else msgspec.structs.replace(viewed, prompt=prompts[index]))
    return TrajectoryView(
        task_id=trajectory.task.id,
        policy=trajectory.policy,
        profile=trajectory.profile,
        prompt_hashes=trajectory.prompts,
        temperature=trajectory.temperature,
        stop_reason=trajectory.stop,
        stop_detail=trajectory.detail,
        answer=trajectory.answer,
        seconds=trajectory.seconds,
        phases=trajectory.phases,
        offered=trajectory.offered,
        turns=tuple(turns),
        masked=trajectory.masked,
    )


def _view_turn(turn: Turn, span: tuple[int, int], *, tokens: bool) -> TurnView:
    return TurnView(
        text=turn.text,
        finish_reason=turn.finish,
        observation=turn.observation,
        outcome=turn.outcome,
        calls=turn.calls,
        uses=turn.uses,
        skill_calls=turn.skill_calls,
        engine_seconds=turn.engine_seconds,
        sandbox_seconds=turn.sandbox_seconds,
        extends=turn.extends,
        sampled_span=span,
        context_ids=turn.context_ids if tokens else UNSET,
        sampled_ids=turn.sampled_ids if tokens else UNSET,
        logprobs=turn.logprobs if tokens else UNSET,
        thought=turn.thought,
        counted=turn.counted,
    )
