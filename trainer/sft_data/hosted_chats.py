"""Rollouts of a hosted model as conversations of the model that is trained: what it would have read.

A hosted model reads the `full` profile; the one that imitates it reads its own.
"""

from collections.abc import Sequence

import msgspec

from app.agent.prompt_profiles import Profile
from app.apis.listed_app import ListedApp
from app.datasets.chat_lines import ChatRecord
from app.engine.tokenizer import ChatTokenizer
from app.errors import InvalidError, ModelError
from app.records import Trajectory, Turn
from app.sandbox.protocol import Observation, RunStop
from trainer.learning.batch import Sample
from trainer.sft_data.chat_records import record_of
from trainer.sft_data.chat_samples import samples_of

_OUTPUT, _ERROR = "Output:\n", "Error:\n"


def hosted_samples(
    trajectory: Trajectory, profile: Profile, apps: Sequence[ListedApp], tokenizer: ChatTokenizer
) -> list[Sample]:
    """None if the tokenizer cannot represent an answer, or the conversation is longer than the model's context.
    `apps` are those that the rollout had.
    """
    try:
        samples = samples_of(_retold(trajectory, profile, apps), tokenizer)
    except (InvalidError, ModelError):
        return []
    return samples if all(len(sample.ids) <= tokenizer.max_length for sample in samples) else []


def _retold(trajectory: Trajectory, profile: Profile, apps: Sequence[ListedApp]) -> ChatRecord:
    opening = profile.opening(trajectory.task, trajectory.offered, apps)
    turns = tuple(
        msgspec.structs.replace(turn, observation=profile.observation(observation_of(turn)))
        for turn in trajectory.turns
    )
    return record_of(msgspec.structs.replace(trajectory, turns=turns), opening)


def observation_of(turn: Turn) -> Observation:
    """What the code of a turn printed and raised, out of what the `full` profile has shown of it."""
    printed, error, text = "", "", turn.observation
    if text.startswith(_ERROR):
        error = text.removeprefix(_ERROR)
    elif text.startswith(_OUTPUT):
        printed = text.removeprefix(_OUTPUT)
        if turn.failed or not turn.alive:
            before, mark, after = printed.rpartition(f"\n{_ERROR}")
            printed, error = (before, after) if mark else (printed, "")
    stop = RunStop(turn.outcome) if turn.outcome in set(RunStop) else RunStop.OK
    return Observation(stdout=printed, error=error or None, stop=stop, alive=turn.alive)
