"""Writes a project's mapped files: `python -m app.skills.mapped.build_process DIRECTORY PROJECT`.

The process reads all skills of the project in DATABASE_URL, at a low priority and on one core. It ends with its
parent.
"""

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import faiss
from sqlalchemy import CursorResult, NullPool, Row, Select, create_engine, select
from sqlalchemy.exc import SQLAlchemyError

from app.base.errors import first_line
from app.base.processes import end_with_parent
from app.db import skill_changes, tables
from app.db.database import full_url
from app.skills.indexed_rows import indexed
from app.skills.mapped.index_files import BusyIndexError, IndexFiles, IndexManifest
from app.skills.mapped.write_skills import write_skills
from app.skills.skill_index import IndexedSkill

BUSY = os.EX_TEMPFAIL
_AT_ONCE = 2_000  # rows
_NICENESS = 15


def main() -> None:
    directory, project_id = Path(sys.argv[1]), UUID(sys.argv[2])
    end_with_parent()
    _yield_to_others()
    try:
        write_files(IndexFiles(directory), os.environ["DATABASE_URL"], project_id)
    except BusyIndexError:
        sys.exit(BUSY)
    except (OSError, RuntimeError, SQLAlchemyError) as error:  # FAISS raises RuntimeError if it cannot write
        sys.exit(first_line(error))


def write_files(files: IndexFiles, database_url: str, project_id: UUID) -> None:
    """Write and publish the files of a project's skills as they are now. None are left of one that has no skills.

    Raises BusyIndexError, OSError, RuntimeError if FAISS cannot write, and SQLAlchemyError.
    """
    url = full_url(database_url)
    engine = create_engine(url, poolclass=NullPool, isolation_level="REPEATABLE READ", hide_parameters=True)
    with files.writing(project_id) as directory, engine.connect() as connection:
        project = tables.Project
        rev = connection.scalar(select(project.skill_rev).where(project.id == project_id)) or 0
        embedder = connection.scalar(skill_changes.common_embedder(project_id))
        read = _Rows(connection.execute(_query(project_id, embedder)))
        count = write_skills(directory, read, embedder)
        if read.last is not None:
            manifest = IndexManifest(
                project=project_id,
                rev=rev,
                last=read.last.id,
                last_rev=read.last.rev,
                count=count,
                embedder=embedder,
            )
            files.publish(directory, manifest)


class _Rows:
    """The skills of a result, which is read once. Remembers the last row."""

    def __init__(self, result: CursorResult[Any]) -> None:
        self._result = result
        self.last: Row[Any] | None = None

    def __iter__(self) -> Iterator[IndexedSkill]:
        for row in self._result:
            self.last = row
            yield indexed(row)


def _query(project_id: UUID, embedder: str | None) -> Select[Any]:
    return skill_changes.changes(project_id, 0, embedder).execution_options(yield_per=_AT_ONCE)


def _yield_to_others() -> None:
    """Take the lowest priority, one core, and the memory that a limit of the parent would withhold."""
    os.nice(_NICENESS)
    faiss.omp_set_num_threads(1)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


if __name__ == "__main__":
    main()
