"""Code in the sandbox behaves as in plain CPython."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from app.base.errors import HostError
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.sandbox.wire import HINT
from tests.sandbox.sandbox_cases import mock_apis

Report = list[list[str | None]]  # per turn: what was printed, and the last line of the error

_CASES = Path(__file__).parent / "sandbox_cases"
_SNIPPETS: dict[str, list[str]] = {
    snippet["name"]: snippet["turns"]
    for file in ("snippets.json", "more_snippets.json")
    for snippet in json.loads((_CASES / file).read_text())
}


@pytest_asyncio.fixture(scope="module")
async def cpython() -> dict[str, Report]:
    """What plain CPython makes of every snippet."""
    environment = {"PYTHONHASHSEED": "0", "TZ": "UTC"}
    command = (sys.executable, "-X", "utf8", str(_CASES / "reference.py"))
    process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, stderr=-1, env=environment)
    output, complaint = await process.communicate(json.dumps(list(_SNIPPETS.values())).encode())
    assert process.returncode == 0, complaint.decode()
    return {name: json.loads(line) for name, line in zip(_SNIPPETS, output.splitlines(), strict=True)}


@pytest.mark.parametrize("name", _SNIPPETS)
async def test_a_snippet_prints_and_raises_the_same_as_in_cpython(
    name: str, cpython: dict[str, Report], sandbox: ForkedSandbox
) -> None:
    apis = mock_apis.make()
    session = await sandbox.open({app: list(names) for app, names in apis.items()}, _caller(apis), SessionLimits())
    report: Report = []
    for turn in _SNIPPETS[name]:
        observation = await session.run(turn)
        last = observation.error.splitlines()[-1].strip().partition(HINT)[0] if observation.error else None
        report.append([observation.stdout, last])
    await session.close()
    assert report == cpython[name]


def _caller(apis: mock_apis.Apis) -> Any:
    async def call(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:
        app, name = api.split(".")
        try:
            return apis[app][name](*args, **kwargs)
        except Exception as error:
            raise HostError("Exception", str(error)) from error

    return call
