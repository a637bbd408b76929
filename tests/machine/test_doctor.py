"""`sage doctor` as an operator runs it: against a real deployment, sound or with one part broken."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text, update

from app.apis import store as apis
from app.apis import trials
from app.base.plugins import EnvironmentInfo
from app.base.settings import Settings
from app.db import postgres, runners, tables
from app.db.database import Sessions, open_database
from app.db.migrate import migrate
from app.db.queries import from_now
from app.db.tables import TrialState
from app.machine.doctor import check_trials, examine, skew_finding
from app.machine.local_database import lock_data_dir, noted_settings
from app.projects import secrets
from app.releases import hosted_models
from app.releases import store as releases
from app.releases.bundled_adapter import BundledAdapter
from app.runs import schedule
from app.runs import store as runs
from tests.machine.test_local_database import data_dir as data_dir  # a fixture
from tests.processes.test_asgi import environment, run
from tests.support.engine_process import engine_process
from tests.support.named_adapters import make_named
from tests.support.rows import project_row, runner_report
from tests.support.tiny_model import make_model_dir

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("doctor"))


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir) as url:
        yield url


class Patient:
    """A deployment, and what the doctor says about it."""

    def __init__(self, env: dict[str, str]) -> None:
        self.env = env

    async def examined(self, **changes: str) -> tuple[int, dict[str, str]]:
        """What the command's exit code would be, and the verdict and text by part."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (self.env | changes).items():
                patch.setenv(name, value)
            findings = [each async for each in examine(Settings.from_env())]
        code = int(any(each.verdict == "fault" for each in findings))
        return code, {each.part: f"{each.verdict}: {each.text}" for each in findings}

    async def printed(self) -> tuple[int, dict[str, str]]:
        """The same, of the command, which prints nothing else."""
        code, out, err = await run("-m", "app.cli", "doctor", env=self.env)
        assert "Traceback" not in err, err
        *lines, summary = out.splitlines()
        assert all(line.startswith(("ok ", "warning ", "fault ")) for line in lines), out
        assert summary.endswith(("warnings", "1 warning"))
        return code, {line[9:24].strip(): f"{line[:9].strip()}: {line[24:]}" for line in lines}


@pytest.fixture
async def patient(committed: Sessions, database_url: str, engine: str, model_dir: Path, tmp_path: Path) -> Patient:
    """A sound one, whose runner and worker report."""
    async with committed.begin() as session:
        await runners.report(session, runner_report())
        later = from_now(120)  # the command may take longer to start than a report counts
        await session.execute(update(tables.RunnerProcess).values(seen_at=later))
        await runs.report(session, "gpu1", [EnvironmentInfo("office", "1", {})])
    env = environment(tmp_path / "other", database_url) | {
        "ENGINE_URLS": engine,
        "SAGE_MODEL": str(model_dir),
        "SAGE_DATA_DIR": str(tmp_path),
    }
    return Patient(env)


async def test_a_sound_deployment_has_no_fault(patient: Patient) -> None:
    code, found = await patient.printed()
    assert [text for text in found.values() if text.startswith("fault")] == []
    assert code == 0
    assert ": embedded server 0." in found["model server"]
    assert "sees the adapter directory" in found["model server"]
    assert found["runners"] == "ok: 1 works, on 1 host"
    assert found["workers"] == "ok: gpu1"
    assert found["database"].startswith("ok: PostgreSQL ")
    assert {
        "disk",
        "data directory",
        "key",
        "clock",
        "sandbox",
        "broker",
        "adapters",
        "embeddings",
    } <= found.keys()
    verdicts = {part: found[part].partition(":")[0] for part in ("key", "clock", "adapters", "broker")}
    assert set(verdicts.values()) == {"ok"}


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        ({"SAGE_MODEL": "/nowhere"}, "model", "SAGE_MODEL=/nowhere"),
        ({"ENGINE_URLS": NOWHERE}, "model server", NOWHERE),
        ({"SAGE_ENGINE_ROUTER_URL": NOWHERE}, "model server", "SAGE_ENGINE_ROUTER_URL"),
        ({"DATABASE_URL": "postgresql://127.0.0.1:9/none"}, "database", "Check DATABASE_URL"),
        ({"SAGE_SECRET_KEY": ""}, "key", "SAGE_SECRET_KEY"),
        ({"SAGE_SECRET_KEY": "another key that the others do not have"}, "key", "SAGE_SECRET_KEY"),
        ({"SAGE_ADAPTER_STORE": "nowhere://bucket"}, "adapter store", "SAGE_ADAPTER_STORE"),
        ({"SAGE_DATA_DIR": "/dev/null"}, "data directory", "SAGE_DATA_DIR"),
    ],
)
async def test_a_fault_is_named_with_what_to_mend(
    patient: Patient, committed: Sessions, change: dict[str, str], part: str, words: str
) -> None:
    async with committed.begin() as session:
        await secrets.put(session, (await project_row(session)).id, "password", "x")
    code, found = await patient.examined(**change)
    assert code == 1
    assert found[part].startswith("fault: ")
    assert words in found[part]
    assert "embeddings" in found, "no fault stops the other checks"


