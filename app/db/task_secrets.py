"""The secrets that a task's journal tells, and their removal from what was stored before they were known."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.approvals import store as approvals
from app.base.secrets import SecretValues
from app.db import calls, results, tables, turns


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
