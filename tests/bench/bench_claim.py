"""The time of one claim from a long queue, by one runner and by eight at once, as their client sees it.

python tests/bench/bench_claim.py [--tasks 100000] [--projects 50]
"""

import asyncio
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from sqlalchemy import text

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.db import postgres
from app.db.database import Database, autocommit, open_database
from app.db.migrate import migrate
from app.projects import store as projects
from app.tasks import queue
from tests.bench.results_file import write_results

_FILL = """
INSERT INTO tasks (id, project_id, instruction, variables, use_skills, state, checked, turns, generated_tokens,
    calls, cancel_requested, attempt, priority)
SELECT gen_random_uuid(), (CAST(:projects AS uuid[]))[1 + number % :count], 'wait', '{}', true, 'accepted', false,
    0, 0, 0, false, 0, number % 7
FROM generate_series(1, :tasks) AS number
"""
_CLAIMS = 500


async def _fill(database: Database, tasks: int, count: int) -> None:
    async with database.sessions.begin() as session:
        ids = [(await projects.create(session, f"project-{number}")).id for number in range(count)]
        await session.execute(text(_FILL), {"projects": ids, "count": count, "tasks": tasks})
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.execute(text("VACUUM ANALYZE"))


async def _claims(database: Database, runners: int) -> list[float]:
    """Milliseconds of each."""
    taken: list[float] = []

    async def run(owner: str) -> None:
        for _ in range(_CLAIMS // runners):
            before = time.perf_counter()
            async with autocommit(database.sessions) as session:
                task = await queue.claim(session, owner, 30)
            taken.append((time.perf_counter() - before) * 1000)
            assert task is not None

    await asyncio.gather(*(run(f"runner {number}") for number in range(runners)))
    return sorted(taken)


async def _measure(url: str, tasks: int, count: int) -> None:
    figures: dict[str, float] = {"tasks": tasks, "projects": count}
    async with open_database(url) as database:
        await _fill(database, tasks, count)
        await _claims(database, 1)  # warm up
        for runners in (1, 8):
            taken = await _claims(database, runners)
            figures[f"least_ms_{runners}"] = round(taken[0], 2)
            figures[f"median_ms_{runners}"] = round(statistics.median(taken), 2)
            figures[f"p99_ms_{runners}"] = round(taken[len(taken) * 99 // 100], 2)
    print(figures)
    write_results("claim", figures)


@click.command()
@click.option("--tasks", default=100_000)
@click.option("--projects", "count", default=50)
def main(tasks: int, count: int) -> None:
    with TemporaryDirectory(prefix="sage-bench-") as directory:
        url = postgres.start(Path(directory) / "postgres")
        try:
            migrate(url)
            asyncio.run(_measure(url, tasks, count))
        finally:
            postgres.stop(Path(directory) / "postgres")


if __name__ == "__main__":
    main()
