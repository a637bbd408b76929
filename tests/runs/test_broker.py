"""The notifications to training workers, and the broker that needs no server."""

import asyncio
import json
import threading
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any
from uuid import uuid4

import pytest

from app.base.settings import Settings
from app.runs.broker import TRAIN, notify_workers, open_broker, worker_notifier


def test_a_notification_carries_the_id_of_the_run_and_expires(tmp_path: Path) -> None:
    run_id = uuid4()
    notify_workers(open_broker(Settings(data_dir=tmp_path)), run_id)
    [file] = (tmp_path / "broker" / "messages").iterdir()
    message = json.loads(file.read_text())
    assert message["headers"]["task"] == TRAIN
    assert message["headers"]["expires"] is not None
    assert json.loads(b64decode(message["body"]))[0] == [str(run_id)]


def test_the_api_opens_the_broker_with_the_first_notification(tmp_path: Path) -> None:
    notify, run_id = worker_notifier(Settings(data_dir=tmp_path)), uuid4()
    assert not any(tmp_path.iterdir()), "a server that never trains needs no broker"
    asyncio.run(notify(run_id))
    [message] = (tmp_path / "broker" / "messages").iterdir()
    assert str(run_id) in message.read_text()


@pytest.mark.parametrize("url", ["amqp://127.0.0.1:1//", "redis://127.0.0.1:1/0"])
def test_an_unreachable_broker_raises_no_error_and_costs_little_time(tmp_path: Path, url: str) -> None:
    began = time.monotonic()
    notify_workers(open_broker(Settings(data_dir=tmp_path, broker_url=url)), uuid4())
    assert time.monotonic() - began < 60


def test_a_broker_without_its_folders_raises_no_error(tmp_path: Path) -> None:
    broker = open_broker(Settings(data_dir=tmp_path))
    messages = tmp_path / "broker" / "messages"
    messages.rmdir()
    notify_workers(broker, uuid4())
    messages.touch()
    notify_workers(broker, uuid4())


def test_a_message_is_never_read_half_written_and_goes_to_one_worker(tmp_path: Path) -> None:
    sent = [str(n) * 2_000_000 for n in range(8)]
    is_sent = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        takers = [threads.submit(_take, tmp_path, is_sent) for _ in range(2)]
        try:
            with open_broker(Settings(data_dir=tmp_path)).connection() as connection:
                queue = connection.SimpleQueue("training")
                for each in sent:
                    queue.put(each)
        finally:
            is_sent.set()
        taken = [each for taker in takers for each in taker.result()]
    assert sorted(taken) == sent


def test_an_unreadable_message_is_skipped(tmp_path: Path) -> None:
    broker, run_id = open_broker(Settings(data_dir=tmp_path)), uuid4()
    folder = tmp_path / "broker" / "messages"
    (folder / "0_a.training.msg").write_text("")
    (folder / "1_b.training.msg").write_text('{"body": "')
    notify_workers(broker, run_id)
    [[[taken], *_]] = _take(tmp_path)
    assert taken == str(run_id)
    assert not list(folder.iterdir())


def _take(directory: Path, is_sent: threading.Event | None = None) -> list[Any]:
    """The messages that a worker receives, until there are none and all are sent."""
    taken: list[Any] = []
    with open_broker(Settings(data_dir=directory)).connection() as connection:
        queue = connection.SimpleQueue("training")
        while True:
            is_last = is_sent is None or is_sent.is_set()
            try:
                message = queue.get_nowait()
            except Empty:
                if is_last:
                    return taken
                time.sleep(0.001)
            else:
                message.ack()
                taken.append(message.payload)
