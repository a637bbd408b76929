"""An environment of another package trains a policy and decides about it, without a change to this one."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from app.base import plugins
from app.base.errors import InvalidError
from app.base.settings import Settings
from app.db.database import Sessions
from app.db.tables import ReleaseState
from tests.support.tiny_model import make_model_dir
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.environment import GROUP, open_environment
from trainer.run import train
from trainer.sage.reward import ChainStep, Reward

MODULE = "tests.support.counting_environment.counting"
RUN = {
    "kind": "rollout",
    "environment": f"{MODULE}:load_environment?tasks=2",
    "reward": "tests.trainer.test_environment_plugins:score_alone",
    "steps": 2,
    "pairs": 2,
    "group": 4,
    "gate_scenarios": 30,
    "skills": False,
}


def score_alone(chain: Sequence[ChainStep]) -> list[Reward]:
    """The verifier's score, also for a policy that never writes code, as one with random weights."""
    return [Reward(step.score) for step in chain]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata that an installed package leaves."""
    info = tmp_path / "counting_environment-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-environment\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ncounting = {MODULE}:load_environment\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_an_installed_environment_is_found_by_its_name_and_unknown_names_list_it() -> None:
    assert len(open_environment("counting?tasks=5").scenarios("test", 1, 0)[0].tasks) == 5
    with pytest.raises(InvalidError, match=f"has no 'shop', it has {', '.join(plugins.names(GROUP))}"):
        open_environment("shop")
    assert "counting" in plugins.names(GROUP)


@pytest.mark.slow
async def test_an_environment_named_by_its_module_trains_a_policy_and_gates_it(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    settings = Settings(
        model=str(make_model_dir(tmp_path / "tiny", spread=0.05)),
        prompt_profile="compact",
        retrieval="query_ngram",
        data_dir=tmp_path,
        database_url=database_url,
        engine_device="cpu",
        max_turns=1,
        max_turn_tokens=16,
    )
    shop, recorder = await TrainingProject.open(committed, settings), ProgressRecorder()
    job = await shop.job(**RUN)
    result = await train(job, recorder)
    assert (sorted(recorder.metrics), recorder.total) == ([1, 2], 2)
    trained = [metrics["trained_fraction"] for metrics in recorder.metrics.values()]
    assert any(trained), "no rollout had a learning signal"
    [adapter] = await shop.adapters()
    assert adapter.hash == result.adapter
    [release] = await shop.of_run(job)
    assert release.evidence is not None
    assert release.evidence["environment"] == RUN["environment"]
    assert release.state in {ReleaseState.PASSED, ReleaseState.REJECTED}
    figures = json.loads((job.directory / "gate.json").read_text())
    assert [each["template"] for each in figures["candidate"]] == ["validation"] * 60
