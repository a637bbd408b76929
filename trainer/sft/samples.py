"""Conversations as training samples: the tokens that a rollout would have had, those of answers marked.

Rollouts of a hosted model become conversations of the model that is trained: what it would have read. A hosted
model reads the `full` profile; the one that imitates it reads its own.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from app.agent.chat import Chat
from app.agent.prompts import Profile
from app.apis.listing import ListedApp
from app.base.errors import InvalidError, ModelError
from app.base.values import Trajectory, Turn
from app.engine.tokenizer import ChatTokenizer, after_thought
from app.runs.chat_lines import ChatRecord
from app.sandbox.protocol import Observation, RunStop
from trainer.learning.batch import Sample, samples_of_turns
from trainer.sft.chats import record_of
from trainer.sft.collection import answer_ids

TOO_LONG = "longer than the model's context"
FAILED = "without an answer whose code worked"
_OUTCOMES = frozenset(RunStop)  # a column of other programs may have the same name
_OUTPUT, _ERROR = "Output:\n", "Error:\n"


class SftSamples(msgspec.Struct, frozen=True):
    """The samples, and the number of conversations dropped by reason."""

    samples: list[Sample]
    dropped: dict[str, int]

    @property
    def tokens(self) -> int:
        """The number of tokens that are trained on."""
        return sum(sum(sample.sampled) for sample in self.samples)


def build_samples(records: Sequence[ChatRecord], tokenizer: ChatTokenizer) -> SftSamples:
    """Samples of all conversations that fit the model's context.

    Raises InvalidError where the model's tokenizer or chat template cannot represent one, or where none is left.
    """
    samples: list[Sample] = []
    dropped = Counter[str]()
    for number, record in enumerate(records, start=1):
        try:
            found = samples_of(record, tokenizer)
        except (InvalidError, ModelError) as error:
            raise InvalidError(f"conversation {number}: {error}") from error
        if not found:
            dropped[FAILED] += 1
        for sample in found:
            if len(sample.ids) > tokenizer.max_length:
                dropped[TOO_LONG] += 1
            else:
                samples.append(sample)
    if not samples and not dropped[TOO_LONG]:
        raise InvalidError(f"all {len(records)} conversations are {FAILED}: there is nothing to imitate")
    if not samples:
        raise InvalidError(
            f"all {len(records)} conversations are {TOO_LONG} of {tokenizer.max_length} tokens: "
            "give shorter ones, or use a model with a longer context"
        )
    return SftSamples(samples, dict(dropped))


def samples_of(record: ChatRecord, tokenizer: ChatTokenizer) -> list[Sample]:
    """One sample, or several if the chat template rewrites earlier messages, as some drop thoughts.

    Only the assistant's tokens are marked, each in one sample, in the context in which it was generated; not those
    of answers whose code failed.
    """
    chat = Chat(tokenizer, record.opening)
    turns: list[Turn] = []
    for written, observation, ended, outcome in _turns(record):
        prompt = chat.prompt()
        answer = after_thought(prompt.opened, written)
        ids = answer_ids(tokenizer, answer, ended=ended)
        turn = Turn(
            context_ids=prompt.context_ids,
            sampled_ids=ids,
            logprobs=(0.0,) * len(ids),
            text=answer,
            opened=prompt.opened,
            extends=prompt.extends,
            observation=observation,
            outcome=outcome,
        )
        chat.add(turn)
        turns.append(turn)
    return samples_of_turns(turns, failed=False)


def _turns(record: ChatRecord) -> list[tuple[str, str, bool, str]]:
    """Each answer, the observation after it, whether the answer was complete, and the outcome of its code."""
    texts = [message.content for message in record.messages[len(record.opening) :]]
    answers, observations = texts[::2], [*texts[1::2], ""]
    ended = [each != "length" for each in _column(record, "finish", len(answers))]
    outcomes = [each if each in _OUTCOMES else "" for each in _column(record, "outcome", len(answers))]
    return list(zip(answers, observations, ended, outcomes, strict=True))


def _column(record: ChatRecord, name: str, answers: int) -> list[str]:
    """A fact about each answer, as exported chats have it, or "" where the record has none."""
    values = record.about.get(name)
    if not isinstance(values, list) or len(values) != answers:
        return [""] * answers
    return [value if isinstance(value, str) else "" for value in values]


def hosted_samples(
    trajectory: Trajectory, profile: Profile, apps: Sequence[ListedApp], tokenizer: ChatTokenizer
) -> list[Sample]:
    """Empty if the tokenizer cannot represent an answer, or the conversation is longer than the model's context.
    `apps` are those that the rollout had.
    """
    opening = profile.opening(trajectory.task, trajectory.offered, apps)
    turns = tuple(
        msgspec.structs.replace(turn, observation=profile.observation(observation_of(turn)))
        for turn in trajectory.turns
    )
    try:
        samples = samples_of(record_of(msgspec.structs.replace(trajectory, turns=turns), opening), tokenizer)
    except (InvalidError, ModelError):
        return []
    return samples if all(len(sample.ids) <= tokenizer.max_length for sample in samples) else []


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
