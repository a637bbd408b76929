"""What runs keep on a worker's host is deleted once no retry needs it, or a task in it is deleted."""

from pathlib import Path
from uuid import uuid4

from sqlalchemy import update

from app.base.run_settings import RunSettings
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction, RunState
from app.projects import audit
from app.projects import store as projects
from app.runs import store as runs
from tests.support.rows import project_row
from trainer.worker.run_files import clear_ended, note_project


async def test_copies_of_tasks_go_once_nothing_resumes_the_run(committed: Sessions, tmp_path: Path) -> None:
    kept = {}
    for state, erased, left in (
        (RunState.DONE, False, {"log"}),
        (RunState.FAILED, True, {"log"}),
        (RunState.CANCELLED, True, {"log"}),
        (RunState.FAILED, False, {"log", "logged.msgpack", "checkpoints"}),
        (RunState.RUNNING, False, {"log", "logged.msgpack", "checkpoints"}),
    ):
        async with committed.begin() as session:
            run = await runs.create(session, (await project_row(session)).id, RunSettings())
            values = {"state": state, "erased": erased}
            changed = update(tables.TrainingRun).where(tables.TrainingRun.id == run.id).values(values)
            await session.execute(changed)
        (tmp_path / str(run.id) / "checkpoints").mkdir(parents=True)
        for name in ("log", "logged.msgpack", "checkpoints/1"):
            (tmp_path / str(run.id) / name).write_text("content")
        kept[run.id] = left
    others = ("not-a-run", str(uuid4()))
    for name in others:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of something else")
    assert set(await clear_ended(committed, tmp_path)) == {each for each, left in kept.items() if len(left) == 1}
    for run_id, left in kept.items():
        assert {path.name for path in (tmp_path / str(run_id)).iterdir()} == left
    assert all((tmp_path / name / "file").exists() for name in others)
    assert await clear_ended(committed, tmp_path) == []
    assert await clear_ended(committed, tmp_path / "absent") == []


async def test_copies_of_tasks_go_with_their_project(committed: Sessions, tmp_path: Path) -> None:
    directories = {}
    async with committed.begin() as session:
        for name in ("deleted", "of another database"):
            project = await project_row(session)
            run = await runs.create(session, project.id, RunSettings())
            directories[name] = tmp_path / str(run.id)
            directories[name].mkdir()
            note_project(directories[name], project.id)
            (directories[name] / "logged.msgpack").write_text("what people said")
            if name == "deleted":
                await audit.add(session, project.id, None, "key ops", AuditAction.PROJECT_DELETED, {})
            await projects.delete(session, project.id)
    await clear_ended(committed, tmp_path)
    left = {name: (path / "logged.msgpack").exists() for name, path in directories.items()}
    assert left == {"deleted": False, "of another database": True}
