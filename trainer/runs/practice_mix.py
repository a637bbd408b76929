"""What a run of practice asks more often than else: what people ask the project for, and what it half masters."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec.structs import replace

from app.db import training_data
from app.db.database import Sessions, reading
from app.score_source import GOOD
from trainer.atomic_write import write_atomically
from trainer.learning.checkpoints import Checkpoints
from trainer.practice.environments import Practice, PracticeEnvironment
from trainer.practice.mix import Mix, RealTask, kind_of_form
from trainer.rollouts.groups import ChainRollout

_TASKS = 500  # the newest


class Steering:
    """The mix of a run's environment, kept in its directory between its attempts: those after the last two steps,
    as an attempt that is killed may have noted a step that the next one repeats.
    """

    def __init__(self, directory: Path, practised: PracticeEnvironment) -> None:
        self._directory, self._path, self._practised = directory, directory / "mix.json", practised
        self._after: dict[int, Mix] = {}  # by step; 0: before the first

    async def begin(self, sessions: Sessions, project_id: UUID) -> None:
        """With what earlier attempts left after their last finished step, or by the tasks of the project."""
        if self._path.exists():
            self._after = msgspec.json.decode(self._path.read_bytes(), type=dict[int, Mix])
        else:
            self._set(0, await asked_of(sessions, project_id, self._practised.practice))
        self._practised.mix = self._after[Checkpoints(self._directory).rounds]

    def note(self, step: int, rollouts: Iterable[ChainRollout]) -> None:
        """What those of a step solved, so that what is half mastered comes more often. Safe to repeat."""
        solved, tried = Counter[str](), Counter[str]()
        for each in rollouts:
            kind = kind_of_form(self._practised.place(each.scenario.tasks[0].variables["world"])[0].form)
            known = [episode.verdict.success for episode in each.episodes if episode.verdict.known]
            solved[kind] += sum(known)
            tried[kind] += len(known)
        before = self._after[step - 1]
        after = Mix(before.asked, dict(before.rates))
        after.note({kind: (solved[kind], count) for kind, count in tried.items()})
        self._set(step, after)

    def _set(self, step: int, mix: Mix) -> None:
        self._practised.mix = mix
        self._after = {at: each for at, each in self._after.items() if at == step - 1} | {step: mix}
        write_atomically(msgspec.json.encode(self._after), self._path)


async def asked_of(sessions: Sessions, project_id: UUID, practice: Practice) -> Mix:
    """The mix by what the newest tasks did with the API, scored or not. Their texts and answers do not count."""
    tasks, model = [], practice.model
    async with reading(sessions) as session:
        ended = await training_data.window(session, project_id, limit=_TASKS)
        scores = {each.id: each.score for each in ended if each.executed}
        async for each in training_data.trajectories(session, list(scores)):
            calls = tuple(
                replace(call, result=None, response=None)  # 500 tasks are in memory
                for call in each.calls
                if call.api.partition(".")[0] == model.app.name
            )
            score = scores[each.task.id]
            tasks.append(RealTask(calls, failed=score is not None and score < GOOD))
    return Mix.of(model, tasks, practice.presentation)
