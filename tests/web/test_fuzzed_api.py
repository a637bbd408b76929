"""Requests that Schemathesis derives from the OpenAPI document, against a server with data in it.

For longer: FUZZ_SECONDS=1800 pytest tests/web/test_fuzzed_api.py
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app
from tests.support.http_server import served
from tests.support.tenant_rows import fill

_SECONDS = int(os.environ.get("FUZZ_SECONDS", "20"))  # for each of two runs
_HOOKS = Path(__file__).parents[1] / "support" / "fuzz_hooks.py"
_ANSWERS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "allow_header_conformance",
)
_RUNS = {
    "of rows that exist": ("fuzzing", (*_ANSWERS, "missing_required_header")),
    "at the limits": ("coverage", (*_ANSWERS, "missing_required_header", "negative_data_rejection")),
}


@pytest.fixture
async def api(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url, directory=tmp_path, chat_wait_seconds=0.5) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("run", _RUNS)
async def test_no_request_fails_the_server_or_gets_an_undocumented_answer(
    api: ApiApp, tmp_path: Path, run: str
) -> None:
    async with api.sessions.begin() as session:
        projects = [await fill(session, f"filled-{number}") for number in range(4)]
    phase, checks = _RUNS[run]
    known = {"FUZZED_PROJECTS": json.dumps(projects if phase == "fuzzing" else [])}
    async with served(api) as client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{client.base_url}/schema/openapi.json"),
            *("--header", f"Authorization: {api.client.headers['Authorization']}", "--no-color"),
            *("--phases", phase, "--checks", ",".join(checks), "--continue-on-failure", "--warnings", "off"),
            *("--max-time", str(_SECONDS), "--max-examples", "1000", "--request-timeout", "20"),
            env={**os.environ, **known, "SCHEMATHESIS_HOOKS": str(_HOOKS)},
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), _SECONDS + 240)
    assert process.returncode == 0, output.decode()
