"""What monthly partitions of the events would cost: pages and time of one task's reads, appends and deletion.

python tests/bench/bench_partitions.py [--tasks 100000] [--months 24]
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from sqlalchemy import Connection, NullPool, create_engine, text

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.db import postgres
from app.db.migrate import migrate
from tests.bench.results_file import write_results

_EVENTS = 6  # of a task
_REPEATS = 200
_MONTH = "date_trunc('month', now()) + {} * interval '1 month'"
_FILL_PROJECTS = "INSERT INTO projects (id, name, skill_rev) VALUES (gen_random_uuid(), 'demo', 0)"
_FILL_TASKS = """
INSERT INTO tasks (id, project_id, instruction, variables, use_skills, state, checked, turns, generated_tokens,
    calls, cancel_requested, attempt, created_at)
SELECT gen_random_uuid(), projects.id, 'wait', '{}', true, 'done', false, 0, 0, 0, false, 0,
    now() - n * make_interval(days => :months * 30) / :tasks
FROM projects, generate_series(1, :tasks) n
"""
_FILL_EVENTS = f"""
INSERT INTO task_events (task_id, seq, kind, data, created_at)
SELECT id, seq, 'turn', jsonb_build_object('text', repeat('x', 100)), tasks.created_at
FROM tasks, generate_series(1, {_EVENTS}) seq ORDER BY tasks.created_at
"""
_READ = "SELECT * FROM task_events WHERE task_id = :task AND seq > 0 ORDER BY seq LIMIT 500"
_APPEND = """SELECT append_task_events(:task, '[["turn", {"turn": 1}]]')"""
_DELETE = "DELETE FROM tasks WHERE id = ANY(SELECT id FROM tasks TABLESAMPLE BERNOULLI (50) LIMIT 200)"


def _partition(connection: Connection, months: int) -> None:
    for statement in (
        "ALTER TABLE task_events RENAME TO old_events",
        "CREATE TABLE task_events (LIKE old_events INCLUDING DEFAULTS) PARTITION BY RANGE (created_at)",
        "CREATE TABLE events_default PARTITION OF task_events DEFAULT",
        "ALTER TABLE task_events ADD PRIMARY KEY (task_id, seq, created_at)",
        "ALTER TABLE task_events ADD FOREIGN KEY (task_id) REFERENCES tasks (id) ON DELETE CASCADE",
        *(_new_partition(number, number - months) for number in range(months + 2)),
        "INSERT INTO task_events SELECT * FROM old_events ORDER BY created_at",
        "DROP TABLE old_events",
    ):
        connection.execute(text(statement))


def _new_partition(number: int, month: int) -> str:
    first, end = _MONTH.format(month), _MONTH.format(month + 1)
    bounds = "PARTITION OF task_events FOR VALUES FROM (%L) TO (%L)"
    create = f"format('CREATE TABLE events_{number} {bounds}', {first}, {end})"
    return f"DO $$ BEGIN EXECUTE {create}; END $$"


def _explained(connection: Connection, statement: str, **values: Any) -> tuple[int, float]:
    """Pages and milliseconds."""
    explain = text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}")
    [found] = connection.execute(explain, values).scalar_one()
    plan = found["Plan"]
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"], found["Planning Time"] + found["Execution Time"]


def _measure(connection: Connection) -> dict[str, float]:
    connection.execute(text("VACUUM ANALYZE"))
    ids = list(connection.scalars(text("SELECT id FROM tasks ORDER BY random() LIMIT :n"), {"n": _REPEATS}))
    figures = dict[str, float]()
    for name, statement in (("read", _READ), ("append", _APPEND)):
        taken = [_explained(connection, statement, task=task_id) for task_id in ids]
        figures[f"{name}_pages"] = sorted(pages for pages, _ in taken)[_REPEATS // 2]
        figures[f"{name}_median_ms"] = round(sorted(ms for _, ms in taken)[_REPEATS // 2], 3)
        figures[f"{name}_least_ms"] = round(min(ms for _, ms in taken), 3)
    before = time.perf_counter()
    connection.execute(text(_DELETE))
    figures["delete_200_tasks_ms"] = round((time.perf_counter() - before) * 1000, 1)
    return figures


@click.command()
@click.option("--tasks", default=100_000)
@click.option("--months", default=24)
def main(tasks: int, months: int) -> None:
    with TemporaryDirectory(prefix="sage-bench-") as directory:
        url = postgres.start(Path(directory) / "postgres")
        try:
            migrate(url)
            engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(text(_FILL_PROJECTS))
                connection.execute(text(_FILL_TASKS), {"tasks": tasks, "months": months})
                connection.execute(text(_FILL_EVENTS))
                figures: dict[str, Any] = {"tasks": tasks, "months": months, "table": _measure(connection)}
                _partition(connection, months)
                figures["partitions"] = _measure(connection)
        finally:
            postgres.stop(Path(directory) / "postgres")
    print(figures)
    write_results("partitions", figures)


if __name__ == "__main__":
    main()
