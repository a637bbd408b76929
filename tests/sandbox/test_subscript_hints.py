"""The error of a failed subscript says what would have been there, if that is known without running code again."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from app.agent.prompts import PROFILES
from app.base.values import Json
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Observation, RunStop, SessionLimits
from app.sandbox.session import ForkedSession
from tests.support.every_row import every_row
from tests.support.skill_sessions import run_turns

_ANSWER = {"Results": [{"id": 1, "workstream": "Comet", "details": {"tax": 3}}], "next": None}
_ROWS = "rows = apis.t.list()['Results']\n"
_KEYS = "Hint: the keys are Results, next"
_OF_ROW = "the keys are id, workstream, details"


async def _list(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:  # noqa: ARG001
    return _ANSWER


@asynccontextmanager
async def opened(sandbox: ForkedSandbox) -> AsyncIterator[ForkedSession]:
    session = await sandbox.open({"t": ["list", "other"]}, _list, SessionLimits())
    try:
        yield session
    finally:
        await session.close()


@pytest_asyncio.fixture
async def session(bare_sandbox: ForkedSandbox) -> AsyncIterator[ForkedSession]:
    async with opened(bare_sandbox) as session:
        yield session


_HINTS: list[tuple[str, str]] = [
    ("apis.t.list()['items']", _KEYS),
    ("t = apis.t\nt.list(\n    page=1,\n)['items']", _KEYS),
    ("answer = apis.t.list()\nanswer['items']", _KEYS),
    ("é = apis.t.list(); print('é', é['items'])", _KEYS),
    (_ROWS + "for row in rows:\n    if row['WorkStream'] == 'Comet': pass",
     f"Hint: did you mean workstream? {_OF_ROW.capitalize()}"),
    (_ROWS + "[row['owner'] for row in rows]", f"Hint: {_OF_ROW}"),
    (_ROWS + "max(rows, key=lambda row: row['details']['weight'])", "Hint: the keys are tax"),
    (_ROWS + "def f(row):\n    return row['owner']\nf(rows[0])", f"Hint: {_OF_ROW}"),
    (_ROWS + "key = 'owner'\nrows[0][key]", f"Hint: {_OF_ROW}"),
    ("for row in apis.t.list():\n    row['id']", "Hint: it is the text 'Results'"),
    (_ROWS + "rows['id']", f"Hint: it is a list of 1; the keys of the first are {_OF_ROW[13:]}"),
    ("found = []\nfound['id']", "Hint: it is a list of 0"),
    ("{}['a']", ""),  # not worth a hint: it stands in the code
    ("found = {}\nfound['a']", "Hint: the dict is empty"),
    ("found = {n: n for n in range(30)}\nfound[99]",
     f"Hint: the keys are {', '.join(map(str, range(20)))}, ..."),
    ("found = {(1, 2): 3}\nfound['a']", "Hint: the keys are a tuple"),
]  # fmt: skip


async def test_the_hint_names_what_was_there(bare_sandbox: ForkedSandbox) -> None:
    with every_row() as row:
        for code, hint in _HINTS:
            with row(code, hint):
                async with opened(bare_sandbox) as session:
                    seen = await session.run(code)
                assert seen.stop == RunStop.ERROR
                last = (seen.error or "").rpartition("\n")[2]
                assert last.partition(". ")[2] == hint


@pytest.mark.parametrize(
    "code",
    [
        "raise KeyError('a')",
        "{'a': 1}.pop('b')",
        "import os\nos.environ['NONE']",  # the standard library raises
        "apis.t.list()['Results'].sort()['a']",
        "class D(dict): pass\nd = D(a=1)\nd['b']",  # may define anything
        "def make(): return {'a': 1}\nmake()['b']",  # would run again
        "d = {'a': 1}\ntry:\n    d['b']\nexcept KeyError as error:\n    raise ValueError('c') from error",
        "None['a']",
    ],
)
async def test_without_the_value_there_is_no_hint(session: ForkedSession, code: str) -> None:
    seen = await session.run(code)
    assert seen.error
    assert "Hint" not in seen.error


async def test_a_hint_of_hostile_values_is_short_and_runs_none_of_their_code(session: ForkedSession) -> None:
    code = (
        "class K:\n    def __repr__(self): print('ran'); return 'x' * 10 ** 6\n    __str__ = __repr__\n"
        "d = {K(): 1, 'x' * 10 ** 6: 2} | {f'k{n}' * 9: n for n in range(10 ** 5)}\nd['k1' * 9 + 'z']"
    )
    seen = await session.run(code)
    assert seen.stdout == ""
    assert (seen.error or "").rpartition(". ")[2].startswith("Hint: did you mean k1")
    assert len(seen.error or "") < 3_000


async def test_the_hint_crosses_from_a_skill_to_its_caller(sandbox: ForkedSandbox) -> None:
    skills = {"first": "def first(rows: list) -> int:\n    return rows[0]['size']\n"}
    code = "try:\n    first([{'weight': 1}])\nexcept KeyError as error:\n    print(error.args)\n    raise"
    (seen,) = await run_turns(sandbox, skills, code)
    assert seen.stdout == "('size',)\n"
    assert (seen.error or "").endswith("KeyError: 'size'. Hint: the keys are weight")


def test_the_profiles_for_models_that_read_show_the_hint() -> None:
    error = (
        "Traceback (most recent call last):\n  File \"<turn 1>\", line 1\n    f()\nKeyError: 'a'. Hint: it is b"
    )
    observation = Observation(stdout="", error=error, stop=RunStop.ERROR)
    assert PROFILES["brief"].observation(observation) == "KeyError: 'a'. Hint: it is b"
    assert PROFILES["full"].observation(observation).endswith("KeyError: 'a'. Hint: it is b")
    assert PROFILES["compact"].observation(observation) == "KeyError: 'a'"
