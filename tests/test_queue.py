"""The doorbell: what is rung for, and what happens when nobody can hear it."""

import json
import time
from base64 import b64decode
from pathlib import Path
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
