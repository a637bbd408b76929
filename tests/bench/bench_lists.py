"""The time of SQL of each listing and of one task's events, over many tasks, skills, runs and audit entries.

python tests/bench/bench_lists.py [--tasks 1000000] [--repeats 100]
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import click
from sqlalchemy import event, text

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.db import postgres, results
from app.db.database import Database, open_database
from app.db.migrate import migrate
from app.tasks import store as tasks
from tests.bench.results_file import write_results
from tests.db.test_list_plans import FILL, LISTINGS, NOW, PROJECT, Listing

_EVENTS = 3  # of a task
_OTHERS = 300_000  # rows of the other tables, at most
_FILL_EVENTS = f"""
INSERT INTO task_events (task_id, seq, kind, data)
SELECT id, seq, 'turn', '{{"turn": 1}}' FROM tasks, generate_series(1, {_EVENTS}) seq
"""
_INDEXES = """
SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'tasks' AND indexdef NOT LIKE 'CREATE UNIQUE%'
"""
"""Built afterwards, which takes a fraction of the time."""
_GOAL_MS = 20


async def _fill(database: Database, rows: int) -> None:
    async with database.engine.connect() as opened:
        connection = await opened.execution_options(isolation_level="AUTOCOMMIT")
        for setting in (
            "fsync = off",
            "full_page_writes = off",
            "max_wal_size = '8GB'",
            "maintenance_work_mem = '1GB'",
        ):
            await connection.execute(text(f"ALTER SYSTEM SET {setting}"))
        await connection.execute(text("SELECT pg_reload_conf()"))
        indexes = (await connection.execute(text(_INDEXES))).all()
        for index in indexes:
            await connection.execute(text(f"DROP INDEX {index.indexname}"))
        for statement in FILL:
            number = rows if "INTO tasks" in statement else min(rows, _OTHERS)
            await connection.execute(text(statement), {"rows": number} if ":rows" in statement else {})
        for index in indexes:
            await connection.execute(text(index.indexdef))
        await connection.execute(text(_FILL_EVENTS))
        await connection.execute(text("VACUUM ANALYZE"))


async def _elsewhere(database: Database, rows: int) -> dict[str, Callable[[], Listing]]:
    """Listings with other values each time."""
    random = Random(1)
    async with database.sessions() as session:
        sample = text("SELECT id FROM tasks TABLESAMPLE BERNOULLI (10) LIMIT 1000")
        ids = list(await session.scalars(sample))

    def any_page() -> Listing:
        before = NOW + timedelta(seconds=random.randrange(rows))
        only = tasks.TaskFilter(project_id=PROJECT, created_before=before)
        return lambda session: tasks.page(session, only)

    def any_events() -> Listing:
        task_id = random.choice(ids)
        return lambda session: results.after(session, task_id)

    return {"tasks of a project, any page": any_page, "events of a task": any_events}


async def _milliseconds(database: Database, listing: Listing) -> tuple[float, float]:
    """Of the statements of one call: as their client sees them, and of the server process on a CPU."""
    began, taken = 0.0, 0.0

    def before(*_: object) -> None:
        nonlocal began
        began = time.perf_counter()

    def after(*_: object) -> None:
        nonlocal taken
        taken += time.perf_counter() - began

    engine = database.engine.sync_engine
    async with database.sessions() as session:
        process = await session.scalar(text("SELECT pg_backend_pid()"))
        on_cpu = _nanoseconds(process)
        event.listen(engine, "before_cursor_execute", before)
        event.listen(engine, "after_cursor_execute", after)
        try:
            await listing(session)
        finally:
            event.remove(engine, "before_cursor_execute", before)
            event.remove(engine, "after_cursor_execute", after)
        return taken * 1000, (_nanoseconds(process) - on_cpu) / 1e6


def _nanoseconds(process: int) -> int:
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0])


async def _measure(url: str, rows: int, repeats: int) -> dict[str, Any]:
    lists = dict[str, dict[str, float]]()
    async with open_database(url) as database:
        before = time.perf_counter()
        await _fill(database, rows)
        filled = time.perf_counter() - before
        same = {name: lambda each=each: each for name, each in LISTINGS.items()}
        for name, make in {**same, **await _elsewhere(database, rows)}.items():
            await _milliseconds(database, make())  # warm up
            taken = [await _milliseconds(database, make()) for _ in range(repeats)]
            lists[name] = {}
            for what, column in zip(("time", "cpu"), zip(*taken, strict=True), strict=True):
                lists[name][f"{what}_p50_ms"] = round(statistics.median(column), 2)
                lists[name][f"{what}_p99_ms"] = round(sorted(column)[len(column) * 99 // 100], 2)
            print(f"{name:55} {lists[name]}", flush=True)
    figures: dict[str, Any] = {"tasks": rows, "events": rows * _EVENTS, "fill_seconds": round(filled)}
    for figure in ("time_p99_ms", "cpu_p99_ms"):
        slow = sorted(name for name, each in lists.items() if each[figure] > _GOAL_MS)
        print(f"{figures}; {figure} over {_GOAL_MS}: {slow or 'none'}")
    return {**figures, "lists": lists}


def measure(rows: int, repeats: int = 100) -> dict[str, Any]:
    """The times of each listing over so many tasks, in a PostgreSQL of its own."""
    with TemporaryDirectory(prefix="sage-bench-") as directory:
        url = postgres.start(Path(directory) / "postgres")
        try:
            migrate(url)
            return asyncio.run(_measure(url, rows, repeats))
        finally:
            postgres.stop(Path(directory) / "postgres")


@click.command()
@click.option("--tasks", "rows", default=1_000_000)
@click.option("--repeats", default=100)
def main(rows: int, repeats: int) -> None:
    write_results("lists", measure(rows, repeats))


if __name__ == "__main__":
    main()
