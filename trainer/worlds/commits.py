"""The commits that an experiment ran at: a line for each in its directory, in order."""

from pathlib import Path

from trainer.atomic_write import write_atomically
from trainer.worlds.source_commit import UNKNOWN


def record_commit(work: Path, commit: str) -> None:
    """Record that the experiment starts or resumes at this commit. Call it before it writes anything."""
    recorded = _recorded(work)
    if [commit] != recorded[-1:]:
        write_atomically("".join(f"{each}\n" for each in [*recorded, commit]).encode(), work / "commits.txt")


def provenance(work: Path, commit: str) -> str:
    """The provenance of results that are written at `commit`: that commit alone if nothing has changed.

    In a directory from before commits were recorded, the first one is unknown.
    """
    first, *others = _recorded(work) or [commit]
    parts = [first, *(f"resumed at {each}" for each in others)]
    if commit != [first, *others][-1]:
        parts.append(f"written at {commit}")
    return ", ".join(parts)


def _recorded(work: Path) -> list[str]:
    path = work / "commits.txt"
    if path.exists():
        return path.read_text().split()
    return [UNKNOWN] if (work / "demonstrations.npz").exists() else []
