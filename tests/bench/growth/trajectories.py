"""What reading a trajectory costs a training run, by how many it reads."""

import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID, uuid4

import msgspec
from sqlalchemy import insert, select

from app.base.run_settings import RunSettings
from app.base.values import BASE
from app.db import postgres, results, tables
from app.db.database import open_database, pack
from app.db.migrate import migrate
from tests.support.rows import project_row
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject, minute
from trainer.experience import read_logged
from trainer.rewards import BaseModel

_KINDS = 30  # of tasks, whose instructions name different things
_BATCH = 2000
_ROOT = Path(__file__).parents[3]


def read(sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """For each number of trajectories in the window, microseconds of CPU for one."""
    with TemporaryDirectory(prefix="sage-window-") as directory:
        url = postgres.start(Path(directory) / "postgres")
        try:
            migrate(url)
            project, stored = asyncio.run(_begin(url, Path(directory))), 0
            for size in sorted(sizes):
                asyncio.run(_fill(url, project, stored, size))
                stored = size
                command = [sys.executable, "-m", "tests.bench.growth.trajectories", url, str(project), str(size)]
                read = subprocess.run(command, cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
                cpu, megabytes = map(float, read.split())
                print(f"  {size} trajectories: {cpu:.1f} s of CPU, {megabytes:.0f} MB at most", flush=True)
                yield size, 1e6 * cpu / size
        finally:
            postgres.stop(Path(directory) / "postgres")


async def _begin(url: str, directory: Path) -> UUID:
    """A project with one task, which the others are like."""
    async with open_database(url) as database, database.sessions.begin() as session:
        shop = ServedProject(session, await project_row(session), byte_tokenizer(directory / "model"))
        await shop.task()
        return shop.project.id


async def _fill(url: str, project: UUID, start: int, stop: int) -> None:
    async with open_database(url) as database:
        async with database.sessions() as session:
            first_task = select(tables.Task).where(tables.Task.project_id == project).limit(1)
            row = (await session.scalars(first_task)).one()
            trajectory = await results.of_task(session, row.id)
            columns = {column.key: getattr(row, column.key) for column in tables.Task.__table__.columns}
        for first in range(max(start, 1), stop, _BATCH):
            tasks: list[dict[str, Any]] = []
            records: list[dict[str, Any]] = []
            for number in range(first, min(stop, first + _BATCH)):
                task_id, kind = uuid4(), number % _KINDS
                instruction = f"{_verb(kind)} every item of {_name(number)} in the list {_name(kind)}"
                own: dict[str, Any] = {"id": task_id, "instruction": instruction, "scenario": None}
                own["score"] = float(number // _KINDS % 2)
                ended = {"started_at": minute(number), "finished_at": minute(number) + timedelta(seconds=30)}
                tasks.append(columns | own | ended)
                task = msgspec.structs.replace(trajectory.task, id=task_id, instruction=instruction, scenario=None)
                record = pack(msgspec.structs.replace(trajectory, task=task))
                keys = {"id": uuid4(), "task_id": task_id, "project_id": project, "release_id": row.release_id}
                records.append(keys | {"record": record})
            async with database.sessions.begin() as session:
                await session.execute(insert(tables.Task), tasks)
                await session.execute(insert(tables.Trajectory), records)


def _verb(kind: int) -> str:
    return "".join(chr(ord("a") + (kind * step) % 26) for step in (3, 7, 11, 17, 23))


def _name(number: int) -> str:
    return f"name{number % 997}"


async def _measure(url: str, project: UUID, size: int) -> None:
    """Print seconds of CPU, and the largest resident memory in megabytes."""
    with TemporaryDirectory() as directory:
        base = BaseModel("seed", byte_tokenizer(Path(directory)), BASE)
        async with open_database(url) as database, database.sessions() as session:
            before = time.process_time()
            experience = await read_logged(session, project, RunSettings(), base)
            cpu = time.process_time() - before
    assert experience.data.tasks == size, experience.data
    print(cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    asyncio.run(_measure(sys.argv[1], UUID(sys.argv[2]), int(sys.argv[3])))
