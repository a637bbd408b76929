"""Which tasks are held out: whole scenarios and, without them, all instructions that are alike."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest
from sqlalchemy import delete

from app.base.values import Call, Task
from app.db import tables
from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.projects.kinds import is_held_out, kind_that_begins
from app.releases.exams import store as exams
from app.releases.exams.store import HeldOut, NewExamTask, UnlabelledTask
from tests.support.served_project import ServedProject
from tests.support.training_project import ProgressRecorder, TrainingProject, on_this_machine
from trainer.experience import HeldOutTasks, TaskKinds, read_held_out
from trainer.run import train
from trainer.runs.environment import with_own_exam

PROJECT = UUID(int=7)
NAMES = ["iris", "omar", "lena", "noor", "pia", "juri", "sven", "tova", "emil", "anna", "bela", "cleo"]
MAILS = [f"Archive all mails from {name}" for name in NAMES]
INVOICES = [f"Pay the latest invoice of company {name} by bank transfer" for name in NAMES]


def logged(texts: Sequence[str], *operations: str, solved: bool = True) -> list[UnlabelledTask]:
    return [
        UnlabelledTask(id=uuid4(), instruction=text, operations=frozenset(operations), solved=solved)
        for text in texts
    ]


def kinds_of(*tasks: UnlabelledTask) -> list[str]:
    kinds = TaskKinds(tasks)
    return [kinds.of_task(each.id, each.instruction, None) for each in tasks]


def task(instruction: str, scenario: str | None = None) -> Task:
    return Task(UUID(int=1), instruction, scenario=scenario)


def test_instructions_that_are_alike_are_one_kind_which_later_ones_do_not_change() -> None:
    kinds = TaskKinds(logged([MAILS[0], *INVOICES[:3]]))
    assert {kinds.of_task(uuid4(), each, None) for each in MAILS} == {kind_that_begins(MAILS[0])}
    assert {kinds.of_task(uuid4(), each, None) for each in INVOICES} == {kind_that_begins(INVOICES[0])}
    assert kinds.of_task(uuid4(), MAILS[0], "labelled") == "labelled"


def test_words_that_skills_take_as_arguments_do_not_tell_kinds_apart() -> None:
    plain = [UnlabelledTask(id=uuid4(), instruction=f"call {name}") for name in ("iris", "omar")]
    assert kinds_of(*plain) == [kind_that_begins(each.instruction) for each in plain]
    assert (
        kinds_of(msgspec.structs.replace(plain[0], slots=frozenset({"iris"})), plain[1])
        == [kind_that_begins("call iris")] * 2
    )


def test_tasks_that_called_mostly_other_operations_are_of_another_kind() -> None:
    [approved] = logged(["approve the leave request of ann"], "list", "approve")
    [detour] = logged(["approve the leave request of bob"], "list", "search", "approve")
    [rejected] = logged(["reject the leave request of ann"], "list", "reject")
    [gave_up] = logged(["approve the leave request of cid"], "list", solved=False)
    [lost] = logged(["approve the leave request of dan"])
    kinds = kinds_of(approved, rejected, detour, gave_up, lost)
    approve, reject = kind_that_begins(approved.instruction), kind_that_begins(rejected.instruction)
    assert kinds == [approve, reject, approve, approve, approve]
    both = TaskKinds([approved, rejected]).possible(None, "handle the leave request of ann", None)
    assert set(both) == {approve, reject}, "words alone do not tell which"


def test_a_task_that_was_placed_stays_and_others_join_it() -> None:
    early, placed, late = logged(MAILS[:3])
    kinds = TaskKinds([early, msgspec.structs.replace(placed, kind="mails"), late])
    assert {kinds.of_task(each.id, each.instruction, None) for each in (early, placed, late)} == {"mails"}
    assert kinds.new == {early.id: "mails", late.id: "mails"}


@pytest.mark.parametrize("percent", [10, 20, 50])
def test_of_instructions_that_are_alike_all_are_held_out_or_none(percent: float) -> None:
    seen = set()
    for project in map(UUID, (f"{number:032x}" for number in range(40))):
        held = HeldOutTasks(HeldOut(project_id=project, percent=percent, tasks=[], logged=logged(MAILS[:8])))
        found = {task(each) in held for each in MAILS}
        assert found == {is_held_out(project, kind_that_begins(MAILS[0]), percent)}
        seen |= found
    assert seen == {True, False}


def test_what_is_examined_is_known_by_scenario_and_by_words_that_are_alike() -> None:
    examined = [
        NewExamTask(instruction="say hello to iris", scenario="greet"),
        NewExamTask(instruction="archive all my mails from iris"),
    ]
    held = HeldOutTasks(HeldOut(project_id=PROJECT, percent=0, tasks=examined))
    assert task("whatever", "greet") in held
    assert task("say hello to omar") in held, "it lacks the scenario"
    assert task("say hello to omar", "politeness") not in held
    assert task("Archive every one of my mails from Iris, please") in held
    assert task("Archive every one of my mails from Iris, please", "filing") in held
    assert task("archive all my mails from omar") in held
    assert task("archive all my mails from omar", "filing") not in held
    assert task("archive all my mails to iris") not in held


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    settings = on_this_machine(tiny, tmp_path, database_url, prompt_profile="compact")
    return await TrainingProject.open(committed, settings)


async def serve(shop: TrainingProject, instructions: Sequence[str]) -> None:
    """Tasks without a scenario: every other one succeeded, and no two answers are equal."""
    tokenizer = ChatTokenizer.load(shop.settings.model_dir)
    async with shop.sessions.begin() as session:
        served = ServedProject(session, await projects.by_id(session, shop.project_id), tokenizer)
        for number, instruction in enumerate(instructions):
            row = await served.task(float(number % 2), scenario=None, instruction=instruction)
            calls = (Call(seq=0, turn=0, api=f"files.{instruction.split()[0]}", arguments={}),)
            await served.rollout(row, served.turn(f"print({number * 11})", calls=calls), answer="done")


async def test_what_is_held_out_stays_so_without_the_task_that_named_it(shop: TrainingProject) -> None:
    """Its instructions are one kind, however many there are."""
    async with shop.sessions.begin() as session:
        await projects.change_settings(session, shop.project_id, {"holdout_percent": 50})
    families = [[f"verb{number} all letters from {name}" for name in NAMES[:7]] for number in range(100)]
    family = next(
        each
        for each in families
        if [is_held_out(shop.project_id, kind_that_begins(text), 50) for text in each[:2]] == [True, False]
    )
    await serve(shop, family)
    job = await shop.job(kind="logged", steps=1, pairs=2)
    await with_own_exam(job, shop.sessions)
    async with shop.sessions.begin() as session:
        await session.execute(delete(tables.Task).where(tables.Task.instruction == family[0]))
    await with_own_exam(job, shop.sessions)
    async with shop.sessions() as session:
        exam = await exams.get(session, shop.project_id, "own-work")
        size = (await exams.of(session, [exam.id]))[exam.id]
        held = await read_held_out(session, shop.project_id)
    assert (size.kinds, size.scenarios, size.tasks) == (1, 1, 3)
    assert all(task(text) in held for text in family[1:])


async def test_a_run_learns_from_none_that_is_like_what_is_examined(shop: TrainingProject) -> None:
    """Of two families of unlabelled tasks the hash holds out one."""
    async with shop.sessions.begin() as session:
        await projects.change_settings(session, shop.project_id, {"holdout_percent": 50})
    families = [[f"verb{number} all letters from {name}" for name in NAMES] for number in range(30)]
    by_hash = {is_held_out(shop.project_id, kind_that_begins(each[0]), 50): each for each in families}
    await serve(shop, [*by_hash[True], *by_hash[False]])
    job = await shop.job(kind="logged", steps=1, pairs=2)
    await with_own_exam(job, shop.sessions)
    async with shop.sessions() as session:
        exam = await exams.get(session, shop.project_id, "own-work")
        examined = {each.instruction for each in await exams.tasks_of(session, exam.id)}
    assert len(examined) == 6  # two sets of tasks
    assert examined < set(by_hash[True])
    result = await train(job, ProgressRecorder())
    assert result.data["dropped"]["held_out"] == len(NAMES)
    assert result.data["trajectories"] == len(NAMES)
