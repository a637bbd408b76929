"""Removes a task's secrets from what is kept of it: trajectory, outcome and skill drafts. Pure."""

import msgspec

from app.apis.credentials.credential import mask, mask_call
from app.base.secrets import SecretValues
from app.base.values import Trajectory, Turn


def masked(trajectory: Trajectory, secrets: SecretValues) -> Trajectory:
    """The trajectory as it is stored, shown and trained on.

    Token ids cannot be masked: where the policy read or wrote a secret, the trajectory keeps its texts and loses
    its ids and logprobs, so that nothing decodes to the secret, and counts as `masked`.
    """
    turns = tuple(_masked_turn(turn, secrets) for turn in trajectory.turns)
    shown = secrets.mask_value(msgspec.structs.replace(trajectory, turns=()))
    in_prompt = (shown.task, shown.offered) != (trajectory.task, trajectory.offered)
    if in_prompt or any(_read_or_wrote(*pair) for pair in zip(trajectory.turns, turns, strict=True)):
        turns = tuple(msgspec.structs.replace(turn, context_ids=(), sampled_ids=(), logprobs=()) for turn in turns)
        shown = msgspec.structs.replace(shown, masked=True)
    return msgspec.structs.replace(shown, turns=turns)


def _masked_turn(turn: Turn, secrets: SecretValues) -> Turn:
    entered = (msgspec.structs.replace(each, arguments=mask(each.arguments)) for each in turn.skill_calls)
    named = msgspec.structs.replace(turn, calls=tuple(map(mask_call, turn.calls)), skill_calls=tuple(entered))
    return secrets.mask_value(named)


def _read_or_wrote(before: Turn, after: Turn) -> bool:
    return (before.text, before.observation) != (after.text, after.observation)
