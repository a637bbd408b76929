"""Runs of kind `logged` and `sft` read what a runner wrote: real sandbox, API, library and tables."""

from app.base.run_settings import RunSettings
from app.base.values import BASE
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import Answer, ScriptedEngine, block
from trainer.experience import read_best, read_logged
from trainer.rewards import BaseModel

SKILL = """
def write_entry(text: str) -> int:
    apis.ledger.list_entries()
    return apis.ledger.add_entry(text=text)["id"]
print(write_entry("{word}"))"""


def writing(prompt: str, turn: int) -> Answer:
    """Write a skill, or use the offered one."""
    if turn > 0:
        return block("apis.supervisor.complete_task()")
    word = prompt.partition("write ")[2].split()[0]
    return block(f"print(write_entry('{word}'))" if "skills:" in prompt else SKILL.format(word=word))


async def test_the_maker_and_the_user_of_a_skill_are_rewarded_for_tasks_that_were_really_served(
    project: LedgerProject,
) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing)):
        alone = [await work(project, score, use_skills=False) for score in (1, 0)]
        helped = [await work(project, score) for score in (1, 0)]
    base = BaseModel("seed", project.tokenizer, BASE)
    async with project.sessions() as session:
        logged = await read_logged(session, project.id, RunSettings(), base)
        best = await read_best(session, project.id, RunSettings(), base)
    found = {each.trajectory.task.id: (each.reward, each.position) for each in logged.steps[0]}
    assert found == {alone[0]: (2.0, 0), alone[1]: (0.0, 0), helped[0]: (2.0, 1), helped[1]: (0.0, 1)}
    assert logged.data.dropped == {}
    assert [each.task.id for each in best.trajectories] == [alone[0], helped[0]]


async def work(project: LedgerProject, score: int, *, use_skills: bool = True) -> object:
    """Run one task to its end, with a check that always gives this score."""
    task_id = await project.submit(
        "write hello into the ledger", check_code=f"score = {score}", use_skills=use_skills
    )
    await project.ended(task_id)
    return task_id
