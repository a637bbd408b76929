"""Keeps a task's secrets out of what is kept and shown of it: its events, which are also short enough for a
stream, its trajectory, outcome and skill drafts. What its journal tells is a secret too, and is removed from
what was stored before that was known.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.approvals import store as approvals
from app.apis.credentials import credential
from app.base.secrets import SecretValues
from app.base.values import Call, Json, Trajectory, Turn
from app.db import results, tables
from app.db.database import to_json
from app.tasks import calls, turns


async def of_task(session: AsyncSession, task: tables.Task) -> SecretValues:
    """Those of a task that has a journal."""
    secrets = SecretValues()
    note(secrets, task, await turns.of_task(session, task.id), await calls.of_task(session, task.id))
    return secrets


def note(
    secrets: SecretValues,
    task: tables.Task,
    recorded: Sequence[turns.RecordedTurn] = (),
    made: Sequence[calls.JournalCall] = (),
) -> None:
    """Add what the task was submitted with, and what its calls were given or returned."""
    secrets.note("", task.variables)
    secrets.note("", task.skill_run or {})
    for begun in made:
        secrets.note(begun.api, begun.arguments)
    ended = [each.call for each in made if each.call is not None]
    for call in [*(call for each in recorded for call in each.turn.calls), *ended]:
        secrets.note_call(call)


async def mask(session: AsyncSession, task_id: UUID, secrets: SecretValues) -> None:
    """Mask the task's events and approvals that came before a secret was known."""
    if secrets.known:
        await results.rewrite(session, task_id, secrets.mask_fields)
        await approvals.rewrite(session, task_id, secrets.mask_fields)


_MOST = 2_000  # characters of a result as JSON, and of text


def call_fields(call: Call, secrets: SecretValues) -> dict[str, Json]:
    """A call that has ended. `skill` is the offered skill that made it; None: the agent's own code did.

    `http_status` is None if no answer came, or the protocol has none. A large `result` is cut to the beginning of
    its JSON, and `cut` is True.
    """
    secrets.note_call(call)
    shown = credential.mask_call(call)
    result, cut = bounded(secrets.mask_value(shown.result))
    return {
        "turn": call.turn,
        "seq": call.seq,
        "api": call.api,
        "arguments": secrets.mask_value(shown.arguments),
        "skill": call.skill,
        "result": result,
        **({"cut": True} if cut else {}),
        "error": call.error and secrets.mask(call.error),
        "http_status": call.response and call.response.status,
        "seconds": round(call.seconds, 4),
    }


def bounded(value: Json) -> tuple[Json, bool]:
    """The value, or the beginning of its JSON as text and True.

    >>> bounded({"rows": [1, 2]})
    ({'rows': [1, 2]}, False)
    >>> text, cut = bounded(["word"] * 1_000)
    >>> text[:16], text[-7:], len(text) < 2_000, cut
    ('["word", "word",', '"word",', True, True)
    """
    text = to_json(value)
    return (value, False) if len(text) <= _MOST else (beginning(text), True)


def beginning(text: str) -> str:
    """The first words. None is cut in the middle: of half a secret nobody could tell that it is one.

    >>> beginning("short")
    'short'
    """
    return text if len(text) <= _MOST else text[:_MOST].rpartition(" ")[0]


def masked(trajectory: Trajectory, secrets: SecretValues) -> Trajectory:
    """The trajectory as it is stored, shown and trained on.

    Token ids cannot be masked: where the policy read or wrote a secret, the trajectory keeps its texts and loses
    its ids and logprobs, so that nothing decodes to the secret, and counts as `masked`.
    """
    turns = tuple(_masked_turn(turn, secrets) for turn in trajectory.turns)
    shown = secrets.mask_value(msgspec.structs.replace(trajectory, turns=()))
    in_prompt = (shown.task, shown.offered) != (trajectory.task, trajectory.offered)
    was, now = ([(turn.text, turn.observation) for turn in each] for each in (trajectory.turns, turns))
    if in_prompt or was != now:
        turns = tuple(msgspec.structs.replace(turn, context_ids=(), sampled_ids=(), logprobs=()) for turn in turns)
        shown = msgspec.structs.replace(shown, masked=True)
    return msgspec.structs.replace(shown, turns=turns)


def _masked_turn(turn: Turn, secrets: SecretValues) -> Turn:
    entered = (
        msgspec.structs.replace(each, arguments=credential.mask(each.arguments)) for each in turn.skill_calls
    )
    named = msgspec.structs.replace(
        turn, calls=tuple(map(credential.mask_call, turn.calls)), skill_calls=tuple(entered)
    )
    return secrets.mask_value(named)
