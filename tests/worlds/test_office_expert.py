"""Every task of the office can be solved by a policy that reads the documents, and hardly any by one that does
not.
"""

import re
from collections.abc import Sequence
from random import Random
from uuid import uuid4

import pytest

from app.base.values import Offer
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support.every_row import every_row
from tests.support.office_instructions import asked_by
from tests.support.office_rollouts import Office, Played, ended
from trainer.environment import Scenario, Split
from trainer.worlds.office import solution
from trainer.worlds.office.apps import Site
from trainer.worlds.office.environment import OfficeEnvironment, OfficeWorld
from trainer.worlds.office.expert import FLAWLESS, ExpertScript, Faults
from trainer.worlds.office.scenarios import TEMPLATES, Template, scenario, site_of

CLUMSY = Faults(unprepared=0.5, page=0.5, synonym=0.5, inline=0.2)
ARCHIVE = Template("mail", "act1", "person")


@pytest.fixture(scope="module")
def office(sandbox: ForkedSandbox) -> Office:
    return Office(sandbox)


class Memorized:
    """A policy that calls one function at every site."""

    def __init__(self, world: OfficeWorld) -> None:
        self._call = solution.call(*asked_by(world.task.instruction))

    def next_turn(self, observations: list[str]) -> str:
        return f"```python\n{'apis.supervisor.complete_task()' if observations else self._call}\n```"


async def solve(
    office: Office,
    chosen: Scenario,
    index: int,
    faults: Faults = FLAWLESS,
    offers: Sequence[Offer] = (),
) -> Played:
    task = chosen.tasks[index]

    def expert(world: OfficeWorld) -> ExpertScript:
        return ExpertScript(
            world.site,
            *asked_by(world.task.instruction),
            offers,
            rng=Random(f"{chosen.id} {index}"),
            faults=faults,
        )

    return await office.play(chosen, task, expert, offers)


def offer(template: Template, site: Site, instruction: str) -> Offer:
    return Offer(
        skill_id=uuid4(),
        name=template.function,
        version=1,
        signature=solution.signature(template),
        source=solution.function(template, site),
        instruction=instruction,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("split", "count"), [("train", 110), ("validation", 40), ("test", 60)])
async def test_the_expert_solves_every_scenario_in_three_turns(office: Office, split: Split, count: int) -> None:
    """One task of each, by turns."""
    for number, chosen in enumerate(office.environment.scenarios(split, count, seed=7)):
        played = await solve(office, chosen, number % 3)
        assert played.verdict.success, (played.verdict, played.text)
        assert len(played.messages) == 3


async def test_the_expert_solves_all_tasks_of_a_scenario(office: Office) -> None:
    for chosen in office.environment.scenarios("test", 10, seed=11):
        for index in range(3):
            assert (await solve(office, chosen, index)).verdict.success


@pytest.mark.parametrize("split", ["train", "validation", "test"])
async def test_doing_nothing_solves_no_task(split: Split) -> None:
    office = OfficeEnvironment()
    for chosen in office.scenarios(split, 120, seed=8):
        for task in chosen.tasks:
            async with office.open(chosen, task) as world:
                assert not (await world.verify(ended(world.task))).success


async def test_an_expert_with_mistakes_repairs_refused_calls(office: Office) -> None:
    turns = []
    for chosen in office.environment.scenarios("train", 40, seed=9):
        played = await solve(office, chosen, 0, CLUMSY)
        assert played.verdict.success, (played.verdict, played.messages)
        turns.append(len(played.messages))
    assert turns.count(4) >= 10
    assert max(turns) == 4


@pytest.mark.parametrize(
    ("faults", "refused"),
    [
        (Faults(unprepared=1), "ApiError: Response status code is 409"),
        (Faults(page=1), "ApiError: Response status code is 422"),
        (Faults(synonym=1), "AttributeError: "),
    ],
)
async def test_each_mistake_is_refused_and_repaired(office: Office, faults: Faults, refused: str) -> None:
    chosen = scenario(ARCHIVE, 5, site=_strict_site())
    played = await solve(office, chosen, 0, faults)
    assert played.observations[1].startswith(refused)
    assert played.messages[2].startswith("Repair the skill.")
    assert played.verdict.success


async def test_a_field_that_the_list_lacks_is_missed_and_looked_up(office: Office) -> None:
    template = Template("mail", "count", "label")
    site = next(seed for seed in range(1, 100) if Site.of(seed).apps["mail"].hidden == "label")
    played = await solve(office, scenario(template, 5, site=site), 0, Faults(glance=1))
    assert played.observations[1].startswith("KeyError: ")
    assert played.messages[2].startswith("Repair the skill.")
    assert played.verdict.success


