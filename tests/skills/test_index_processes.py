"""Index files in several operating-system processes, and many small projects in one."""

import asyncio
import json
import sys
import time
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from app.db.database import Sessions
from app.skills import library as libraries
from app.skills.index_files import IndexFiles, write_files
from app.skills.library import Library
from tests.bench import skill_reader, synthetic_skills
from tests.support.archiving_skills import QUERY, named, project

_SKILLS = 300
_NEW = QUERY.replace("omar", "iris")  # the instruction of what `named` makes


async def test_a_new_skill_is_found_by_every_process_that_maps_the_files(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    here = await project(committed)
    await asyncio.to_thread(synthetic_skills.store, database_url, here, _SKILLS)
    await asyncio.to_thread(write_files, IndexFiles(tmp_path), database_url, here)
    vectors = next(synthetic_skills.vectors(5, seed=7))
    queries = tmp_path / "queries.npz"
    np.savez(queries, texts=np.array([f"archive all mails from person{n}" for n in range(5)]), vectors=vectors)
    readers = [await _reader(database_url, here, queries, tmp_path) for _ in range(2)]
    nearest = np.argsort(-(vectors @ next(synthetic_skills.vectors(_SKILLS, seed=0)).T), axis=1)[:, :10] + 1
    for reader in readers:
        assert reader.stdout is not None
        assert json.loads(await reader.stdout.readline())["nearest"] == nearest.tolist()
    await Library(committed).save(here, [named("newest")])
    saved = time.monotonic()
    for reader in readers:
        out, _ = await reader.communicate(f"{_NEW}\n".encode())
        assert float(out) >= saved


async def _reader(database_url: str, here: UUID, queries: Path, files: Path) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, skill_reader.__file__, database_url, str(here), str(queries), str(files)]
    return await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe, limit=1 << 20)


async def test_projects_not_searched_last_leave_memory_and_are_found_again(
    committed: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "_KEPT", 4)
    projects = [await project(committed, f"p{number}") for number in range(4)]
    library = Library(committed)
    for here in projects:
        await library.save(here, [named("a"), named("b")])
    assert library.in_memory == 4
    for here in projects * 2:
        assert len(await library.find(here, QUERY)) == 2
        assert library.in_memory <= 4
