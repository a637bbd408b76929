"""Trials of a policy on the exam `mine` of a project, without a training run."""

from collections.abc import Sequence
from pathlib import Path

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.skills.in_memory_library import GrownSkill, InMemoryLibrary
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import Script, ScriptedEngine
from tests.support.training_project import ProgressRecorder
from trainer.environment import Split
from trainer.evaluation.local import evaluate_scenarios
from trainer.evaluation.metrics import TaskResult
from trainer.rollouts.episode import EpisodeRunner
from trainer.run_job import Job
from trainer.runs.environment import open_run_environment


async def examined(
    project: LedgerProject,
    ground: str,
    script: Script,
    split: Split = "validation",
    *,
    probe: bool = False,  # first leave out what is solved by doing nothing, as a gate does
    progress: ProgressRecorder | None = None,
    grown: Sequence[GrownSkill] | None = None,
) -> list[TaskResult]:
    """Of every task of the split that can be tried on `ground`, beside the skills `grown`.

    Raises as the start of a run does.
    """
    job = Job(
        id=project.id,
        project_id=project.id,
        project="demo",
        settings=RunSettings(environment=f"exam?name=mine&on={ground}", gate_scenarios=200 if probe else 0),
        directory=Path(),
        deployment=Settings(),
    )
    engine = ScriptedEngine(project.tokenizer, script=script)
    agent = Agent(engine, project.tokenizer, Compact(), project.sandbox, RolloutLimits())
    async with open_run_environment(job, project.sessions, progress or ProgressRecorder()) as opened:
        assert opened is not None
        opened = await opened.checked()
        sample = opened.environment.scenarios(split, 200, 1)
        return await evaluate_scenarios(
            EpisodeRunner(agent, opened.environment),
            sample,
            library=grown is not None,
            new_library=lambda: InMemoryLibrary(grown=grown or ()),
        )
