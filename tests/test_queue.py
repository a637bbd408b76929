"""The doorbell: what is rung for, and what happens when nobody can hear it."""

import json
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty
from typing import Any
from uuid import uuid4

import pytest

from app.queue import TRAIN, open_broker, ring
from app.settings import Settings


def test_a_ring_leaves_a_message_with_the_id_of_the_run_that_does_not_last_for_ever(tmp_path: Path) -> None:
    run_id = uuid4()
    ring(open_broker(Settings(data_dir=tmp_path)), run_id)
    [file] = (tmp_path / "broker" / "messages").iterdir()
    message = json.loads(file.read_text())
    assert message["headers"]["task"] == TRAIN
    assert message["headers"]["expires"] is not None
    assert json.loads(b64decode(message["body"]))[0] == [str(run_id)]


@pytest.mark.parametrize("url", ["amqp://127.0.0.1:1//", "redis://127.0.0.1:1/0"])
def test_a_broker_that_is_away_costs_no_error_and_little_time(tmp_path: Path, url: str) -> None:
    began = time.monotonic()
    ring(open_broker(Settings(data_dir=tmp_path, broker_url=url)), uuid4())
    assert time.monotonic() - began < 5


def test_a_broker_whose_folders_are_gone_costs_no_error(tmp_path: Path) -> None:
    broker = open_broker(Settings(data_dir=tmp_path))
    (tmp_path / "broker" / "messages").rmdir()
    ring(broker, uuid4())


def test_a_message_is_never_met_half_written_and_goes_to_one_worker(tmp_path: Path) -> None:
    sent = [str(n) * 2_000_000 for n in range(8)]
    with ThreadPoolExecutor(3) as threads:
        takers = [threads.submit(_take, tmp_path, patience=2) for _ in range(2)]
        with open_broker(Settings(data_dir=tmp_path)).connection() as connection:
            queue = connection.SimpleQueue("training")
            for each in sent:
                queue.put(each)
        taken = [each for taker in takers for each in taker.result()]
    assert sorted(taken) == sent


def test_a_message_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    broker, run_id = open_broker(Settings(data_dir=tmp_path)), uuid4()
    folder = tmp_path / "broker" / "messages"
    (folder / "0_a.training.msg").write_text("")
    (folder / "1_b.training.msg").write_text('{"body": "')
    ring(broker, run_id)
    [[[taken], *_]] = _take(tmp_path)
    assert taken == str(run_id)
    assert not list(folder.iterdir())


def _take(directory: Path, patience: float = 0) -> list[Any]:
    """What a worker takes until nothing has come for so many seconds."""
    taken: list[Any] = []
    with open_broker(Settings(data_dir=directory)).connection() as connection:
        queue = connection.SimpleQueue("training")
        until = time.monotonic() + patience
        while True:
            try:
                message = queue.get_nowait()
            except Empty:
                if time.monotonic() >= until:
                    return taken
                time.sleep(0.001)
            else:
                message.ack()
                taken.append(message.payload)
                until = time.monotonic() + patience
