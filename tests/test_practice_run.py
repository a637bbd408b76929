"""A run of practice: from lessons to the gate, within its hours, and resumed wherever it was killed."""

from pathlib import Path

import pytest

from app.db.database import Sessions
from tests.practised_project import practised_project
from tests.training_project import ProgressRecorder
from trainer.runs.train import train

SMALL = {
    "kind": "practice",
    "environment": "practice?api=sensors",
    "hours": 0.05,
    "gate_scenarios": 200,
    "pairs": 2,
    "group": 4,
}


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_whole_run(committed: Sessions, database_url: str, tmp_path: Path) -> None:
    project = await practised_project(committed, database_url, tmp_path)
    job, recorder = await project.job(**SMALL), ProgressRecorder()
    result = await train(job, recorder)
    import json

    import msgspec

    print(json.dumps(msgspec.to_builtins(result), indent=1, default=str)[:6000])
    print((job.directory / "hours.json").read_text())
    for each in dict.fromkeys(p[0] for p in recorder.parts):
        print(each)
    for i, m in recorder.metrics.items():
        print(i, m)
