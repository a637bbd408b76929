"""Searches of one project's skills as it grows: `python -m tests.bench.bench_retrieval [--tree DIRECTORY] N...`.

For each number of synthetic skills, in a PostgreSQL of its own: the time to write the index files, then three
processes that open them one after the other and search. `--tree` runs the processes of another checkout, without
files if it has none. Times of searches are CPU time of one thread, the best of three; all others are wall time.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen, run
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import click
import numpy as np
from numpy.typing import NDArray

from app.db import postgres
from app.db.database import open_database
from app.db.migrate import migrate
from app.projects import store as projects
from app.skills.store import NewSkill, add
from tests.bench import synthetic_skills
from tests.bench.results_file import write_results

_ROOT = Path(__file__).parents[2]
_PROCESSES = 3  # an API and two runners
_QUERIES = 300
_NEW = "beacon lantern zephyr quartz"
_COLUMNS = {  # figure -> heading and digits
    "skills": ("skills", 0),
    "write_s": ("write s", 1),
    "write_mb": ("write MB", 0),
    "files_mb": ("files MB", 0),
    "start_s": ("start s", 2),
    "stall_ms": ("stall ms", 0),
    "ngrams_ms_50": ("n-grams p50", 2),
    "ngrams_ms_99": ("n-grams p99", 2),
    "dense_ms_50": ("dense p50", 2),
    "dense_ms_99": ("dense p99", 2),
    "recall": ("recall@10", 4),
    "find_ms": ("find p50", 1),
    "pss_mb": ("Pss MB", 0),
    "own_mb": ("own MB", 0),
    "visible_s": ("visible s", 2),
}


@click.command()
@click.argument("counts", nargs=-1, type=int)
@click.option("--tree", default=_ROOT, type=click.Path(path_type=Path), help="the checkout to measure")
def main(counts: tuple[int, ...], tree: Path) -> None:
    """Measure searches among so many skills."""
    print(" ".join(f"{heading:>11}" for heading, _ in _COLUMNS.values()))
    found = [measure(count, tree.absolute()) for count in counts or (1_000, 10_000, 100_000, 1_000_000)]
    if tree == _ROOT:
        write_results("retrieval", {"skills": found})


def measure(count: int, tree: Path = _ROOT) -> dict[str, Any]:
    """Print and return the figures of one number of skills."""
    with TemporaryDirectory(prefix="sage-retrieval-") as name, _postgres(Path(name) / "postgres") as url:
        directory = Path(name)
        project_id = asyncio.run(_project(url))
        synthetic_skills.store(url, project_id, count)
        queries = _queries(directory / "queries.npz")
        has_files = any((tree / "app" / "skills").glob("mapped*"))
        files = directory / "files"
        written, memory = _write(url, files, project_id, tree) if has_files else (0.0, 0.0)
        readers, figures = [], []
        for _ in range(_PROCESSES):
            reader = _reader(url, project_id, directory / "queries.npz", files if has_files else None, tree)
            readers.append(reader)
            figures.append(json.loads(_line(reader)))
        row = _row(count, written, memory, files, figures, _nearest(queries, count))
        row["visible_s"] = _visible(url, project_id, readers)
    print(" ".join(f"{row[name]:>11,.{digits}f}" for name, (_, digits) in _COLUMNS.items()), flush=True)
    return row


@contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    directory.mkdir()
    url = postgres.start(directory)
    try:
        migrate(url)
        yield url
    finally:
        postgres.stop(directory)


async def _project(url: str) -> UUID:
    async with open_database(url) as database, database.sessions.begin() as session:
        return (await projects.create(session, "large")).id


def _queries(path: Path) -> NDArray[np.float32]:
    """(Q, D): vectors of the texts that are written beside them."""
    texts = synthetic_skills.instructions(seed=7)
    vectors = np.concatenate(list(synthetic_skills.vectors(_QUERIES, seed=7)))
    np.savez(path, texts=np.array([next(texts)[0] for _ in range(_QUERIES)]), vectors=vectors)
    return vectors


def _write(url: str, files: Path, project_id: UUID, tree: Path) -> tuple[float, float]:
    """Seconds, and MB at most."""
    argv = [sys.executable, "-m", "app.skills.index_files", str(files), str(project_id)]
    began = time.perf_counter()
    run(argv, env=os.environ | {"DATABASE_URL": url, "PYTHONPATH": str(tree)}, check=True)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def _reader(url: str, project_id: UUID, queries: Path, files: Path | None, tree: Path) -> "Popen[str]":
    script = Path(__file__).with_name("skill_reader.py")
    argv = [sys.executable, str(script), url, str(project_id), str(queries), str(files or "-")]
    return Popen(argv, env=os.environ | {"PYTHONPATH": str(tree)}, stdin=PIPE, stdout=PIPE, text=True, cwd=tree)


def _line(reader: "Popen[str]") -> str:
    assert reader.stdout is not None
    return reader.stdout.readline()


def _nearest(queries: NDArray[np.float32], count: int) -> list[set[int]]:
    """The ids of the ten nearest, by comparing all."""
    cosines, ids, start = np.empty((len(queries), 0)), np.empty((len(queries), 0), np.int64), 1
    for block in synthetic_skills.vectors(count, seed=0):
        cosines = np.hstack([cosines, queries @ block.T])
        ids = np.hstack([ids, np.tile(np.arange(start, start + len(block)), (len(queries), 1))])
        best = np.argsort(-cosines, axis=1)[:, :10]
        cosines, ids = np.take_along_axis(cosines, best, 1), np.take_along_axis(ids, best, 1)
        start += len(block)
    return [set(row) for row in ids.tolist()]


def _visible(url: str, project_id: UUID, readers: "list[Popen[str]]") -> float:
    """Seconds from the commit of a new skill until all processes find it."""
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write(f"{_NEW}\n")
        reader.stdin.flush()
    time.sleep(1)  # they search by now
    asyncio.run(_add(url, project_id))
    committed = time.monotonic()
    seen = [float(_line(reader)) for reader in readers]
    for reader in readers:
        reader.wait()
    return max(seen) - committed


async def _add(url: str, project_id: UUID) -> None:
    new = NewSkill(name="new", signature="new()", source="def new(): ...", apis=[], instruction=_NEW)
    async with open_database(url) as database, database.sessions.begin() as session:
        await add(session, project_id, new)


def _row(
    count: int, written: float, memory: float, files: Path, figures: list[dict[str, Any]], nearest: list[set[int]]
) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in files.rglob("*") if path.is_file() and not path.is_symlink())
    last = figures[-1]
    hits = [len(set(found) & best) / len(best) for found, best in zip(last["nearest"], nearest, strict=True)]
    return {
        "skills": count,
        "write_s": written,
        "write_mb": memory,
        "files_mb": size / 1e6,
        "start_s": max(each["start_s"] for each in figures),
        "stall_ms": max(each["stall_ms"] for each in figures),
        **{
            f"{kind}_{point}": np.percentile(last[kind], point)
            for kind in ("ngrams_ms", "dense_ms")
            for point in (50, 99)
        },
        "recall": float(np.mean(hits)),
        "find_ms": float(np.percentile(last["find_ms"], 50)),
        "pss_mb": sum(each["pss_mb"]["all"] for each in figures[:-1]) + last["pss_mb"]["all"],
        "own_mb": sum(each["pss_mb"]["own"] for each in figures),
    }


if __name__ == "__main__":
    main()
