"""Processes of our own modules: what they import, and what they may use."""

import ast
import os
import resource
import subprocess
from pathlib import Path

import pytest

from app.base.model_catalog import SEED_DIR
from app.base.processes import lower_limit, python_module
from app.machine.model_checks import check_directory

ROOT = Path(__file__).parents[2]


def test_a_file_of_the_working_directory_stands_in_for_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("msgspec.py", "resource.py", "app.py"):
        (tmp_path / name).write_text("print('taken over')")
    monkeypatch.chdir(tmp_path)
    check_directory(SEED_DIR)
    done = subprocess.run(python_module("app.cli", "--help"), capture_output=True, text=True, check=True)
    assert "taken over" not in done.stdout


def test_every_module_that_is_started_is_started_so() -> None:
    wrong = []
    for path in [*ROOT.glob("app/**/*.py"), *ROOT.glob("trainer/**/*.py")]:
        if path == ROOT / "app/base/processes.py" or '"-m"' not in (text := path.read_text()):
            continue
        words = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
        if "-m" in words:
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []


def test_a_limit_is_lowered_and_never_raised() -> None:
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (50, 100))
        lower_limit(resource.RLIMIT_CPU, 70, 200)
        kept = resource.getrlimit(resource.RLIMIT_CPU) == (50, 100)
        lower_limit(resource.RLIMIT_CPU, 30)
        lowered = resource.getrlimit(resource.RLIMIT_CPU) == (30, 30)
        os._exit(0 if kept and lowered else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
