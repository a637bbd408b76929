"""The commit that this source tree is at."""

import subprocess
from pathlib import Path

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


def _git(root: Path, *arguments: str) -> str | None:
    try:
        ended = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return ended.stdout.strip()
