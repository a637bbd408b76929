"""SAGE from end to end with vLLM: rollouts on two replicas, updates, the gate, and the result is served there."""

from pathlib import Path

import httpx

from app.base.model_catalog import SEED
from app.base.settings import Settings
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.engine.client import HttpEngine
from app.projects import audit
from app.releases.promotion import Promoter
from tests.integration.vllm.conftest import Servers
from tests.integration.vllm.live_requests import metric, off_by, sampling, spoken
from tests.integration.vllm.loader_setup import open_loader
from tests.support.training_project import ProgressRecorder, TrainingProject
from trainer.run import train

RUN = {
    "kind": "rollout",
    "environment": "office?busy=0.4",  # so that groups have mixed outcomes
    "steps": 2,
    "pairs": 3,
    "group": 4,
    "gate_scenarios": 4,
    "promote": False,
}


async def generated(servers: Servers) -> list[float]:
    async with httpx.AsyncClient(trust_env=False) as http:
        return [await metric(http, "vllm:generation_tokens_total", url=each.url) for each in servers]


async def test_a_run_with_rollouts_on_vllm_ends_in_a_release_that_vllm_serves(
    servers: Servers, both: HttpEngine, committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    """`ratio_max` is of all sampled tokens: the trainer's probability over vLLM's at sampling."""
    urls = ",".join(each.url for each in servers)
    settings = Settings(
        model=SEED, data_dir=tmp_path, database_url=database_url, engine_device="cpu", rollout_engine_urls=urls
    )
    shop = await TrainingProject.open(committed, settings)
    job, recorder = await shop.job(**RUN), ProgressRecorder()
    before = await generated(servers)
    result = await train(job, recorder)
    assert all(after > earlier + 1000 for earlier, after in zip(before, await generated(servers), strict=True))
    assert sorted(recorder.metrics) == [1, 2]
    for metrics in recorder.metrics.values():
        assert metrics["tokens"] > 100
        assert abs(metrics["ratio_max"] - 1) < 1e-3
    [release] = await shop.of_run(job)
    path = settings.adapters_dir / result.adapter
    promoter = Promoter(committed, open_loader(both, committed, settings.adapters_dir), "")
    served = await promoter.activate(release.id, "key test", allow_rejected=True)
    assert (served.state, (await shop.active()).model) == (ReleaseState.ACTIVE, result.adapter)
    prompt = spoken("archive my mails")
    answer = await both.complete(prompt, model=result.adapter, sampling=sampling(8))
    assert off_by(answer, path, prompt) < 1e-4
    async with committed() as session:
        [entry] = (await audit.page(session, shop.project_id, limit=10)).items
    assert (entry.actor, entry.action) == ("key test", AuditAction.ACTIVATED)
    reports = entry.detail["swap"]["replicas"]
    assert [(each["url"], each["probed"]) for each in reports] == [(each.url, True) for each in servers]
    assert max(each["error"] for each in reports) < 1e-3 < min(each["distance"] for each in reports)
