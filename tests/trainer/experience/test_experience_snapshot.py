"""A retried run learns from the data of its first attempt."""

from collections.abc import Collection
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.base.run_settings import RunSettings
from app.base.values import BASE
from app.db.database import Sessions
from tests.support.rows import project_row
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject
from trainer.experience import LoggedExperience, read_once
from trainer.rewards import BaseModel


async def test_a_second_attempt_reads_what_the_first_one_read(
    session: AsyncSession, sessions: Sessions, tmp_path: Path
) -> None:
    shop = ServedProject(session, await project_row(session), byte_tokenizer(tmp_path))
    directory = tmp_path / "run"

    async def serve() -> None:
        for score in (1.0, 0.0):
            await shop.task(score)
        await session.commit()

    async def once(start: str = BASE) -> LoggedExperience:
        base = BaseModel("seed", shop.tokenizer, start)
        return await read_once(sessions, shop.project.id, RunSettings(max_staleness=1), base, directory, record)

    recorded: list[set[UUID]] = []

    async def record(task_ids: Collection[UUID]) -> bool:
        recorded.append(set(task_ids))
        return len(recorded) > 1

    await serve()
    first = await once()
    assert recorded == [set(shop.tasks)] * 2, "it reads again if a task was erased"
    await serve()
    assert await once() == first
    other = await once("another start")
    assert {each.staleness for each in first.steps[0]} == {0}
    assert {each.staleness for each in other.steps[0]} == {1}, "it reads again for other weights"
    [file] = directory.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(InvalidError, match="delete it"):
        await once()
    file.unlink()
    assert len((await once()).steps[0]) == 4
