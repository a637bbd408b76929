"""A client that is generated from the OpenAPI document works against the server, and nothing of it is missing."""

import asyncio
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tests.support.approving import ApprovingProject
from tests.support.http_server import served
from tests.support.reference_pages import openapi_document
from tests.support.scripted_engine import ScriptedEngine, block

_NAME = "generated_sage_client"


@pytest.fixture(scope="module")
def client_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    directory = tmp_path_factory.mktemp("client")
    document = directory / "openapi.json"
    document.write_bytes(msgspec.json.encode(openapi_document()))
    tools = Path(sys.executable).parent
    generated = subprocess.run(
        [
            *(tools / "openapi-python-client", "generate", "--path", document, "--meta", "none"),
            *("--fail-on-warning", "--output-path", directory / _NAME),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
    )
    assert generated.returncode == 0, generated.stdout + generated.stderr
    assert "WARNING" not in generated.stdout, generated.stdout
    sys.path.insert(0, str(directory))
    yield importlib.import_module(_NAME)
    sys.path.remove(str(directory))


@pytest.mark.slow
async def test_a_generated_client_submits_a_task_and_waits_for_it(
    client_module: ModuleType, demo: ApprovingProject
) -> None:
    def use(url: str, key: str) -> tuple[str, object, str]:
        """The state and the answer of a task, and what an unknown one is answered."""
        tasks = importlib.import_module(f"{_NAME}.api.tasks.tasks_submit")
        show = importlib.import_module(f"{_NAME}.api.tasks.tasks_show")
        submission = importlib.import_module(f"{_NAME}.models.submission").Submission
        with client_module.AuthenticatedClient(base_url=url, token=key) as client:
            accepted = tasks.sync(client=client, body=submission(instruction="how many?", project="demo"))
            shown = show.sync(accepted.id, client=client)
            while shown.state not in ("done", "failed"):
                time.sleep(0.1)
                shown = show.sync(accepted.id, client=client)
            unknown = show.sync("00000000-0000-0000-0000-000000000000", client=client)
            return shown.state.value, shown.answer, unknown.error

    complete = block("apis.supervisor.complete_task(answer=7)")
    engine = ScriptedEngine(demo.project.tokenizer, script=lambda *_: complete)
    async with demo.project.runner(engine), served(demo.api) as client:
        key = demo.api.client.headers["Authorization"].removeprefix("Bearer ")
        state, answer, error = await asyncio.to_thread(use, str(client.base_url), key)
    assert (state, answer, error) == ("done", 7, "NotFoundError")