async def test_a_variable_that_is_not_read_is_named_with_the_one_that_is(patient: Patient) -> None:
    code, found = await patient.examined(SAGE_TASK_MAX_SECONDS="9")
    assert (code, found["settings"]) == (
        0,
        "warning: SAGE_TASK_MAX_SECONDS is no setting, and is not read: did you mean SAGE_MAX_TASK_SECONDS?",
    )


async def test_a_model_that_was_not_pulled_stops_no_other_check(patient: Patient) -> None:
    code, found = await patient.examined(SAGE_MODEL="smollm2-135m")
    assert code == 1
    assert "run `sage models pull smollm2-135m`" in found["model"]
    assert "embeddings" in found


async def test_a_router_is_proved_with_the_servers_behind_it(
    patient: Patient, committed: Sessions, engine: str, model_dir: Path, tmp_path: Path
) -> None:
    """The server is its own router. It has another name for the model than the adapter."""
    name = make_named(model_dir, tmp_path / "adapters", seed=1)
    async with committed.begin() as session:
        candidate = await releases.propose(session, (await project_row(session)).id, name)
        await releases.activate(session, candidate.id)
    code, found = await patient.examined(SAGE_ENGINE_ROUTER_URL=engine, SAGE_ENGINE_MODEL="org/model")
    assert code == 0
    assert found["router"] == f"ok: {engine} passes on token ids and logprobs, 1 model server behind it"
    assert found["adapters"].startswith("warning: a restarted model server cannot load these by itself: " + name)
    assert "SAGE_ENGINE_MODEL" in found["adapters"]


async def test_a_broker_that_is_down_is_a_warning(patient: Patient) -> None:
    code, found = await patient.examined(BROKER_URL="redis://127.0.0.1:9/0")
    assert (code, found["broker"].startswith("warning: ")) == (0, True)
    assert "BROKER_URL" in found["broker"]


async def test_runners_that_do_not_work_are_a_fault(patient: Patient, committed: Sessions) -> None:
    async with committed.begin() as session:
        await runners.report(session, runner_report(error="no forks"))
        await session.execute(update(tables.RunnerProcess).values(seen_at=from_now(120)))
    code, found = await patient.examined()
    assert (code, found["runners"]) == (1, "fault: here (pid 7): no forks")
    async with committed.begin() as session:
        await runners.remove(session, "runner")
    code, found = await patient.examined()
    assert code == 1
    assert "sage runner" in found["runners"]


async def test_an_adapter_that_is_missing_here_is_a_fault(patient: Patient, committed: Sessions) -> None:
    async with committed.begin() as session:
        candidate = await releases.propose(session, (await project_row(session)).id, "0" * 32)
        await releases.activate(session, candidate.id)
    code, found = await patient.examined()
    assert code == 1
    assert "there is no adapter" in found["adapters"]


