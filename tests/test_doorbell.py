"""The doorbell of the API, on the broker that needs no server."""

import asyncio
from pathlib import Path
from uuid import uuid4

from app.api.worker_notifier import BrokerBell
from app.settings import Settings


def test_a_ring_leaves_one_message_that_names_the_run(tmp_path: Path) -> None:
    bell, run_id = BrokerBell(Settings(data_dir=tmp_path)), uuid4()
    assert not any(tmp_path.iterdir()), "a server that trains nothing needs no broker"
    asyncio.run(bell.ring(run_id))
    [message] = (tmp_path / "broker" / "messages").iterdir()
    assert str(run_id) in message.read_text()


def test_a_broker_that_cannot_be_reached_fails_nothing(tmp_path: Path) -> None:
    bell = BrokerBell(Settings(data_dir=tmp_path))
    asyncio.run(bell.ring(uuid4()))
    messages = tmp_path / "broker" / "messages"
    for message in messages.iterdir():
        message.unlink()
    messages.rmdir()
    messages.touch()
    asyncio.run(bell.ring(uuid4()))
