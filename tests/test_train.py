"""Whole runs, from experience to gate: what do they leave, and what if they are interrupted?"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from app.db.database import Sessions
from app.db.models import ReleaseState
from app.records import Probe
from app.settings import Settings
from tests.sleepy_server import sleepy_server
from tests.tiny_model import make_model_dir
from tests.whole_run import Hearer, Shop, chats, interrupted
from trainer.learning.publishing import check_adapter
from trainer.runs.train import carry_out

LOGGED = {"kind": "logged", "steps": 3, "pairs": 1}
SFT = {"kind": "sft", "steps": 3, "micro_batch_tokens": 128}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture
async def shop(committed: Sessions, database_url: str, tiny: Path, tmp_path: Path) -> Shop:
    settings = Settings(model=str(tiny), data_dir=tmp_path, database_url=database_url, engine_device="cpu")
    return await Shop.open(committed, settings)


async def test_a_logged_run_leaves_an_adapter_and_a_candidate_that_says_what_to_do(shop: Shop) -> None:
    await shop.serve(1.0, 0.0, 0.5, scenarios=3)
    await shop.serve(None, 1.0, scenarios=1)
    job, hearer = await shop.job(**LOGGED), Hearer()
    result = await carry_out(job, hearer)
    assert (sorted(hearer.metrics), hearer.total) == ([1, 2, 3], 3)
    assert {"outcome", "kept", "staleness", "grad_norm", "ratio_mean", "kl_to_start"} <= hearer.metrics[3].keys()
    assert (result.data["trajectories"], result.data["dropped"]) == (10, {"unscored": 1})
    [row] = await shop.adapters()
    assert (row.hash, row.base, row.rank, row.run_id) == (result.adapter, shop.settings.model, 4, job.id)
    assert check_adapter(shop.settings.data_dir / "adapters" / row.hash)
    assert msgspec.convert(row.probe, Probe).points
    [release] = await shop.of_run(job)
    assert (release.model, release.state, result.decision) == (row.hash, ReleaseState.CANDIDATE, "waiting")
    assert release.evidence is not None
    assert "name one" in release.evidence["next"]
    assert (await shop.active()).number == 1


async def test_groups_for_which_there_is_no_step_do_not_count_as_learned_from(shop: Shop) -> None:
    await shop.serve(1.0, 0.0, scenarios=5)
    hearer = Hearer()
    data = (await carry_out(await shop.job(**(LOGGED | {"steps": 2})), hearer)).data
    assert (data["groups"], data["trajectories"], data["dropped"]) == (2, 4, {"beyond_steps": 6})
    assert (hearer.total, hearer.metrics[1]["kept_fraction"], data["fraction"]) == (2, 0.4, 0.4)
    assert data["tokens"] == sum(hearer.metrics[index]["tokens"] for index in (1, 2))


async def test_a_supervised_run_learns_from_a_file(shop: Shop, tmp_path: Path) -> None:
    job, hearer = await shop.job(**SFT, data=chats(tmp_path / "chats.jsonl")), Hearer()
    result = await carry_out(job, hearer)
    assert (sorted(hearer.metrics), result.data["conversations"]) == ([1, 2, 3], 6)
    [row] = await shop.adapters()
    assert row.hash == result.adapter
    assert msgspec.convert(row.probe, Probe).points
    [release] = await shop.of_run(job)
    assert (release.id, release.model) == (result.release_id, result.adapter)


@pytest.mark.parametrize(("settings", "left"), [(LOGGED, [3]), (SFT, [1, 2, 3])], ids=["logged", "sft"])
async def test_a_run_that_was_interrupted_ends_with_the_adapter_of_one_that_was_not(
    shop: Shop, settings: dict[str, Any], left: list[int]
) -> None:
    await shop.serve(1.0, 0.0, scenarios=3)
    straight = await carry_out(await shop.job(**settings), Hearer())
    job, again = await shop.job(**settings), Hearer()
    await interrupted(job, at=2)
    await shop.serve(1.0, 0.0)  # for the next run
    if settings is LOGGED:  # it began with the weights that served then
        await shop.activate("another")
    assert (await carry_out(job, again)).adapter == straight.adapter
    assert sorted(again.metrics) == left


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_run_that_practises_goes_on_where_it_stopped_and_sits_the_exam(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    """The seed policy in the office; whether it gets better in two tiny steps is not the question."""
    with sleepy_server() as server:
        settings = Settings(
            data_dir=tmp_path,
            database_url=database_url,
            engine_device="cpu",
            engine_urls=server.url,
            engine_sleep="update",
        )
        await _practise_and_sit(await Shop.open(committed, settings), tmp_path)
        assert server.asked == ["/sleep?level=1&mode=keep", "/wake_up"] * 2, "for each update, not for rollouts"


async def _practise_and_sit(shop: Shop, directory: Path) -> None:
    practice = {
        "kind": "rollout",
        "environment": "office",
        "steps": 2,
        "pairs": 3,
        "group": 4,
        "gate_scenarios": 30,
    }
    job, hearer = await shop.job(**practice), Hearer()
    await interrupted(job, at=1)
    assert await shop.of_run(job) == []
    result = await carry_out(job, hearer)
    assert (sorted(hearer.metrics), hearer.total) == ([2], 2)
    assert {"reward_1", "reward_2", "write_rate", "rollout_tokens_per_second"} <= hearer.metrics[2].keys()
    [row] = await shop.adapters()
    assert (row.hash, row.base, row.run_id) == (result.adapter, "seed", job.id)
    assert len(msgspec.convert(row.probe, Probe).points) == 8
    assert check_adapter(directory / "adapters" / row.hash)
    [release] = await shop.of_run(job)
    assert release.evidence is not None
    passed = release.evidence["verdict"] == "promote"
    assert release.state is (ReleaseState.PASSED if passed else ReleaseState.REJECTED)
    assert (await shop.active()).number == 1
    assert release.evidence["candidate"]["scenarios"] == release.evidence["incumbent"]["scenarios"] == 30
    assert len(json.loads((job.directory / "gate.json").read_text())["candidate"]) == 90
