"""Tasks per second that a server exports with their trajectories: as one stream, and with a request for each task.

python tests/bench/bench_export.py [--tasks 10000]
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import httpx
import msgspec

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.base.values import Call, Stop, Turn
from app.db import postgres, results
from app.db.migrate import migrate
from app.db.tables import TaskState
from app.tasks import store as tasks
from tests.bench.results_file import write_results
from tests.support.api_app import ApiApp, open_api_app
from tests.support.emptied_database import emptied_database
from tests.support.http_server import served
from tests.support.rows import trajectory_of

_BATCH = 500
_SINGLE = 300  # tasks that are read one by one
_TURNS = 4
_CALL = Call(
    seq=0, turn=0, api="mail.browse_mails", arguments={"page": 1}, result=[{"id": 7, "sender": "iris"}] * 5
)
_TURN = Turn(
    context_ids=tuple(range(300)),
    sampled_ids=tuple(range(100)),
    logprobs=(-0.5,) * 100,
    text="I look at the mails.\n```python\nprint(apis.mail.browse_mails(page=1))\n```",
    observation="[{'id': 7, 'sender': 'iris'}]\n" * 20,
    outcome="ok",
    calls=(_CALL,) * 3,
)


async def _fill(api: ApiApp, count: int) -> None:
    for start in range(0, count, _BATCH):
        async with api.sessions.begin() as session:
            new = [
                (api.demo.id, tasks.NewTask(instruction=f"archive my mails from iris, {start + number}"))
                for number in range(min(_BATCH, count - start))
            ]
            for row in await tasks.submit_all(session, new):
                row.state, row.score, row.stop = TaskState.DONE, 1.0, Stop.COMPLETED
                record = msgspec.structs.replace(trajectory_of(row, *[_TURN] * _TURNS), profile="compact")
                await results.save(session, row.project_id, record)


@asynccontextmanager
async def _server(url: str, directory: Path) -> AsyncIterator[tuple[ApiApp, httpx.AsyncClient]]:
    async with (
        emptied_database(url) as database,
        open_api_app(database.sessions, url, directory=directory) as api,
        served(api) as client,
    ):
        yield api, client


async def _command(*arguments: str | Path, key: str) -> float:
    """Seconds that a process takes."""
    before = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        *arguments, env={**os.environ, "KEY": key}, stdout=asyncio.subprocess.DEVNULL
    )
    assert await process.wait() == 0
    return time.perf_counter() - before


async def _measure(url: str, directory: Path, count: int) -> dict[str, float]:
    async with _server(url, directory) as (api, client):
        await _fill(api, count)
        authorization = api.client.headers["Authorization"]
        key = authorization.removeprefix("Bearer ")
        figures: dict[str, float] = {"tasks": count, "turns": _TURNS}
        for name, query in (("stream", ""), ("stream_with_tokens", "?tokens=true")):
            path = f"{client.base_url}/v1/tasks/export{query}"
            target = directory / "export.jsonl"
            curl = (
                "curl",
                "--silent",
                "--fail",
                "--output",
                target,
                "--header",
                f"Authorization: {authorization}",
            )
            on_cpu = time.process_time()
            taken = await _command(*curl, path, key=key)
            on_cpu = time.process_time() - on_cpu
            lines = target.read_bytes().splitlines()
            assert len(lines) == count
            assert json.loads(lines[0])["task"]["state"] == "done"
            figures[f"{name}_per_second"] = round(count / taken)
            figures[f"{name}_per_cpu_second"] = round(count / on_cpu)  # of the server, without PostgreSQL
            figures[f"{name}_megabytes"] = round(target.stat().st_size / 1e6)
        out = ("--url", str(client.base_url), "--limit", str(count), "--out", directory / "chats.jsonl")
        taken = await _command(sys.executable, "-m", "app.cli", "export", *out, key=key)
        figures["sage_export_per_second"] = round(count / taken)
        figures["one_by_one_per_second"] = round(await _one_by_one(client))
        return figures


async def _one_by_one(client: httpx.AsyncClient) -> float:
    listed = (await client.get("/v1/tasks", params={"limit": 200})).json()["tasks"]
    before = time.perf_counter()
    for number in range(_SINGLE):
        task_id = listed[number % len(listed)]["id"]
        (await client.get(f"/v1/tasks/{task_id}/trajectory", params={"tokens": False})).raise_for_status()
    return _SINGLE / (time.perf_counter() - before)


@click.command()
@click.option("--tasks", "count", default=10_000)
def main(count: int) -> None:
    with TemporaryDirectory(prefix="sage-bench-") as directory:
        url = postgres.start(Path(directory) / "postgres")
        try:
            migrate(url)
            figures = asyncio.run(_measure(url, Path(directory), count))
        finally:
            postgres.stop(Path(directory) / "postgres")
    print(figures)
    write_results("export", figures)


if __name__ == "__main__":
    main()