async def test_a_project_without_the_adapter_that_comes_with_the_model_is_a_warning(
    patient: Patient, committed: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled = BundledAdapter(model="tiny", path=tmp_path, hash="0" * 32, weights="")
    monkeypatch.setattr(BundledAdapter, "of", lambda _: bundled)
    async with committed.begin() as session:
        name = (await project_row(session)).name
    code, found = await patient.examined()
    assert (code, found["adapters"].startswith(f"warning: {name}: ")) == (0, True)
    assert f"sage releases --add {tmp_path}" in found["adapters"]


async def test_a_schedule_whose_runs_cannot_learn_is_a_warning(patient: Patient, committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        new = schedule.ScheduleRequest(every_hours=6)
        await schedule.put(session, project.id, new)
    _, found = await patient.examined()
    assert found["learning"].startswith(
        f"warning: runs of project {project.name} learn nothing: no task of the last"
    )
    async with committed.begin() as session:
        await schedule.put(session, project.id, msgspec.structs.replace(new, enabled=False))
    _, found = await patient.examined()
    assert "learning" not in found


async def test_an_api_that_the_model_cannot_use_is_a_warning(patient: Patient, committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        for name, correct in (("desk", False), ("mail", True)):
            api = await apis.put(session, project.id, name, source="upload", document={}, digest=name)
            trial = await trials.renew(session, project.id, api.id)
            trial.state, trial.questions = TrialState.DONE, [{"correct": correct}, {"correct": False}]
        api = await apis.put(session, project.id, "shop", source="upload", document={}, digest="shop")
        trial = await trials.renew(session, project.id, api.id)
        trial.state, trial.reason = TrialState.NOT_TRIED, "its lists are empty"
    async with open_database(patient.env["DATABASE_URL"]) as database:
        found = [(each.verdict, each.text) async for each in check_trials(database)]
    assert found[0][0] == "warning"
    assert found[0][1].startswith(f"desk of project {project.name}: the model answered 0 of 2 questions")
    again = f"`sage apis trial shop --again --project {project.name}` tries it again"
    assert found[1:] == [
        ("warning", f"shop of project {project.name} was not tried: its lists are empty: {again}"),
        ("ok", "1 of 2 that were tried can be used"),
    ]
    code, parts = await patient.examined()
    assert code == 0
    assert "APIs" in parts


async def test_a_schema_that_lacks_a_migration_is_a_fault(patient: Patient, committed: Sessions) -> None:
    async with committed.begin() as session:
        head = (await session.scalars(text("DELETE FROM alembic_version RETURNING version_num"))).one()
    try:
        code, found = await patient.examined()
    finally:
        async with committed.begin() as session:
            await session.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": head})
    assert code == 1
    assert "sage migrate" in found["database"]


async def test_an_invalid_setting_is_the_only_finding(patient: Patient) -> None:
    code, out, err = await run("-m", "app.cli", "doctor", env=patient.env | {"SAGE_PORT": "http"})
    assert (code, out) == (1, "")
    assert "SAGE_PORT" in err


async def test_without_urls_and_sage_up_it_says_what_to_start(patient: Patient) -> None:
    code, found = await patient.examined(DATABASE_URL="")
    assert code == 1
    assert "`sage up` does not run here" in found["services"]


async def test_the_database_of_a_stopped_server_is_examined(patient: Patient, data_dir: Path) -> None:
    directory = data_dir / "postgres"
    migrate(postgres.start(directory))
    postgres.stop(directory)
    code, found = await patient.examined(DATABASE_URL="", ENGINE_URLS="", SAGE_DATA_DIR=str(data_dir))
    assert (code, found["services"].partition(":")[0]) == (1, "fault")
    assert found["database"].startswith("ok: PostgreSQL")
    assert {"clock", "connections", "key", "adapters"} <= found.keys()
    assert not (directory / "postmaster.pid").exists(), "it is stopped again"
    with lock_data_dir(data_dir):
        pass


@pytest.mark.parametrize(
    ("skew", "trip", "verdict"),
    [(0.0, 0.1, "ok"), (1.4, 1.0, "ok"), (1.4, 0.1, "warning"), (-2.0, 0.1, "warning"), (-60.0, 2.0, "fault")],
)
def test_clocks_that_differ_are_reported_beyond_what_the_round_trip_hides(
    skew: float, trip: float, verdict: str
) -> None:
    assert skew_finding(skew, trip).verdict == verdict


async def test_the_model_is_that_of_the_running_server_whatever_this_terminal_has_set(
    patient: Patient, committed: Sessions, tmp_path: Path
) -> None:
    """Its key is in no file: a hosted model that needs it is not asked."""
    url = f"{NOWHERE}/v1"
    async with committed.begin() as session:
        project = await project_row(session)
        row = await hosted_models.add(session, project.id, "wise", None, url=url, model="wise-1", trusted=True)
        await releases.activate(session, (await hosted_models.propose(session, project.id, row.name)).id)
    served = Settings.from_env(
        patient.env | {"SAGE_MODEL": "wise-1", "SAGE_MODEL_URL": url, "SAGE_MODEL_KEY": "mellon"}
    )
    other = {"SAGE_MODEL": "smollm2-135m", "ENGINE_URLS": NOWHERE}
    with lock_data_dir(tmp_path), noted_settings(served):
        assert b"mellon" not in (tmp_path / "up.json").read_bytes()
        _, found = await patient.examined(**other)
    assert found["model"] == f"ok: wise-1 at {url}"
    assert found["embeddings"].startswith("ok: ")
    assert "set SAGE_MODEL_KEY here" in found["model endpoint"]
    _, found = await patient.examined(**other)
    assert "smollm2-135m" in found["model"], "it has ended"
