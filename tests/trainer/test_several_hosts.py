"""Training and serving on several hosts that share only the database and the adapter store."""

from pathlib import Path

import msgspec
import pytest

from app.base.errors import AdapterError
from app.base.settings import Settings
from app.base.values import Json
from app.db.database import Sessions
from app.releases.adapter_store import AdapterDirectory, AdapterStore
from tests.releases.test_adapter_store import trained
from tests.support.sleepy_server import sleepy_server
from tests.support.training_project import ProgressRecorder, TrainingProject, chats
from trainer.run import train

SFT = {"kind": "sft", "steps": 2, "micro_batch_tokens": 128}


@pytest.fixture
def first(tiny: Path, database_url: str, tmp_path: Path) -> Settings:
    """A host that trains."""
    return Settings(
        model=str(tiny),
        data_dir=tmp_path / "first",
        database_url=database_url,
        engine_device="cpu",
        adapter_store=str(tmp_path / "store"),
        data_prefixes=str(tmp_path),
    )


async def test_an_adapter_trained_on_one_host_is_served_by_another_and_continued_on_a_third(
    committed: Sessions, first: Settings, tiny: Path, tmp_path: Path
) -> None:
    data = chats(tmp_path / "chats.jsonl")
    project = await TrainingProject.open(committed, first)
    made = await train(await project.job(**SFT, data=data), ProgressRecorder())
    serving = AdapterDirectory(
        tmp_path / "second", tiny, AdapterStore(tmp_path / "second", first.adapter_store), base=first.model
    )
    assert (await serving.verified(made.adapter)).path == tmp_path / "second" / made.adapter
    await project.activate(made.adapter)
    third = msgspec.structs.replace(first, data_dir=tmp_path / "third")
    next_one = await train(
        await TrainingProject(committed, third, project.project_id).job(**SFT, data=data), ProgressRecorder()
    )
    assert next_one.adapter != made.adapter
    assert (third.adapters_dir / made.adapter).is_dir(), "where its run began"
    with pytest.raises(AdapterError, match="there is no adapter"):
        await AdapterDirectory(tmp_path / "fourth", tiny).verified(made.adapter)


async def test_an_adapter_copied_to_one_host_can_be_shared_with_all(tmp_path: Path) -> None:
    name = trained(tmp_path / "here")
    here, there = (AdapterStore(tmp_path / host, str(tmp_path / "store")) for host in ("here", "there"))
    await AdapterDirectory(tmp_path / "here", store=here).publish(name)
    assert await there.fetch(name) == tmp_path / "there" / name


async def test_model_servers_sleep_during_updates_and_are_awake_at_the_end(
    committed: Sessions, first: Settings, tmp_path: Path
) -> None:
    with sleepy_server() as server:
        server.sleeping = True  # as an attempt that was killed left it
        one_gpu = msgspec.structs.replace(first, engine_urls=server.url, engine_sleep="update")
        job = await (await TrainingProject.open(committed, one_gpu)).job(
            **SFT, data=chats(tmp_path / "chats.jsonl")
        )
        slept = []

        class Looker(ProgressRecorder):
            async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
                slept.append(server.sleeping)
                await super().step(index, total, metrics)

        await train(job, Looker())
        assert slept == [True, True]
        assert not server.sleeping
        assert server.asked == ["/wake_up", "/sleep?level=1&mode=keep", "/wake_up"]
