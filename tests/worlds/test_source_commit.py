"""The commit of a source tree: its own, marked where the tree was changed, and unknown outside of a repository."""

import subprocess
from pathlib import Path

from trainer.worlds.report import UNKNOWN, source_commit


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    ended = subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True)
    return ended.stdout.strip()


def test_a_clean_tree_has_its_commit_and_a_changed_one_says_so(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.txt").write_text("one")
    git(tmp_path, "add", "a.txt")
    git(tmp_path, "commit", "-q", "-m", "Add it")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "untracked.txt").write_text("no change")
    assert source_commit(tmp_path) == head
    (tmp_path / "a.txt").write_text("two")
    assert source_commit(tmp_path) == f"{head}-dirty"


def test_a_folder_inside_a_repository_is_not_the_source_tree(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "site-packages").mkdir()
    assert source_commit(tmp_path / "site-packages") == UNKNOWN


def test_a_repository_without_commits_has_none(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert source_commit(tmp_path) == UNKNOWN
