"""Retention in a deployed server, over a restart."""

from datetime import timedelta
from pathlib import Path

import httpx
from sqlalchemy import func, select, update

from app.db import tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.projects import keys
from app.projects import store as projects
from app.tasks import store as tasks
from tests.processes.test_asgi import environment, sage_process, until_up
from tests.support.ledger_project import until
from tests.support.processes import free_ports


async def test_a_killed_and_restarted_server_still_deletes_what_its_project_does_not_keep(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    async with committed.begin() as session:
        project = await projects.create(session, "demo")
        _, key = await keys.create(session, "admin", ["admin"])
    (port,) = free_ports(1)
    env = environment(tmp_path, database_url, port)
    headers = {"Authorization": f"Bearer {key}"}
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=300) as client:
        async with sage_process("serve", env) as server:
            await until_up(client, server)
            days = {"keep_tasks": 3, "keep_events": 2}
            (await client.patch("/v1/projects/demo", json={"settings": days})).raise_for_status()
        async with committed.begin() as session:
            for age in (4, 1):
                task = await tasks.submit(session, project.id, tasks.NewTask(instruction="tidy up"))
                ended = {"state": TaskState.DONE, "finished_at": func.now() - timedelta(days=age)}
                await session.execute(update(tables.Task).where(tables.Task.id == task.id).values(ended))
        async with sage_process("serve", env) as server:
            await until_up(client, server)
            settings = (await client.get("/v1/projects/demo")).json()["settings"]
            assert (settings["keep_tasks"], settings["keep_events"], settings["keep_trajectories"]) == (3, 2, None)

            async def one_is_left() -> bool:
                async with committed() as session:
                    return await session.scalar(select(func.count(tables.Task.id))) == 1

            await until(one_is_left)
            metrics = (await client.get("/metrics")).text
            assert 'sage_retention_deleted_total{kind="tasks"} 1.0' in metrics
