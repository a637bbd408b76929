"""Processes are killed and stalled, disks filled, clocks stepped and connections cut while tasks run.

`SAGE_CHAOS_EVENTS=500 SAGE_CHAOS_SEED=7 pytest -s tests/processes/test_chaos_run.py` inflicts 500, as that
seed chooses, and with `SAGE_CHAOS_KINDS=kill_runner,stall_runner` those kinds alone. Full disks need a user
who may mount a file system, and clock steps a C compiler.
"""

import os
import random
import shutil
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

import pytest

from tests.support.chaos_deployment import Deployment, deployed
from tests.support.chaos_events import Scene
from tests.support.chaos_load import Load, faults
from tests.support.chaos_run import ChaosRun, table
from tests.support.ledger_project import until
from tests.support.small_filesystem import can_mount, small_filesystem
from tests.support.stepped_clock import stepped_clocks

EVENTS = int(os.environ.get("SAGE_CHAOS_EVENTS", "60"))
KINDS = [each for each in os.environ.get("SAGE_CHAOS_KINDS", "").split(",") if each]
SEED = int(os.environ.get("SAGE_CHAOS_SEED", "1"))
PATIENCE = 20.0 if "SAGE_CHAOS_EVENTS" in os.environ else 1.0  # CI has three minutes
DISK_MB = 600
AT_ONCE = 10


@pytest.mark.slow
@pytest.mark.timeout(900 + 30 * EVENTS)
async def test_whatever_happens_no_task_is_lost_and_no_write_is_made_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="sage-chaos-", ignore_cleanup_errors=True)))
        directory.chmod(0o755)  # noqa: ASYNC240  PostgreSQL has a user of its own
        clocks = stepped_clocks(directory, "server", "database")
        for name, value in clocks["database"].environment.items() if clocks else ():
            monkeypatch.setenv(name, value)  # of all processes that the test starts
        server = clocks["server"].environment if clocks else {}
        small = can_mount()
        disk = stack.enter_context(small_filesystem(directory / "disk", DISK_MB)) if small else directory
        async with deployed(directory, disk, SAGE_MIN_FREE_DISK_MB="24", **server) as deployment:
            scene = Scene(deployment, random.Random(SEED), clocks, small)
            await _check(scene, deployment)


async def _check(scene: Scene, deployment: Deployment) -> None:
    load = Load(deployment, at_once=AT_ONCE, seconds=0.1, scenario="write")
    run = ChaosRun(scene, load, patience=PATIENCE, kinds=KINDS)
    print(f"\nseed {SEED}, {EVENTS} events, small disk: {scene.small_disk}, clocks: {bool(scene.clocks)}")
    async with load.running():
        await until(lambda: len(load.accepted) > AT_ONCE)
        await run.inflict(EVENTS)
    began = time.monotonic()
    await until(lambda: _is_ready(deployment))
    print(f"ready after {time.monotonic() - began:.1f} s")
    await load.settle()
    ends = await load.ends()
    print(table(run.recoveries()))
    stops = Counter(end.stop for end in ends)
    print(f"{len(ends)} tasks: {dict(stops)}; {len(deployment.ledger.entries)} writes")
    needless = sum(end.stop == "in_doubt" and not end.has_true_doubt for end in ends)
    print(f"{needless} of {stops['in_doubt']} tasks in doubt are so about a write that did not arrive")
    if wrong := faults(ends):
        _keep_logs(deployment.disk)
        print("\n".join(wrong))
    assert wrong == []
    assert run.needless(ends) == []
    assert run.untrue == []
    assert needless <= max(1, stops["in_doubt"] // 10)
    assert stops["completed"] > len(ends) / 2


def _keep_logs(disk: Path) -> None:
    """Where the test's own directory goes."""
    kept = shutil.copytree(disk / "data" / "logs", Path(mkdtemp(prefix="sage-chaos-logs-")), dirs_exist_ok=True)
    print(f"logs: {kept}")
    for log in kept.iterdir():
        for line in log.read_text(errors="replace").splitlines():
            if "internal error" in line:
                print(log.name, line.replace("\\n", "\n"))


async def _is_ready(deployment: Deployment) -> bool:
    return not await deployment.ready()
