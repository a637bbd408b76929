"""The copy of the end of a run's log in the database."""

from pathlib import Path
from uuid import uuid4

from app.base.run_settings import RunSettings
from app.db.database import Sessions
from app.runs import store as runs
from tests.support.rows import project_row
from trainer.worker.run_files import LogCopy


async def test_it_is_the_last_64_kib_from_the_beginning_of_a_line(committed: Sessions, tmp_path: Path) -> None:
    async with committed.begin() as session:
        run = await runs.create(session, (await project_row(session)).id, RunSettings())
    copy = LogCopy(run.id, tmp_path)
    for content, copied in (
        (None, ""),
        (b"a null \0 and half a \xc3", "a null \ufffd and half a \ufffd"),
        (b"a first line\n" + b"x" * 70_000 + b"\nthe last\n", "the last\n"),
    ):
        if content is not None:
            (tmp_path / "log").write_bytes(content)
        await copy.copy(committed)
        async with committed() as session:
            assert await runs.read(session, run.id) == copied


async def test_a_deleted_run_has_no_log(committed: Sessions, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("too late\n")
    run_id = uuid4()
    await LogCopy(run_id, tmp_path).copy(committed)
    async with committed() as session:
        assert await runs.read(session, run_id) is None
