"""The profile `brief`: the compact one, and a line for each app before it."""

from uuid import UUID

from app.agent.prompts import PROFILES
from app.apis.listing import ListedApp
from app.base.values import Offer, Task
from app.engine.tokenizer import Message
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
APPS = [
    ListedApp("api_docs", "Look up APIs."),
    ListedApp("supervisor", "Passwords.", ("show_passwords(): the passwords",)),
    ListedApp("helix", "tickets of\nyour  users"),
    ListedApp("bare", ""),
]


def test_the_apps_come_first_and_the_rest_is_compact() -> None:
    for offers in ([], [OFFER]):
        [message] = BRIEF.opening(TASK, offers, APPS)
        *lines, rest = message.content.split("\n", 3)
        assert lines == ["Passwords: apis.supervisor", "tickets of your users: apis.helix", "apis.bare"]
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
    apps = [ListedApp(f"app_{number}", "word " * 1000) for number in range(1000)]
    lines = BRIEF.opening(TASK, [], apps)[0].content.split("\n")
    assert len("\n".join(lines)) < 2200
    assert lines[23:25] == [
        "word word word word word word word word word word word word ...: apis.app_23",
        "more apps: apis.api_docs.show_app_descriptions()",
    ]


def test_without_apps_the_prompt_says_so() -> None:
    assert BRIEF.opening(TASK, [], APPS[:1])[0].content.startswith("no apps\n")
