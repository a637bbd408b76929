"""Skills that helped in practice are offered to the project: on probation, best first, and what its API has."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from app.agent.prompts import PROFILES
from app.apis import store as apis
from app.db import tables
from app.db.database import Sessions
from app.db.tables import SkillState
from app.engine.tokenizer import ChatTokenizer
from app.projects import store as projects
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills import store as skills
from app.skills.extract import extract
from app.skills.provenance import manifests_of
from app.skills.store import NewSkill
from tests.support.practice_documents import SENSORS
from tests.support.practised_project import practised_project
from tests.support.tiny_model import write_tokenizer
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.environment import Scenario
from trainer.practice.environments import PracticeEnvironment, practice_on
from trainer.practice.experts import load_expert
from trainer.rollouts.episode import Episode, ExpertContext
from trainer.rollouts.groups import ChainRollout
from trainer.runs.practice import PractisedSkills, offer_skills

FLAWLESS = {"inline": 0.0, "mistake": 0.0, "trust": 0.0, "crowded": 0.0, "withheld": 0.0}


@pytest.fixture(scope="module")
async def rollouts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[ChainRollout]]:
    """Chains of three tasks; what the first writes, the others use."""
    path = tmp_path_factory.mktemp("policy")
    (path / "config.json").write_text(
        json.dumps({"vocab_size": write_tokenizer(path), "max_position_embeddings": 65_536})
    )
    environment = PracticeEnvironment(practice_on("sensors", SENSORS))
    async with ForkedSandbox() as sandbox:
        context = ExpertContext(
            environment=environment,
            tokenizer=ChatTokenizer.load(path),
            profile=PROFILES["brief"],
            sandbox=sandbox,
            seed=1,
        )
        async with load_expert(context, **FLAWLESS) as expert:
            yield [
                _rollout(environment, each, await expert.play(each, 0.0))
                for each in environment.scenarios("train", 12, seed=3)
            ]


def _rollout(environment: PracticeEnvironment, scenario: Scenario, episodes: Sequence[Episode]) -> ChainRollout:
    """As rollouts that are held to manifests."""
    catalog = environment.catalog(environment.place(scenario.tasks[0].variables["world"])[0])
    held = [
        msgspec.structs.replace(each, manifests=manifests_of(extract(each.trajectory), each.trajectory, catalog))
        for each in episodes
    ]
    return ChainRollout(scenario, tuple(held), ())


@pytest.fixture
async def project(committed: Sessions, database_url: str, tmp_path: Path) -> TrainingProject:
    return await practised_project(committed, database_url, tmp_path)


async def stored(project: TrainingProject) -> list[tables.Skill]:
    async with project.sessions() as session:
        ids = [
            each.id
            for each in (await skills.page(session, skills.SkillFilter(project_id=project.project_id))).items
        ]
        return list(await skills.of_ids(session, ids))


def test_those_that_two_further_tasks_were_solved_with_are_the_best_ones(
    rollouts: list[ChainRollout], tmp_path: Path
) -> None:
    found = PractisedSkills(tmp_path / "skills")
    found.add(rollouts)
    best = found.best()
    assert best
    assert len({each.name for each in best}) == len(best)
    assert all(each.manifest and each.apis and each.slots is not None for each in best)
    for number, each in enumerate(rollouts):
        short = PractisedSkills(tmp_path / f"{number}")
        short.add([msgspec.structs.replace(each, episodes=each.episodes[:2])])
        assert short.best() == [], "one further task is not enough"
    again = PractisedSkills(tmp_path / "skills")
    again.add(rollouts)
    assert again.best() == best, "kept between attempts, and counted once"


def test_a_task_that_failed_shows_nothing(rollouts: list[ChainRollout], tmp_path: Path) -> None:
    found = PractisedSkills(tmp_path / "skills")
    for each in rollouts:
        first, *later = each.episodes
        failed = [
            msgspec.structs.replace(one, verdict=msgspec.structs.replace(one.verdict, passed=0)) for one in later
        ]
        found.add([msgspec.structs.replace(each, episodes=(first, *failed))])
    assert found.best() == []


async def test_they_are_on_probation_and_marked_and_offered_once(
    project: TrainingProject, rollouts: list[ChainRollout], tmp_path: Path
) -> None:
    job, found = (
        await project.job(kind="practice", environment="practice?api=sensors"),
        PractisedSkills(tmp_path / "skills"),
    )
    found.add(rollouts)
    added = await offer_skills(job, ProgressRecorder(), project.sessions, found, "passed")
    assert [each["name"] for each in added] == [each.name for each in found.best()][:20]
    rows = await stored(project)
    assert {(row.state, row.moved_by, row.task_id, row.principal) for row in rows} == {
        (SkillState.PROBATION, "practice", None, "")
    }
    assert all(
        each.startswith("sensors.") or each == "supervisor.complete_task" for row in rows for each in row.apis
    )
    assert await offer_skills(job, ProgressRecorder(), project.sessions, found, "passed") == added
    assert len(await stored(project)) == len(rows)


async def test_nothing_is_offered_of_a_candidate_that_was_rejected(
    project: TrainingProject, rollouts: list[ChainRollout], tmp_path: Path
) -> None:
    found = PractisedSkills(tmp_path / "skills")
    found.add(rollouts)
    assert found.best()
    job = await project.job(kind="practice", environment="practice?api=sensors")
    assert await offer_skills(job, ProgressRecorder(), project.sessions, found, "rejected") == []
    assert await stored(project) == []


async def test_what_the_api_no_longer_has_is_not_offered(
    project: TrainingProject, rollouts: list[ChainRollout], tmp_path: Path
) -> None:
    job, found = (
        await project.job(kind="practice", environment="practice?api=sensors"),
        PractisedSkills(tmp_path / "skills"),
    )
    found.add(rollouts)
    reads_only = {
        path: {method: each for method, each in item.items() if method in ("get", "parameters")}
        for path, item in SENSORS["paths"].items()
    }
    document = {**SENSORS, "paths": {path: item for path, item in reads_only.items() if "get" in item}}
    async with project.sessions.begin() as session:
        await apis.put(
            session,
            project.project_id,
            "sensors",
            source="upload",
            document=document,
            digest="2",
            server="http://s.test",
        )
    added = await offer_skills(job, ProgressRecorder(), project.sessions, found, "passed")
    assert 0 < len(added) < len(found.best())
    for row in await stored(project):
        assert {"sensors.sensors_list", "sensors.sensors_show", "supervisor.complete_task"} >= set(row.apis)


async def test_there_are_twenty_at_most_and_a_project_that_reviews_skills_reviews_them(
    project: TrainingProject, rollouts: list[ChainRollout], tmp_path: Path
) -> None:
    found = PractisedSkills(tmp_path / "skills")
    found.add(rollouts)
    one = found.best()[0]
    many = [msgspec.structs.replace(one, name=f"{one.name}_{number}") for number in range(30)]

    class Many(PractisedSkills):
        def best(self) -> list[NewSkill]:
            return many

    async with project.sessions.begin() as session:
        row = await projects.by_id(session, project.project_id)
        row.settings = {**row.settings, "skills": "review"}
    job = await project.job(kind="practice", environment="practice?api=sensors")
    added = await offer_skills(job, ProgressRecorder(), project.sessions, Many(tmp_path / "many"), "waiting")
    assert [each["name"] for each in added] == [each.name for each in many[:20]]
    assert {each.state for each in await stored(project)} == {SkillState.QUARANTINED}
