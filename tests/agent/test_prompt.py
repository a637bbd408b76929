"""Prompts and observations of both profiles."""

from uuid import UUID, uuid4

import msgspec
import pytest

from app.agent.prompts import PROFILES, RESTARTED, choose_profile
from app.apis.listing import ListedApp
from app.base.errors import SettingError
from app.base.values import Offer, Task
from app.engine.tokenizer import Message
from app.sandbox.protocol import Observation, RunStop

FULL, COMPACT = PROFILES["full"], PROFILES["compact"]
TASK = Task(uuid4(), "archive every one of my mails from omar")
OFFER = Offer(
    skill_id=uuid4(),
    name="archive_mails_by_person",
    version=1,
    signature="archive_mails_by_person(name: str) -> int",
    source="def archive_mails_by_person(name: str) -> int:\n    return 0\n",
    instruction="archive every one of my mails from iris",
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "<turn 1>", line 2, in <module>\n'
    "    apis.mail.archive(id=3)\n    ^^^^^^^^^^^^^^^\n"
    'ApiError: Response status code is 409: {"message": "call unlock first"}\n'
)


def test_compact_without_skills_is_the_instruction_and_nothing_else() -> None:
    assert COMPACT.opening(TASK, [], [ListedApp("mail", "mails")]) == [Message("user", TASK.instruction)]


def test_compact_lists_each_skill_in_one_line_with_its_instruction() -> None:
    [message] = COMPACT.opening(TASK, [OFFER], [])
    assert message.content == (
        "archive every one of my mails from omar\n"
        "skills:\n"
        "archive_mails_by_person(name: str) -> int: archive every one of my mails from iris"
    )


def test_compact_shows_the_error_as_its_last_line_alone() -> None:
    observation = Observation(stdout="before\n\n", error=TRACEBACK, stop=RunStop.ERROR)
    assert COMPACT.observation(observation) == (
        'before\nApiError: Response status code is 409: {"message": "call unlock first"}'
    )


def test_compact_shows_ok_without_output_or_error() -> None:
    assert COMPACT.observation(Observation(stdout="\n")) == "ok"


@pytest.mark.parametrize("profile", PROFILES)
def test_a_long_output_is_cut_at_a_line_and_keeps_the_error(profile: str) -> None:
    stdout = "\n".join(f"line {number:04}" for number in range(2000))
    shown = PROFILES[profile].observation(Observation(stdout=stdout, error=TRACEBACK, stop=RunStop.ERROR))
    kept = [line for line in shown.splitlines() if line.startswith("line ")]
    assert kept == [f"line {number:04}" for number in range(len(kept))]
    lost = len(stdout) - len("\n".join(kept)) - 1
    assert f"[{lost} characters cut]" in shown
    assert "ApiError: Response status code is 409" in shown
    assert len(shown) < 9000


def test_compact_stays_within_two_thousand_characters_even_with_a_huge_error() -> None:
    observation = Observation(stdout="x" * 9000, error="ValueError: " + "y" * 9000, stop=RunStop.ERROR)
    assert len(COMPACT.observation(observation)) < 2100


def test_full_lists_skills_as_source_with_their_instructions() -> None:
    _, user = FULL.opening(TASK, [OFFER], [])
    assert OFFER.source.strip() in user.content
    assert OFFER.instruction in user.content
    assert user.content.endswith(f"Task: {TASK.instruction}")


@pytest.mark.parametrize("profile", PROFILES)
def test_what_was_said_before_is_in_the_prompt_only_where_there_is_some(profile: str) -> None:
    task = Task(UUID(int=1), "and those from omar", conversation="user: archive the mails from iris")
    said = PROFILES[profile].opening(task, [], [])[-1].content
    unsaid = PROFILES[profile].opening(msgspec.structs.replace(task, conversation=""), [], [])[-1].content
    assert task.conversation in said
    assert "before" not in unsaid
    assert task.instruction in unsaid


def test_full_names_the_look_ups_the_four_skill_operations_and_the_end() -> None:
    system = FULL.opening(TASK, [], [])[0].content
    for word in (
        "show_api_doc", "show_signatures", "search",
        "Generate", "Save", "Use", "Update", "apis.supervisor.complete_task(answer=42)",
    ):  # fmt: skip
        assert word in system


def apps_of(*apps: ListedApp) -> str:
    user = FULL.opening(TASK, [], apps)[1].content
    assert user.endswith(f"\n\nTask: {TASK.instruction}")
    return user.removeprefix("Apps:\n").partition("\n\nTask: ")[0]


def test_full_lists_the_operations_of_each_app() -> None:
    mail = ListedApp("mail", "# Mail\n\nReads mails.\n\nMore", ("read(id) -> text", "file(id): file one"))
    docs, empty = ListedApp("api_docs", "Look up APIs.", ("search(query)",)), ListedApp("empty", "Nothing.", ())
    assert apps_of(docs, mail, empty, ListedApp("huge", "")) == (
        "## mail: Reads mails\napis.mail.read(id) -> text\napis.mail.file(id): file one\n"
        "## huge\nIts operations: apis.api_docs.show_signatures(app_name='huge')"
    )
    assert apps_of() == "(none)"


def test_full_leaves_out_operations_of_the_largest_apps_where_all_are_too_many() -> None:
    sizes = {"large": 4_000, "small": 100, "larger": 5_000, "medium": 3_000}
    shown = apps_of(*(ListedApp(name, "", ("x" * size,)) for name, size in sizes.items()))
    assert [name for name in sizes if f"apis.{name}.xxx" in shown] == ["large", "small", "medium"]
    assert "show_signatures(app_name='larger')" in shown


def test_full_lists_some_of_very_many_apps() -> None:
    shown = apps_of(*(ListedApp(f"app_{number}", "about " * 200) for number in range(1000)))
    assert len(shown) < 12_000
    assert "## app_23: " in shown
    assert "## app_24: " not in shown
    assert shown.endswith("\nMore apps: apis.api_docs.show_app_descriptions()")


def test_full_shows_the_whole_traceback() -> None:
    shown = FULL.observation(Observation(stdout="", error=TRACEBACK, stop=RunStop.ERROR))
    assert '  File "<turn 1>", line 2' in shown
    assert shown.endswith('"call unlock first"}')


@pytest.mark.parametrize("stop", [RunStop.WALL, RunStop.MEMORY, RunStop.CRASH, RunStop.CPU])
def test_a_session_that_died_is_reported_to_the_policy(stop: RunStop) -> None:
    shown = FULL.observation(Observation(stdout="", stop=stop, alive=False))
    assert RESTARTED in shown
    assert COMPACT.observation(Observation(stdout="", stop=stop, alive=False)) != "ok"


def test_the_setting_overrides_the_card_and_full_is_the_default() -> None:
    assert choose_profile("full", {"prompt_profile": "compact"}).name == "full"
    assert choose_profile("", {"prompt_profile": "compact"}).name == "compact"
    assert choose_profile("", {}).name == "full"


def test_an_unknown_profile_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(SettingError, match="full, compact"):
        choose_profile("", {"prompt_profile": "tiny"})
