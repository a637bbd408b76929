"""Model servers sleep while a run updates on their GPU, and wake whatever its outcome."""

from collections.abc import Iterator

import pytest

from app.base.errors import EngineError, SettingError
from app.base.run_settings import RunKind, RunSettings
from app.base.settings import Settings
from app.db.database import Sessions
from app.runs import store as runs
from tests.support.processes import free_ports
from tests.support.rows import LEASE, project_row
from tests.support.sleepy_server import SleepyServer, sleepy_server
from trainer.engines.servers import servers_that_sleep, sleep_during_updates, sleep_servers, wake_servers
from trainer.worker.launcher import wake_idle


@pytest.fixture
def server() -> Iterator[SleepyServer]:
    with sleepy_server() as server:
        yield server


def test_a_server_sleeps_as_long_as_the_update_and_keeps_the_requests_it_has(server: SleepyServer) -> None:
    with sleep_servers([server.url]):
        assert server.sleeping
    assert not server.sleeping
    assert server.asked == ["/sleep?level=1&mode=keep", "/wake_up"]


def test_it_wakes_when_the_update_fails_and_the_error_is_raised(server: SleepyServer) -> None:
    with pytest.raises(ZeroDivisionError), sleep_servers([server.url]):
        raise ZeroDivisionError
    assert not server.sleeping


def test_if_one_server_cannot_sleep_the_other_wakes_and_the_missing_flags_are_named(server: SleepyServer) -> None:
    with (
        sleepy_server(dev_mode=False) as unable,
        pytest.raises(SettingError, match="VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"),
        sleep_servers([server.url, unable.url]),
    ):
        raise AssertionError("the update must not begin")
    assert not server.sleeping


def test_a_server_whose_sleep_has_no_effect_is_refused(server: SleepyServer) -> None:
    server.sleep_mode = False
    with pytest.raises(SettingError, match="--enable-sleep-mode"), sleep_servers([server.url]):
        raise AssertionError("the update must not begin")
    assert server.asked == []


def test_a_sleep_that_fails_halfway_is_undone(server: SleepyServer) -> None:
    server.broken = True
    with pytest.raises(EngineError, match="does not fall asleep"), sleep_servers([server.url]):
        raise AssertionError("the update must not begin")
    assert not server.sleeping


def test_waking_is_retried_and_a_server_that_stays_asleep_is_named(server: SleepyServer) -> None:
    server.sleeping, server.deaf = True, 2
    wake_servers([server.url])
    assert not server.sleeping
    server.sleeping, server.deaf = True, 1000
    with sleepy_server() as other:
        other.sleeping = True
        with pytest.raises(EngineError, match=f"{server.url} does not wake .*500.*: restart it"):
            wake_servers([server.url, other.url])
        assert not other.sleeping, "one that fails keeps none of the others asleep"


def test_a_server_that_is_down_is_ignored(server: SleepyServer) -> None:
    [port] = free_ports(1)
    with sleep_servers([f"http://127.0.0.1:{port}", server.url]):
        assert server.sleeping
    assert not server.sleeping


def test_servers_sleep_only_if_the_settings_say_so(server: SleepyServer) -> None:
    deployment = Settings(engine_urls=f"{server.url},http://b", rollout_engine_urls="http://c,http://b")
    assert servers_that_sleep(deployment) == []
    with sleep_during_updates(deployment):
        assert not server.sleeping
    one_gpu = Settings(
        engine_urls=f"{server.url},http://b", rollout_engine_urls="http://c,http://b", engine_sleep="update"
    )
    assert servers_that_sleep(one_gpu) == [server.url, "http://b", "http://c"]
    with sleep_during_updates(Settings(engine_urls=server.url, engine_sleep="update")):
        assert server.sleeping


async def test_a_server_that_a_dead_run_left_asleep_is_woken_once_no_run_is_running(
    sessions: Sessions, server: SleepyServer
) -> None:
    server.sleeping = True
    async with sessions.begin() as session:
        run = await runs.create(session, (await project_row(session)).id, RunSettings(kind=RunKind.SFT))
        await runs.claim(session, "me", LEASE, run.id)
    await wake_idle(sessions, [server.url])
    assert server.sleeping, "it sleeps for the update of this run"
    async with sessions.begin() as session:
        await runs.expire(session, run.id, "me")
        await runs.requeue_expired(session)
    await wake_idle(sessions, [server.url])
    assert not server.sleeping


async def test_a_server_that_does_not_wake_does_not_stop_the_worker(
    sessions: Sessions, server: SleepyServer
) -> None:
    server.sleeping, server.deaf = True, 1000
    await wake_idle(sessions, [server.url])
    assert server.sleeping
