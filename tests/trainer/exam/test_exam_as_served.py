"""A gate examines a candidate as it will serve: beside the skills of the project, found as tasks find them."""

import json
from pathlib import Path

import msgspec
import pytest
import torch

from app.base.errors import EngineError
from app.base.settings import Settings
from app.db.database import Sessions
from app.db.tables import ExamSource
from app.engine.client import HttpEngine
from app.engine.tokenizer import ChatTokenizer
from app.releases.exams import store as exams
from app.skills import moves
from app.skills import store as skills
from tests.support.counting_environment import counting
from tests.support.rows import new_skill
from tests.support.scripted_engine import ScriptedEngine, block
from tests.support.scripted_server import scripted_server
from tests.support.tiny_model import make_model_dir
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.run import train

PRACTICE = f"{counting.__name__}:load_environment?tasks=1"
GREET = "say hello to number 7"
COUNT = f"write some of {counting.CHARACTERS['validation']} in groups of 7"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Its context has room for skills."""
    torch.set_num_threads(1)
    model = make_model_dir(tmp_path / "tiny", spread=0.05)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return model


async def keep_skills(shop: TrainingProject, instruction: str) -> None:
    """Two that fit the instruction, of which one is retired, and one that fits another."""
    kept = [("fitting", instruction), ("retired", instruction), ("other", "archive every mail that I have read")]
    async with shop.sessions.begin() as session:
        for name, asked in kept:
            new = new_skill(name, f"def {name}(): ...")
            new = msgspec.structs.replace(new, apis=[], instruction=asked, slots=["7"])
            row = await skills.add(session, shop.project_id, new)
            if name == "retired":
                await moves.retire(session, row.id, "key test")


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "instruction"), [("exam?name=mine", GREET), (PRACTICE, COUNT)])
async def test_its_prompts_offer_the_skills_that_tasks_would_be_offered(
    committed: Sessions, database_url: str, model: Path, tmp_path: Path, environment: str, instruction: str
) -> None:
    answer, failures = block("apis.supervisor.complete_task(answer='hello')"), iter([EngineError("it broke off")])
    engine = ScriptedEngine(ChatTokenizer.load(model), script=lambda *_: next(failures, answer))
    async with scripted_server(engine) as url:
        settings = Settings(
            model=str(model),
            data_dir=tmp_path,
            database_url=database_url,
            engine_device="cpu",
            rollout_engine_urls=url,
            max_turns=1,
            temperature=0.5,
            retrieval="query_ngram",
            prompt_profile="compact",
        )
        shop = await TrainingProject.open(committed, settings)
        await shop.serve(1.0, 0.0, scenarios=34)
        async with shop.sessions.begin() as session:
            kinds = [f"kind {number}" for number in range(30)]
            logged = await exams.from_log(session, shop.project_id, scenarios=kinds, tasks_each=1)
            await exams.put(session, shop.project_id, "mine", ExamSource.LOG, logged)
        await keep_skills(shop, instruction)
        job = await shop.job(kind="logged", steps=1, pairs=2, gate_scenarios=30, environment=environment)
        result = await train(job, ProgressRecorder())
        async with HttpEngine([url]) as servers:
            assert await servers.loaded() == ["base"]
    evaluation = result.evidence["evaluation"]
    assert (evaluation["retrieval"], evaluation["skills_before"]) == ("query_ngram", 2)
    assert evaluation["temperature"] == 0.5
    assert result.evidence["candidate"]["scenarios"] == 30
    assert sorted(set(engine.models)) == sorted(["base", result.adapter])
    assert len(engine.prompts) == 2 * 30 + 1  # the one that failed was asked again
    assert all("fitting() -> None" in prompt for prompt in engine.prompts)
    assert not any("retired" in prompt or "other() -> None" in prompt for prompt in engine.prompts)
