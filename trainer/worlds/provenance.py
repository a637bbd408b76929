"""The provenance of results: the machine, the commit of this tree, and a file with those of an experiment."""

import platform
import subprocess
from pathlib import Path

from app.base.files import write_atomically

_ROOT = Path(__file__).resolve().parents[2]
UNKNOWN = "unknown"


def source_commit(root: Path = _ROOT) -> str:
    """The full hash, with "-dirty" for a tree that was changed; "unknown" for an installed package."""
    if not (root / ".git").exists():  # the repository around a virtual environment would be another one
        return UNKNOWN
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        return UNKNOWN
    return f"{head}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else head


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = f"{len(names)} x {names[0]}" if names else platform.processor()
    return f"{processor}, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


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


def _git(root: Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()


def _recorded(work: Path) -> list[str]:
    path = work / "commits.txt"
    if path.exists():
        return path.read_text().split()
    return [UNKNOWN] if (work / "demonstrations.npz").exists() else []
