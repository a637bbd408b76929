"""The profile `brief`: the compact one, and the apps in one line before it."""

from uuid import UUID

from app.agent.prompt_profiles import PROFILES
from app.engine.tokenizer import Message
from app.records import Offer, Task
from app.sandbox.protocol import Observation, RunStop

BRIEF, COMPACT = PROFILES["brief"], PROFILES["compact"]
TASK = Task(UUID(int=7), "Close all tickets of Dr. Weiss.")
OFFER = Offer(
    skill_id=UUID(int=8),
    name="close_tickets",
    version=1,
    signature="close_tickets(name: str) -> int",
    source="def close_tickets(name: str) -> int:\n    return 0\n",
    instruction="Close the tickets of noor.",
)
APPS = {
    "api_docs": "Look up APIs.",
    "supervisor": "Passwords.",
    "helix": "tickets of\nyour  users",
    "bare": "",
}


def test_the_apps_come_first_and_the_rest_is_compact() -> None:
    for offers in ([], [OFFER]):
        [message] = BRIEF.opening(TASK, offers, APPS)
        line, _, rest = message.content.partition("\n")
        assert line == "apps: supervisor, Passwords; helix, tickets of your users; bare"
        assert [Message("user", rest)] == COMPACT.opening(TASK, offers, APPS)


def test_observations_are_those_of_compact() -> None:
    for observation in (
        Observation(stdout="3\n"),
        Observation(stdout=""),
        Observation(stdout="", error="Traceback\nKeyError: 3\n", stop=RunStop.ERROR),
        Observation(stdout="", stop=RunStop.WALL, alive=False),
    ):
        assert BRIEF.observation(observation) == COMPACT.observation(observation)


def test_many_apps_and_long_descriptions_do_not_fill_the_prompt() -> None:
    apps = {f"app_{number}": "word " * 1000 for number in range(1000)}
    line = BRIEF.opening(TASK, [], apps)[0].content.partition("\n")[0]
    assert len(line) < 2200
    assert line.endswith("app_23, word word word word word word word word word word word word ...; "
                         "more in api_docs.show_app_descriptions()")  # fmt: skip


def test_without_apps_the_line_says_so() -> None:
    assert BRIEF.opening(TASK, [], {"api_docs": "Look up APIs."})[0].content.startswith("apps: none\n")
