"""Demonstrations are real rollouts of the expert: only successes are kept, and chains pass skills on."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from random import Random

import pytest

from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.environment import Scenario
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults
from trainer.worlds.office.rollouts import ScriptRunner, demonstrate, distractors
from trainer.worlds.office.scenarios import place_at, site_of, templates_of
from trainer.worlds.recipes import MAX_LENGTH, Recipe
from trainer.worlds.seed_policy.bootstrap import prepare
from trainer.worlds.seed_policy.demonstrations import Demonstrations, Demonstrator
from trainer.worlds.seed_policy.samples import load_samples, save_samples


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    work = tmp_path_factory.mktemp("seed")
    prepare(work, Recipe(hidden=32, heads=1, layers=1, mlp=32))
    return ChatTokenizer.load(work)


@pytest.fixture(scope="module")
async def classroom_sandbox() -> AsyncIterator[ForkedSandbox]:
    async with ForkedSandbox() as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def classroom(tokenizer: ChatTokenizer, classroom_sandbox: ForkedSandbox) -> Demonstrator:
    return Demonstrator(tokenizer, classroom_sandbox)


@pytest.fixture(scope="module")
async def kept(classroom: Demonstrator) -> Demonstrations:
    return await classroom.demonstrate(scenarios(), seed=1)


def scenarios(count: int = 20) -> Sequence[Scenario]:
    return OfficeEnvironment().scenarios("train", count, seed=31)


@pytest.fixture(scope="module")
def texts(kept: Demonstrations, tokenizer: ChatTokenizer) -> list[str]:
    return [tokenizer.decode(sample.ids) for sample in kept.samples]


async def test_nearly_all_demonstrations_succeed_and_fit_the_policy(kept: Demonstrations) -> None:
    assert kept.tried == 60
    assert len(kept.samples) >= 57
    assert max(len(sample.ids) for sample in kept.samples) < MAX_LENGTH


async def test_only_successes_are_kept(classroom: Demonstrator) -> None:
    """An expert who believes to be at another site finds no operation that it knows."""
    (here,), (there,) = (OfficeEnvironment(site=site).scenarios("train", 1, seed=3) for site in (5, 6))
    astray = Scenario(here.id, here.template, here.seed, (here.tasks[0], *there.tasks[1:]))
    kept = await classroom.demonstrate([astray], seed=0)
    assert (len(kept.samples), kept.tried) == (1, 3)


async def test_only_the_experts_tokens_are_trained_on(kept: Demonstrations, tokenizer: ChatTokenizer) -> None:
    for sample in kept.samples:
        said = tokenizer.decode([token for token, own in zip(sample.ids, sample.sampled, strict=True) if own])
        heard = tokenizer.decode([token for token, own in zip(sample.ids, sample.sampled, strict=True) if not own])
        assert said.endswith(")\n```<|end|>")
        assert "apis.supervisor.complete_task(" in said
        assert "<|user|>" not in said
        assert said.count("<|end|>") == heard.count("<|assistant|>")


async def test_the_same_seed_gives_the_same_samples_and_another_gives_others(
    classroom: Demonstrator, kept: Demonstrations
) -> None:
    again = await classroom.demonstrate(scenarios(), seed=1)
    assert again.samples == kept.samples
    assert (await classroom.demonstrate(scenarios(), seed=2)).samples != kept.samples


async def test_a_chain_uses_in_its_second_task_what_it_wrote_in_its_first(
    texts: list[str],
) -> None:
    asked = {task.instruction: index for each in scenarios() for index, task in enumerate(each.tasks)}
    used: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    for text in texts:
        prompt = text.removeprefix("<|user|>").partition("<|end|>")[0]
        used[asked[prompt.split("\n")[0]]].append("Use the skill." in text)
    assert not any(used[0])
    assert sum(used[1]) >= 0.8 * len(used[1])
    assert sum(used[2]) >= 0.8 * len(used[2])


async def test_the_samples_contain_repaired_mistakes(texts: list[str]) -> None:
    repaired = [text for text in texts if "Repair the skill." in text]
    assert len(repaired) >= 1
    for text in repaired:
        before, _, after = text.rpartition("Repair the skill.")
        assert "Error: " in before
        assert "Error: " not in after


async def test_distractors_are_offered_and_not_used(texts: list[str]) -> None:
    offered = [text for text in texts if "\nskills:\n" in text.partition("<|end|>")[0]]
    left = [text for text in offered if "Use the skill." not in text]
    assert len(left) >= 5
    for text in left:
        assert "Write a skill." in text or "Repair the skill." in text or "Solve it directly." in text


def test_distractors_are_never_of_held_out_templates() -> None:
    held_out = {template.function for split in ("validation", "test") for template in templates_of(split)}
    taught = {template.function for template in templates_of("train")} - held_out
    rng, seen = Random(4), set[str]()
    for chosen in scenarios(60):
        kind = place_at(chosen.tasks[0]).kind
        seen |= {offer.name for offer in distractors(kind, site_of(chosen), rng, count=3)}
    assert len(seen) > 40
    assert seen <= taught


async def test_a_certain_fault_occurs_in_every_task(
    classroom_sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> None:
    runner = ScriptRunner(environment=OfficeEnvironment(), tokenizer=tokenizer, sandbox=classroom_sandbox)
    ignoring = await demonstrate(runner, scenarios(3), Faults(ignore=1.0), seed=1)
    inline = await demonstrate(runner, scenarios(3), Faults(inline=1.0), seed=1)
    assert [len(each.trajectory.offered) for each in ignoring] == [0, 1, 1] * 3
    assert not any(list(each.trajectory.used()) for each in ignoring)
    assert all(each.verdict.success for each in [*ignoring, *inline])
    assert not any("def " in turn.text for each in inline for turn in each.trajectory.turns)
    assert not any(each.trajectory.offered for each in inline)


async def test_withheld_skills_are_not_offered_and_crowded_ones_are_among_others(
    classroom_sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> None:
    def runner(crowding: float, withheld: float) -> ScriptRunner:
        return ScriptRunner(
            environment=OfficeEnvironment(),
            tokenizer=tokenizer,
            sandbox=classroom_sandbox,
            crowding=crowding,
            withheld=withheld,
        )

    withheld = await demonstrate(runner(0.0, 1.0), scenarios(3), Faults(), seed=1)
    crowded = await demonstrate(runner(1.0, 0.0), scenarios(3), Faults(), seed=1)
    assert all(each.verdict.success for each in [*withheld, *crowded])
    assert not any(each.trajectory.offered for each in withheld)
    assert all(each.trajectory.offered for each in crowded)
    assert [len(list(each.trajectory.used())) for each in crowded] == [0, 1, 1] * 3


def test_samples_are_the_same_after_a_round_trip_to_disk(kept: Demonstrations, tmp_path: Path) -> None:
    save_samples(kept.samples[:5], tmp_path / "a.npz")
    save_samples(kept.samples[5:], tmp_path / "b.npz")
    assert load_samples([tmp_path / "a.npz", tmp_path / "b.npz"]) == kept.samples
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_an_empty_list_of_samples_is_the_same_after_a_round_trip_to_disk(tmp_path: Path) -> None:
    save_samples([], tmp_path / "none.npz")
    assert load_samples([tmp_path / "none.npz"]) == []
