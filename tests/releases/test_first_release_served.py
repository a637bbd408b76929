"""The adapter that comes with a model on a deployed server: it serves first, and is rolled back to."""

from pathlib import Path

import pytest

from app.db.database import Sessions
from app.projects import keys
from app.releases import store as releases
from tests.releases.test_served_release import Served, served_model_dir, serving
from tests.support.bundled_adapters import bundle, first_release
from tests.support.engine_process import engine_process
from tests.support.named_adapters import make_named


@pytest.mark.slow
async def test_tasks_are_served_with_it_until_another_release_is_activated_and_again_after_a_rollback(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    model_dir = served_model_dir(tmp_path / "model")
    bundled = bundle(model_dir, tmp_path / "package")
    names = {"other": make_named(model_dir, tmp_path / "adapters", 2)}
    async with committed() as session:
        first = first_release(bundled, model_dir, tmp_path, base=str(model_dir))
        project = await first.create_project(session, "demo")
        number_1 = await releases.active(session, project.id)
        _, secret = await keys.create(session, "test", ["admin"])
        await session.commit()
    with engine_process(model_dir, "--embeddings", "none", "--max-loras", "3") as engine:
        async with serving(database_url, engine, model_dir, tmp_path, secret) as client:
            served = Served(client, committed, project.id, names)
            assert await _model_of_a_task(served) == bundled.hash
            assert (await client.post(await served.propose("other"))).status_code == 200
            assert await _model_of_a_task(served) == names["other"]
            rolled_back = await client.post(f"/v1/releases/{number_1.id}/activate")
            assert (rolled_back.status_code, rolled_back.json()["number"]) == (200, 1)
            assert await _model_of_a_task(served) == bundled.hash


async def _model_of_a_task(served: Served) -> str:
    """That its trajectory records."""
    [task] = await served.submit(1)
    ended = await served.ended(task)
    assert ended["state"] == "done"
    record = (await served.client.get(ended["links"]["trajectory"])).json()
    return str(record["policy"]["model"])
