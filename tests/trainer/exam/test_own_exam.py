"""A project's served tasks are tried again on their recorded calls, and decide about candidates."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from app.base.errors import InvalidError
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.db.database import Sessions
from app.db.tables import ExamSource
from app.projects import store as projects
from app.projects.kinds import is_held_out
from app.releases.exams import store as exams
from app.skills import moves
from app.skills import store as skills
from tests.support.examined import examined
from tests.support.ledger_project import LedgerProject, change_ledger
from tests.support.rows import new_skill
from tests.support.scripted_engine import Script, ScriptedEngine, block
from tests.support.served_project import minute
from tests.support.training_project import ONE_TURN, ProgressRecorder, TrainingProject, on_this_machine
from trainer.evaluation.metrics import TaskResult
from trainer.rollouts.episode import scenario_chain
from trainer.run import train
from trainer.run_job import Job
from trainer.runs.candidate import grown_skills
from trainer.runs.environment import open_run_environment, too_little_own_work, with_own_exam

CHECK = "score = float(any(entry['text'] == '{0}' for entry in apis.ledger.list_entries()))"
WRITE = "apis.ledger.add_entry(text='{0}')"
COMPLETE = "apis.supervisor.complete_task()"
ALL_KINDS = 100


def script(*lines: str) -> Script:
    """Writes the word of the instruction, and completes the task."""

    def answer(prompt: str, turn: int) -> str:  # noqa: ARG001
        word = prompt.rpartition("write ")[2].split()[0]
        return block("\n".join(lines).format(word))

    return answer


async def served(project: LedgerProject, *words: str, how: Script, check: str = CHECK) -> None:
    """Tasks that ran, with their score."""
    async with project.runner(ScriptedEngine(project.tokenizer, script=how)):
        for word in words:
            task_id = await project.submit(
                f"write {word} into the ledger", scenario=word, check_code=check.format(word)
            )
            await project.ended(task_id)


async def tried(project: LedgerProject, how: Script) -> list[TaskResult]:
    """Every task of an exam from the log, by another policy."""
    async with project.sessions.begin() as session:
        chosen = await exams.from_log(session, project.id)
        await exams.put(session, project.id, "mine", ExamSource.LOG, chosen)
    return await examined(project, "recorded", how, probe=True)


EXPERT = script("apis.ledger.list_entries()", WRITE, COMPLETE)


@pytest.mark.parametrize(
    ("how", "known", "success"),
    [
        (EXPERT, True, True),
        (script(WRITE, COMPLETE), True, True),  # the look first was not needed
        (script(COMPLETE), True, False),
        (script("print(1)"), True, False),  # it never completes the task
        (script("apis.ledger.list_entries(page=7)", WRITE, COMPLETE), False, False),
        (script("apis.ledger.add_entry(text='no, not {0}')", COMPLETE), False, False),
        (script(WRITE, WRITE, COMPLETE), False, False),
    ],
)
async def test_a_trial_is_right_or_wrong_or_unknown_and_reaches_no_api(
    project: LedgerProject, how: Script, known: bool, success: bool
) -> None:
    await served(project, "hello", "again", how=EXPERT)
    entries, reads = list(project.ledger.entries), project.ledger.reads
    results = await tried(project, how)
    assert [(each.known, each.success) for each in results] == [(known, success)] * 2
    assert (project.ledger.entries, project.ledger.reads) == (entries, reads)


async def test_a_task_that_failed_shows_nothing_and_is_left_out(project: LedgerProject) -> None:
    await served(project, "hello", how=EXPERT)
    await served(project, "nothing", how=script(COMPLETE), check="score = 0.0")
    assert [each.scenario for each in await tried(project, EXPERT)] == ["hello"]


async def test_a_record_of_operations_that_have_changed_is_left_out(project: LedgerProject) -> None:
    await served(project, "hello", how=EXPERT)
    look = script("apis.ledger.list_entries()", "apis.supervisor.complete_task(answer='seen')")
    await served(project, "looked", how=look, check="score = float(answer == 'seen')")
    await change_ledger(project, "write one entry", "write an entry")
    assert {each.scenario for each in await tried(project, EXPERT)} == {"hello", "looked"}
    await change_ledger(project, "add_entry", "write_entry")
    await served(project, "again", how=script("apis.ledger.write_entry(text='{0}')", COMPLETE))
    assert {each.scenario for each in await tried(project, EXPERT)} == {"looked", "again"}


async def test_a_check_of_the_answer_alone_accepts_another_answer(project: LedgerProject) -> None:
    answered = "apis.supervisor.complete_task(answer={0})"
    await served(
        project, "hello", how=script(answered.replace("{0}", "3")), check="score = float(answer in (3, '3'))"
    )
    [result] = await tried(project, script(answered.replace("{0}", "'3'")))
    assert (result.known, result.success) == (True, True)
    [wrong] = await tried(project, script(answered.replace("{0}", "4")))
    assert (wrong.known, wrong.success) == (True, False)


async def test_an_unknown_exam_says_how_to_make_one(project: LedgerProject) -> None:
    job = Job(
        id=project.id,
        project_id=project.id,
        project="demo",
        settings=RunSettings(environment="exam"),
        directory=Path(),
        deployment=Settings(),
    )
    with pytest.raises(InvalidError, match="the project demo has no exam 'own-work': set holdout_percent"):
        async with open_run_environment(job, project.sessions, ProgressRecorder()):
            raise AssertionError


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> TrainingProject:
    settings = on_this_machine(tiny, tmp_path, database_url, **ONE_TURN)
    return await TrainingProject.open(committed, settings)


async def hold_out(shop: TrainingProject, percent: float) -> set[str]:
    """The kinds that are held out."""
    async with shop.sessions.begin() as session:
        await projects.change_settings(session, shop.project_id, {"holdout_percent": percent})
    kinds = (f"kind {number}" for number in range(ALL_KINDS))
    return {kind for kind in kinds if is_held_out(shop.project_id, kind, percent)}


async def test_without_a_word_a_run_is_examined_on_what_the_project_holds_out(shop: TrainingProject) -> None:
    kinds = await hold_out(shop, 50)
    await shop.serve(1.0, 0.0, scenarios=ALL_KINDS)
    job = await shop.job(kind="logged", steps=1, pairs=2, gate_scenarios=30)
    result = await train(job, ProgressRecorder())
    assert result.data["dropped"]["held_out"] == 2 * len(kinds)
    evaluation = result.evidence["evaluation"]
    async with shop.sessions() as session:
        exam = await exams.get(session, shop.project_id, "own-work")
    assert evaluation["exam"] == {
        "name": "own-work",
        "version": 1,
        "digest": exam.digest,
        "learned": 0,
        "on": "recorded",
        "kinds": len(kinds),
        "kinds_left_out": 0,
        "scenarios": len(kinds),
        "scenarios_left_out": 0,
        "tasks_left_out": len(kinds),  # they failed, and so show nothing
        "true_whatever_happens": 0,
    }
    assert evaluation["coverage"] == 1
    assert result.decision == "waiting"  # it tried: this policy can solve none
    assert result.reason.startswith("no release solved a task of the exam, so it compares nothing")


async def test_the_library_of_the_exam_is_what_tasks_are_offered_now(shop: TrainingProject) -> None:
    async with shop.sessions.begin() as session:
        [first, _, other, _] = [
            await skills.add(session, shop.project_id, msgspec.structs.replace(new_skill(name, source), apis=apis))
            for name, source, apis in (
                ("greet", "def greet(): return 1", []),
                ("greet", "def greet(): return 2", []),
                ("wave", "def wave(): ...", []),
                ("call", "def call(): ...", ["phone.dial_that_is_gone"]),
            )
        ]
        await moves.retire(session, other.id, "key test")
    found = await grown_skills(shop.sessions, shop.project_id)
    offers = [each.indexed.offer for each in found]
    assert [(each.name, each.version, each.source) for each in offers] == [("greet", 2, "def greet(): return 2")]
    assert first.version == 1


async def test_an_exam_of_which_most_was_not_solved_decides_nothing(shop: TrainingProject) -> None:
    """Of its scenarios, as many as the gate needs were solved."""
    await hold_out(shop, 50)
    kinds = [kind for kind in map(str, range(300)) if is_held_out(shop.project_id, kind, 50)]
    for number, kind in enumerate(kinds[:70]):
        await shop.serve(float(number < 32), scenarios=1, scenario=kind)
    asked = await shop.job(kind="logged", steps=1, gate_scenarios=200, environment="exam?name=own-work")
    job = await with_own_exam(asked, shop.sessions)
    async with open_run_environment(job, shop.sessions, ProgressRecorder()) as found:
        assert found is not None
        exam = found.about["exam"]
    assert (exam["scenarios"], exam["scenarios_left_out"], exam["tasks_left_out"]) == (70, 38, 38)
    unasked = await shop.job(kind="logged", steps=1, gate_scenarios=200)
    assert await with_own_exam(unasked, shop.sessions) == unasked
    assert await too_little_own_work(unasked, shop.sessions) == (
        "of its own work that is held out, tasks of only 32 of the 70 kinds were solved"
    )


async def test_an_exam_that_is_too_small_decides_nothing(shop: TrainingProject) -> None:
    held = await hold_out(shop, 30)
    others = {f"kind {number}" for number in range(ALL_KINDS)} - held
    for kind in [*sorted(held)[:3], *sorted(others)[:2]]:
        await shop.serve(1.0, 0.0, scenarios=1, scenario=kind, instruction=f"count {kind}")
    quiet = await train(await shop.job(kind="logged", steps=1, gate_scenarios=30), ProgressRecorder())
    assert quiet.decision == "waiting"
    assert quiet.evidence["reason"].startswith(
        "the run names no environment to evaluate it in, and its own work that"
    )
    assert quiet.evidence["reason"].endswith("scenarios of the 30 that are needed")
    asked = await shop.job(kind="logged", steps=1, gate_scenarios=30, environment="exam?name=own-work")
    waits = await train(asked, ProgressRecorder())
    assert waits.decision == "waiting"
    assert "scenarios to examine on, 30 are needed" in waits.evidence["reason"]


async def test_few_kinds_are_examined_in_sets_of_three_of_their_tasks(shop: TrainingProject) -> None:
    """Beyond the first set, only what was solved is worth a place."""
    await hold_out(shop, 50)
    *kinds, failed = [kind for kind in map(str, range(100)) if is_held_out(shop.project_id, kind, 50)][:13]
    for kind in kinds:
        await shop.serve(*[1.0] * 10, 0.0, 0.0, scenarios=1, scenario=kind, instruction=f"count {kind}")
    await shop.serve(*[0.0] * 9, scenarios=1, scenario=failed)
    job = await with_own_exam(await shop.job(kind="logged", steps=1), shop.sessions)
    assert job.settings.environment == "exam?name=own-work"
    async with open_run_environment(job, shop.sessions, ProgressRecorder()) as found:
        assert found is not None
        scenarios = found.environment.scenarios("test", 200, 0)
        exam = found.about["exam"]
    assert (exam["kinds"], exam["kinds_left_out"]) == (13, 1)
    assert (exam["scenarios"], exam["scenarios_left_out"], exam["tasks_left_out"]) == (37, 1, 3)
    assert {len(each.tasks) for each in scenarios} == {3}
    assert Counter(scenario_chain(each).label for each in scenarios) == Counter(kinds * 3)
    assert len({each.id for each in scenarios}) == 36


@pytest.mark.slow
async def test_beyond_two_hundred_kinds_the_oldest_leave_the_exam(shop: TrainingProject) -> None:
    await hold_out(shop, 50)
    kinds = [kind for kind in map(str, range(500)) if is_held_out(shop.project_id, kind, 50)][:203]
    assert len(kinds) == 203
    for number, kind in enumerate(kinds):
        await shop.serve(1.0, scenarios=1, scenario=kind, finished_at=minute(number))
    await with_own_exam(await shop.job(kind="logged"), shop.sessions)
    async with shop.sessions() as session:
        exam = await exams.get(session, shop.project_id, "own-work")
        members = await exams.tasks_of(session, exam.id)
    assert {each.scenario for each in members} == set(kinds[3:])
