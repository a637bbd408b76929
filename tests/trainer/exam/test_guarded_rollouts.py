"""Skills may do in exams what they may do when they are served: real sandbox and API, a scripted policy."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from app.apis.calls.skill_guard import AllowedOperation, SkillManifest
from app.db import tables
from app.db.tables import ExamSource
from app.projects import store as projects
from app.releases.exams import store as exams
from app.skills import store as skills
from app.skills.in_memory_library import GrownSkill
from tests.support.examined import examined
from tests.support.ledger_project import LedgerProject
from tests.support.rows import new_skill
from tests.support.scripted_engine import ScriptedEngine, block
from trainer.runs.candidate import grown_skills

ASKED = "write hello into the ledger"
CHECK = "score = float(any(entry['text'] == 'hello' for entry in apis.ledger.list_entries()))"
COMPLETE = "apis.supervisor.complete_task()"
NOTE = "def note(text):\n    apis.ledger.add_entry(text=text)"
CALLS_NOTE = f"note('hello')\n{COMPLETE}"
WRITES = {"ledger.add_entry": AllowedOperation(arguments={"text": ["parameter"]})}
READS = {"ledger.list_entries": AllowedOperation()}


async def serve(project: LedgerProject, code: str) -> tables.Task:
    """One task, which is what the exam `mine` asks for."""
    async with project.runner(ScriptedEngine(project.tokenizer, script=lambda *_: block(code))):
        task = await project.ended(await project.submit(ASKED, scenario="write", check_code=CHECK))
    async with project.sessions.begin() as session:
        await exams.put(session, project.id, "mine", ExamSource.LOG, await exams.from_log(session, project.id))
    return task


async def keep(project: LedgerProject, manifest: dict[str, AllowedOperation], **more: Any) -> list[GrownSkill]:
    """The skills that an exam begins with: `note` alone."""
    new = msgspec.structs.replace(
        new_skill("note", NOTE),
        signature="note(text)",
        instruction=ASKED,
        apis=["ledger.add_entry"],
        manifest=msgspec.to_builtins(SkillManifest(manifest)),
        **more,
    )
    async with project.sessions.begin() as session:
        await skills.add(session, project.id, new)
    return await grown_skills(project.sessions, project.id)


async def tried(project: LedgerProject, grown: Sequence[GrownSkill]) -> tuple[int, bool]:
    """Uses of skills in a trial of the exam, and whether it succeeded."""
    [result] = await examined(project, "recorded", lambda *_: block(CALLS_NOTE), grown=grown)
    return result.used, result.success


@pytest.mark.parametrize(("manifest", "expected"), [(WRITES, (1, True)), (READS, (0, False))])
async def test_what_serving_would_refuse_fails_in_an_exam(
    project: LedgerProject, manifest: dict[str, AllowedOperation], expected: tuple[int, bool]
) -> None:
    await serve(project, f"apis.ledger.add_entry(text='hello')\n{COMPLETE}")
    assert await tried(project, await keep(project, manifest)) == expected


@pytest.mark.parametrize(
    ("score", "policy", "proven"), [(1.0, "evidence", True), (0.0, "evidence", False), (1.0, "open", False)]
)
async def test_a_skill_whose_tasks_succeeded_has_proved_itself_unless_all_are_offered_at_once(
    project: LedgerProject, score: float, policy: str, proven: bool
) -> None:
    code = "apis.ledger.add_entry(text='hello')\n" if score else ""
    task = await serve(project, f"{code}{COMPLETE}")
    assert task.score == score
    async with project.sessions.begin() as session:
        await projects.change_settings(session, project.id, {"skills": policy})
    [found] = await keep(project, WRITES, task_id=task.id)
    assert (found.manifest, found.proven) == (SkillManifest(WRITES), proven)
