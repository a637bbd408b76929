"""Instructions of lessons in the words of a hosted model, which has more of them than a grammar.

The model is asked about a batch of tasks at a time, some batches before they are needed, and shown how people of
the project ask. What it says instead of an instruction is taken if it has every value and number of it and no
other number; the task keeps its wording otherwise, and where the model fails. Exams keep theirs always.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID

import msgspec
import structlog

from app.base.errors import AppError, EngineRefusalError, InvalidError
from app.base.run_settings import practice_option
from app.base.values import Json, Task
from app.db.database import Sessions, reading
from app.engine.protocol import ChatModel
from app.engine.tokenizer import Message
from app.releases import hosted_models
from app.runs import experience
from trainer.environment import Scenario
from trainer.hosted import open_charged, read_answer
from trainer.practice.environments import PracticeEnvironment
from trainer.run_job import Job

log = structlog.get_logger(__name__)

Draw = Callable[[int], Sequence[Scenario]]
_AHEAD: Final = 8  # batches that are asked about at once
_FAILURES: Final = 3  # in a row, after which the model is asked no more
_TOKENS: Final = 4_000  # of one answer
_SECONDS: Final = 120.0  # for one, and as many of retries: the lessons wait
_MOST_CHARS: Final = 600
_TASKS: Final = 200  # the newest of the project, among which examples are looked for
_EXAMPLES: Final = 12
_NUMBER: Final = re.compile(r"\d+")
_SYSTEM: Final = """\
You reword requests that people make of an assistant which works with the API {api}. Say each as another person
would: a colleague in a chat, someone in a hurry, someone polite, someone who starts with what is wrong. Vary
verbs, order and length. It has to ask for exactly the same: leave nothing out, add nothing, and do not answer it.
Copy names, addresses, numbers, dates and whatever is in quotes letter by letter. If there are "examples", people
of this team asked them: use their words for things and their manner, and nothing that they ask for.
Reply with JSON only, one text for each request in order: {{"requests": ["..."]}}"""


class _Answer(msgspec.Struct):
    requests: list[str]


class Paraphraser:
    """Asks a hosted model until it has refused, or failed three times in a row: `failure` says why."""

    def __init__(self, model: ChatModel, environment: PracticeEnvironment, examples: Sequence[str] = ()) -> None:
        """`examples` are instructions of people."""
        self.failure = ""
        self._model, self._environment, self._examples = model, environment, examples
        self._failures = 0

    async def reword(self, scenarios: Sequence[Scenario]) -> tuple[list[Scenario], int]:
        """The same tasks, and for how many of them the model found other words."""
        tasks = [task for each in scenarios for task in each.tasks]
        said = await self._said([each.instruction for each in tasks])
        worded = {
            task.id: msgspec.structs.replace(task, instruction=text)
            for task, text in zip(tasks, said, strict=True)
            if text != task.instruction and says_the_same(task.instruction, text, self._values(task))
        }
        said_anew = [
            msgspec.structs.replace(each, tasks=tuple(worded.get(task.id, task) for task in each.tasks))
            for each in scenarios
        ]
        return said_anew, len(worded)

    async def _said(self, instructions: Sequence[str]) -> Sequence[str]:
        """As they are, once the model has failed too often."""
        if self._failures >= _FAILURES:
            return instructions
        try:
            found = await self._ask(instructions)
        except AppError as error:
            self._failures += _FAILURES if isinstance(error, EngineRefusalError) else 1
            self.failure = str(error)
            log.warning("lessons keep their wording", cause=self.failure, batches=self._failures)
            return instructions
        self._failures = 0
        return found

    async def _ask(self, instructions: Sequence[str]) -> list[str]:
        """Raises EngineError, and InvalidError for an answer that is none."""
        system = _SYSTEM.format(api=self._environment.practice.model.app.name)
        asked = {"requests": instructions} | ({"examples": self._examples} if self._examples else {})
        messages = [Message("system", system), Message("user", msgspec.json.encode(asked).decode())]
        answer = await self._model.answer(messages, max_tokens=_TOKENS, temperature=1.0)
        found = read_answer(answer.text, _Answer, "paraphraser").requests
        if len(found) != len(instructions):
            raise InvalidError(f"the paraphraser gave {len(found)} texts for {len(instructions)} requests")
        return found

    def _values(self, task: Task) -> Collection[Json]:
        plan, index = self._environment.place(task.variables["world"])
        return plan.values[index].values()


def says_the_same(instruction: str, other: str, values: Collection[Json]) -> bool:
    """Whether a wording has the values of an instruction, and its numbers. What else it means nobody checks. Pure.

    >>> says_the_same("Pause the page Blue Lamp.", "Blue Lamp needs a pause", ["Blue Lamp"])
    True
    >>> says_the_same("Set the size of 3 to 40.", "Make 3 four times as large", [3, 40])
    False
    >>> says_the_same("Pause the page Blue Lamp.", "Pause blue lamp for 2 days", ["Blue Lamp"])
    False
    """
    told = [text for each in values if (text := str(each)) and text in instruction]
    numbers = [set(_NUMBER.findall(text)) for text in (instruction, other)]
    fits = 0 < len(other) <= _MOST_CHARS and "\0" not in other
    return fits and numbers[0] == numbers[1] and all(each in other for each in told)


@asynccontextmanager
async def open_paraphraser(
    job: Job, sessions: Sessions, environment: PracticeEnvironment
) -> AsyncIterator[Paraphraser | None]:
    """The one that the run names, whose cost its project is charged. Raises NotFoundError for one that is gone."""
    name = practice_option(job.settings, "paraphraser")
    if not name:
        yield None
        return
    async with sessions() as session:
        row = await hosted_models.get(session, job.project_id, name)
    examples = await asked_by_people(sessions, job.project_id, environment.practice.model.app.name)
    async with open_charged(row, sessions, job.deployment, _SECONDS, _SECONDS) as model:
        yield Paraphraser(model, environment, examples)


async def asked_by_people(sessions: Sessions, project_id: UUID, api: str) -> list[str]:
    """The newest instructions of tasks that called an API, one of each scenario, as they were logged: without
    secrets.
    """
    found: dict[str, str] = {}
    async with reading(sessions) as session:
        ended = await experience.window(session, project_id, limit=_TASKS)
        async for each in experience.trajectories(session, [task.id for task in reversed(ended)]):
            task = each.task
            if len(task.instruction) <= _MOST_CHARS and any(call.api.startswith(f"{api}.") for call in each.calls):
                found.setdefault(task.scenario or task.instruction, task.instruction)
            if len(found) == _EXAMPLES:
                break
    return list(found.values())


@asynccontextmanager
async def reworded(
    draw: Draw, paraphraser: Paraphraser | None
) -> AsyncIterator[Callable[[int], Awaitable[tuple[Sequence[Scenario], int]]]]:
    """What `draw` gives for a number, in other words if there is a paraphraser, and how many tasks have them.
    The numbers that follow are expected to be asked for next.
    """
    asking: dict[int, asyncio.Task[tuple[list[Scenario], int]]] = {}

    async def of(number: int) -> tuple[Sequence[Scenario], int]:
        if paraphraser is None:
            return draw(number), 0
        for each in range(number, number + _AHEAD):
            if each not in asking:
                asking[each] = asyncio.create_task(paraphraser.reword(draw(each)))
        return await asking.pop(number)

    try:
        yield of
    finally:
        for each in asking.values():
            each.cancel()
        await asyncio.gather(*asking.values(), return_exceptions=True)