async def test_with_a_fitting_skill_a_task_takes_two_turns_and_no_documents(
    office: Office,
) -> None:
    for chosen in office.environment.scenarios("test", 20, seed=10):
        template, _ = asked_by(chosen.tasks[0].instruction)
        skill = offer(template, site_of(chosen), chosen.tasks[0].instruction)
        played = await solve(office, chosen, 1, offers=[skill])
        assert played.verdict.success
        assert len(played.messages) == 2
        assert "show_signatures" not in played.text


async def test_a_skill_for_another_template_is_not_used(office: Office) -> None:
    chosen = scenario(ARCHIVE, 6, site=3)
    other = offer(Template("mail", "act1", "label"), Site.of(3), "archive all mails in travel")
    played = await solve(office, chosen, 0, offers=[other])
    assert "archive_mails_by_label" not in played.text
    assert played.verdict.success


async def test_a_skill_that_fails_is_rewritten(office: Office) -> None:
    chosen = scenario(ARCHIVE, 6, site=3)
    elsewhere = next(Site.of(seed) for seed in range(200) if _names(seed).isdisjoint(_names(3)))
    stale = offer(ARCHIVE, elsewhere, chosen.tasks[0].instruction)
    played = await solve(office, chosen, 1, offers=[stale])
    assert played.observations[0].startswith("AttributeError: ")
    assert [message.split("\n", 1)[0] for message in played.messages] == [
        "Use the skill.",
        "Read the documents.",
        "Repair the skill.",
        "Done.",
    ]
    assert played.verdict.success


async def test_a_policy_that_reads_no_documents_fails_at_most_sites(office: Office) -> None:
    """The function of one site, called at others: there names differ, or rules do."""
    home = offer(ARCHIVE, Site.of(100), "archive all mails from iris")
    solved = 0
    for seed in range(30):
        chosen = scenario(ARCHIVE, seed, site=seed)
        played = await office.play(chosen, chosen.tasks[0], Memorized, [home])
        solved += played.verdict.success
    assert solved <= 1


def _names(site: int) -> set[str]:
    return set(Site.of(site).apps["mail"].names.values())


def _strict_site() -> int:
    """A site where archiving needs preparation and pages start at 1."""
    return next(
        seed
        for seed in range(1, 100)
        if (mail := Site.of(seed).apps["mail"]).guarded == "act1" and mail.first_page == 1
    )


async def test_a_trusting_expert_completes_in_the_turn_that_uses_a_skill(office: Office) -> None:
    for chosen in office.environment.scenarios("test", 6, seed=13):
        template, _ = asked_by(chosen.tasks[0].instruction)
        known = [offer(template, site_of(chosen), chosen.tasks[0].instruction)]
        played = await solve(office, chosen, 1, Faults(trust=1.0), known)
        assert played.verdict.success, (played.verdict, played.text)
        assert len(played.messages) == 1


async def test_after_a_busy_service_the_expert_repeats_its_turn(sandbox: ForkedSandbox) -> None:
    office = Office(sandbox, OfficeEnvironment(busy=0.5))
    for chosen in office.environment.scenarios("train", 6, seed=17):
        played = await solve(office, chosen, 0)
        busy = [number for number, text in enumerate(played.observations) if "503" in text]
        for number in busy:
            assert "def " not in played.messages[number + 1]


def test_a_note_names_what_the_code_then_uses() -> None:
    with every_row() as row:
        for template in TEMPLATES:
            with row(template.name):
                site, value = Site.of(5), template.values[0]
                script = ExpertScript(site, template, value, rng=Random(0), faults=Faults(notes=1.0))
                script.next_turn([])
                sentence, _, code = script.next_turn(["the documents"]).partition("\n")
                here = site.apps[template.app]
                assert sentence == solution.note(template, site, value)
                assert all(word in code for word in re.findall(r"\w+_\w+", sentence))
                assert all(here.names[role] in sentence for role in [template.role] if role)


def test_a_first_attempt_with_a_mistake_has_no_note_and_the_repair_has_one() -> None:
    site = next(site for site in map(Site.of, range(20)) if site.apps["mail"].first_page == 1)
    script = ExpertScript(site, ARCHIVE, "noor", rng=Random(0), faults=Faults(notes=1.0, page=1.0))
    script.next_turn([])
    first, repaired = script.next_turn(["the documents"]), script.next_turn(["", "ApiError: 404"])
    note = solution.note(ARCHIVE, site, "noor")
    assert not first.startswith(note)
    assert repaired.startswith(note)
