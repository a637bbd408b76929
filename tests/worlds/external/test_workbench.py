"""WorkBench's host on a checkout in its form, of two tools, and on a real one where WORKBENCH_ROOT names it."""

import os
from pathlib import Path

import pytest

from app.apis.calls.gateway import Gateway
from app.base.errors import HostError, InvalidError
from app.base.values import Policy, Stop, Trajectory
from trainer.worlds.external.check import check
from trainer.worlds.external.packages import PACKAGES, load_workbench

_CALENDAR = '''
import pandas as pd
from langchain.tools import tool

CALENDAR_EVENTS = pd.read_csv("data/processed/calendar_events.csv", dtype=str)


def reset_state():
    global CALENDAR_EVENTS
    CALENDAR_EVENTS = pd.read_csv("data/processed/calendar_events.csv", dtype=str)


@tool("calendar.search_events", return_direct=False)
def search_events(query=""):
    """
    Returns the events for a given query.

    Parameters
    ----------
    query: str, optional
        Terms that are matched
        in the name.

    Returns
    -------
    events : list
        Events that match.
    """
    return CALENDAR_EVENTS[CALENDAR_EVENTS["event_name"].str.contains(query)].to_dict(orient="records")


@tool("calendar.update_event", return_direct=False)
def update_event(event_id=None, duration=None):
    """
    Changes an event.
    """
    global CALENDAR_EVENTS
    CALENDAR_EVENTS.loc[CALENDAR_EVENTS["event_id"] == event_id, "duration"] = duration
    return 1 / len(event_id) and "Event updated successfully."
'''
_OTHER = """
import pandas as pd

{name} = pd.DataFrame()


def reset_state():
    pass
"""
_TOOLKITS = """
from src.tools import calendar

tools_with_side_effects = [calendar.update_event]
all_tools = [calendar.search_events, *tools_with_side_effects]
"""
_UTILS = """
import pandas as pd
from langchain.agents import AgentType, initialize_agent
from langchain_community.chat_models.anthropic import ChatAnthropic
from langchain_community.chat_models.anyscale import ChatAnyscale
from langchain_openai import ChatOpenAI, OpenAI
from src.tools import analytics, calendar, customer_relationship_manager, email, project_management

HARDCODED_CURRENT_TIME = pd.to_datetime("2023-11-30T00:00:00")
DOMAINS = [calendar, email, analytics, project_management, customer_relationship_manager]


def is_correct(predicted, wanted, error):
    states = []
    for actions in (predicted, wanted):
        calendar.reset_state()
        for action in actions:
            try:
                eval(action)
            except Exception:
                continue
        states.append(calendar.CALENDAR_EVENTS.copy())
    calendar.reset_state()
    return states[0].equals(states[1])
"""
_STATES = {
    "email": "EMAILS",
    "analytics": "PLOTS_DATA",
    "project_management": "PROJECT_TASKS",
    "customer_relationship_manager": "CRM_DATA",
}


def write_checkout(root: Path) -> None:
    """Events lunch and walk; six templates of two queries each that make one of them longer."""
    files = {
        "src/evals/utils.py": _UTILS,
        "src/tools/calendar.py": _CALENDAR,
        "src/tools/toolkits.py": _TOOLKITS,
        "data/processed/calendar_events.csv": "event_id,event_name,duration\n01,lunch,30\n02,walk,60\n",
        "data/processed/queries_and_answers/calendar_queries_and_answers.csv": "query,answer,base_template\n"
        + "".join(
            f"Make event {event} last {60 + template}.,"
            f'"[\'calendar.update_event.func(event_id=""0{event}"", duration=""{60 + template}"")\']",'
            f"Make event {{event}} last {60 + template}.\n"
            for template in range(6)
            for event in (1, 2)
        ),
    }
    files |= {f"src/tools/{module}.py": _OTHER.format(name=name) for module, name in _STATES.items()}
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_without_a_checkout_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORKBENCH_ROOT", str(tmp_path))
    with pytest.raises(InvalidError, match=r"is no checkout of WorkBench: call `git clone https://\S+`, and set"):
        load_workbench()


@pytest.fixture(scope="module")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In which it is installed."""
    directory = tmp_path_factory.mktemp("worlds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAGE_DATA_DIR", str(directory))
        PACKAGES["workbench"].install(print)
    return directory


@pytest.mark.slow
async def test_a_checkout_has_its_queries_tools_and_judgement(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_checkout(tmp_path)
    monkeypatch.setenv("SAGE_DATA_DIR", str(data_directory))
    monkeypatch.setenv("WORKBENCH_ROOT", str(tmp_path))
    found = await check("workbench", ["train", "validation", "test"], report=False)
    assert [each.tasks for each in found.values()] == [6, 2, 4]
    assert [each.reference for each in found.values()] == [6, 2, 4]
    assert [each.nothing for each in found.values()] == [1, 0, 0], "a walk takes 60 already"

    environment = load_workbench()
    scenario = next(each for each in environment.scenarios("test", 9, 0) if "64" in each.template)
    first, second = scenario.tasks
    async with environment.open(scenario, first) as one, environment.open(scenario, second) as other:
        call, elsewhere = Gateway(one.catalog, one.client), Gateway(other.catalog, other.client)
        assert (one.now.isoformat(), first.instruction.split("\n")[1]) == (
            "2023-11-30T00:00:00+00:00",
            "Make event 1 last 64.",
        )
        operations = one.catalog.apps["calendar"].operations
        assert operations["search_events"].parameters[0].description == "Terms that are matched in the name."
        assert [each.name for each in operations.values() if each.safe] == ["search_events"]
        await call("calendar.update_event", [], {"event_id": "01", "duration": "64"})
        with pytest.raises(HostError, match="ZeroDivisionError"):
            await call("calendar.update_event", [], {"event_id": "", "duration": "1"})
        [changed] = await call("calendar.search_events", [], {"query": "lunch"})
        [unchanged] = await elsewhere("calendar.search_events", [], {"query": "lunch"})
        assert (changed["duration"], unchanged["duration"]) == ("64", "30")
        done = Trajectory(task=first, policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED, answer=None)
        assert not (await other.verify(done)).success


@pytest.mark.slow
@pytest.mark.skipif("WORKBENCH_ROOT" not in os.environ, reason="set WORKBENCH_ROOT to a checkout of WorkBench")
async def test_its_own_queries_are_solved_by_their_answers(
    data_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGE_DATA_DIR", str(data_directory))
    found = await check("workbench", ["train", "validation", "test"], report=False)
    assert sum(each.tasks for each in found.values()) == 690
    assert sum(each.reference for each in found.values()) == 690
    assert sum(each.nothing for each in found.values()) == 124
