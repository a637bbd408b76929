"""Can every task of the practice world be done, by a policy that reads the documents, and by no other?"""

from collections.abc import Sequence
from random import Random
from uuid import uuid4

import pytest

from app.records import Offer
from tests.office import Played, play
from trainer.environment import Scenario, Split
from trainer.environments.office import solution
from trainer.environments.office.environment import OfficeEnvironment, OfficeWorld
from trainer.environments.office.expert import FLAWLESS, Expert, Faults
from trainer.environments.office.scenarios import scenario, site_of
from trainer.environments.office.site import Site
from trainer.environments.office.templates import Template, parse

CLUMSY = Faults(unprepared=0.5, page=0.5, synonym=0.5, inline=0.2)
ARCHIVE = Template("mail", "act1", "person")


@pytest.fixture(scope="module")
def office() -> OfficeEnvironment:
    return OfficeEnvironment()


class Idler:
    """Completes the task and does nothing for it."""

    def next_turn(self, observations: list[str]) -> str:  # noqa: ARG002
        return "```python\napis.supervisor.complete_task()\n```"


class Memorised:
    """Calls the function it has, whatever the site."""

    def __init__(self, world: OfficeWorld) -> None:
        asked = parse(world.task.instruction)
        assert asked is not None
        self._call = solution.call(*asked)

    def next_turn(self, observations: list[str]) -> str:
        return f"```python\n{'apis.supervisor.complete_task()' if observations else self._call}\n```"


async def solve(
    office: OfficeEnvironment,
    chosen: Scenario,
    index: int,
    faults: Faults = FLAWLESS,
    offers: Sequence[Offer] = (),
) -> Played:
    task = chosen.tasks[index]

    def expert(world: OfficeWorld) -> Expert:
        return Expert(
            world.site, world.task.instruction, offers, rng=Random(f"{chosen.id} {index}"), faults=faults
        )

    return await play(office, chosen, task, expert, prelude="\n\n".join(offer.source for offer in offers))


def offer(template: Template, site: Site, instruction: str) -> Offer:
    return Offer(
        skill_id=uuid4(),
        name=template.function,
        version=1,
        signature=solution.signature(template),
        source=solution.function(template, site),
        instruction=instruction,
    )


@pytest.mark.parametrize(("split", "count"), [("train", 110), ("validation", 40), ("test", 60)])
async def test_the_expert_solves_every_task_in_three_turns(
    office: OfficeEnvironment, split: Split, count: int
) -> None:
    for chosen in office.scenarios(split, count, seed=7):
        for index in range(len(chosen.tasks)):
            played = await solve(office, chosen, index)
            assert played.verdict.success, (played.verdict, played.messages)
            assert len(played.messages) == 3


@pytest.mark.parametrize("split", ["train", "validation", "test"])
async def test_doing_nothing_solves_no_task(office: OfficeEnvironment, split: Split) -> None:
    for chosen in office.scenarios(split, 40, seed=8):
        for task in chosen.tasks:
            played = await play(office, chosen, task, lambda _: Idler())
            assert not played.verdict.success


async def test_a_clumsy_expert_repairs_what_was_refused(office: OfficeEnvironment) -> None:
    turns = []
    for chosen in office.scenarios("train", 40, seed=9):
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
async def test_each_mistake_is_loud_and_leads_to_a_repair(
    office: OfficeEnvironment, faults: Faults, refused: str
) -> None:
    chosen = scenario(ARCHIVE, 5, site=_strict_site())
    played = await solve(office, chosen, 0, faults)
    assert played.observations[1].startswith(refused)
    assert played.messages[2].startswith("Repair the skill.")
    assert played.verdict.success


async def test_a_fitting_skill_makes_it_two_turns_and_the_documents_are_not_read(
    office: OfficeEnvironment,
) -> None:
    for chosen in office.scenarios("test", 20, seed=10):
        asked = parse(chosen.tasks[0].instruction)
        assert asked is not None
        skill = offer(asked[0], site_of(chosen), chosen.tasks[0].instruction)
        played = await solve(office, chosen, 1, offers=[skill])
        assert played.verdict.success
        assert len(played.messages) == 2
        assert "show_signatures" not in played.code


async def test_a_skill_for_another_task_is_left_alone(office: OfficeEnvironment) -> None:
    chosen = scenario(ARCHIVE, 6, site=3)
    other = offer(Template("mail", "act1", "label"), Site.of(3), "archive all mails in travel")
    played = await solve(office, chosen, 0, offers=[other])
    assert "archive_mails_by_label" not in played.code
    assert played.verdict.success


async def test_a_skill_that_no_longer_works_is_written_again(office: OfficeEnvironment) -> None:
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


async def test_what_reads_no_documents_fails_at_most_sites(office: OfficeEnvironment) -> None:
    """The function of one site, called at others: there names differ, or rules do."""
    home = offer(ARCHIVE, Site.of(100), "archive all mails from iris")
    solved = 0
    for seed in range(30):
        chosen = scenario(ARCHIVE, seed, site=seed)
        played = await play(office, chosen, chosen.tasks[0], Memorised, prelude=home.source)
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
