"""`make bench` runs scripts one after another, without arguments."""

import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def scripts() -> list[Path]:
    done = subprocess.run(["make", "-n", "bench"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return [REPOSITORY / name for name in re.findall(r"tests/bench/bench_\w+\.py", done.stdout)]


def test_no_script_of_the_loop_needs_an_argument_or_serves_another_one(scripts: list[Path]) -> None:
    assert len(scripts) > 10
    for script in scripts:
        text = script.read_text()
        assert "required=True" not in text, script
        assert "asyncio.Event().wait()" not in text, script
