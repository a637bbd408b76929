"""Which served tasks no run may learn from, because candidates are examined on them."""

import asyncio
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.db import exams
from app.db.exams import HeldOut
from app.plugins.plugin_options import PluginSpec
from app.project.holdout import OWN_WORK, is_held_out
from app.records import Task
from app.skills.ngrams import NgramIndex
from trainer.experience.task_kinds import TaskKinds

_NEARLY_THE_SAME = 0.9  # Jaccard similarity of the instructions' n-grams


async def read_held_out(session: AsyncSession, project_id: UUID, environment: str = "") -> "HeldOutTasks":
    """What a project's runs may not learn from now, among it the version of an exam that `environment` names.

    Of a long log it takes seconds, in a thread: give it a session of `reading`. Raises NotFoundError if there is
    no such version.
    """
    spec, named = PluginSpec.parse(environment), []
    if spec.name == "exam" and (digest := spec.options.get("digest")):
        named.append((await exams.get(session, project_id, spec.options.get("name", OWN_WORK), digest=digest)).id)
    return await asyncio.to_thread(HeldOutTasks, await exams.held_out(session, project_id, named))


class HeldOutTasks:
    """Recognises them: by the scenario, by tasks that are like them, or by nearly the same instruction."""

    def __init__(self, held_out: HeldOut) -> None:
        self._held_out = held_out
        self._kinds = TaskKinds(held_out.logged)
        self._examined = {
            kind
            for task in held_out.tasks
            for kind in (
                *self._kinds.possible(task.task_id, task.instruction, task.scenario),
                *(self._kinds.possible(None, task.instruction, None) if task.scenario is not None else ()),
            )
        }
        self._instructions: NgramIndex[int] = NgramIndex()
        for number, task in enumerate(held_out.tasks):
            self._instructions.add(number, task.instruction)

    def __contains__(self, task: Task) -> bool:
        return self.holds(task.instruction, task.scenario, task.id)

    def holds(self, instruction: str, scenario: str | None, task_id: UUID | None = None) -> bool:
        """Whether a task of this instruction is held out."""
        held, possible = self._held_out, self._kinds.possible(task_id, instruction, scenario)
        if any(kind in self._examined or is_held_out(held.project_id, kind, held.percent) for kind in possible):
            return True
        return self.resembles(instruction)

    def resembles(self, text: str) -> bool:
        """Whether a text is nearly the instruction of a task of an exam."""
        nearest = self._instructions.search(text, 1)
        return bool(nearest) and nearest[0][1] >= _NEARLY_THE_SAME
