"""Demonstrations are real rollouts of the expert: only successes are kept, and chains pass skills on."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from trainer.environment import Scenario
from trainer.learning.batch import Sample
from trainer.worlds.office.environment import OfficeEnvironment
from trainer.worlds.office.expert import Faults
from trainer.worlds.office.rollouts import ScriptRunner, demonstrate, distractors
from trainer.worlds.office.scenarios import place_at, site_of, templates_of
from trainer.worlds.recipes import MAX_LENGTH, Recipe
from trainer.worlds.seed_policy.bootstrap import CROWDING, FAULTS, demonstrated_samples, prepare
from trainer.worlds.seed_policy.pretrain import load_samples, save_samples


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    work = tmp_path_factory.mktemp("seed")
    prepare(work, Recipe(hidden=32, heads=1, layers=1, mlp=32))
    return ChatTokenizer.load(work)


@pytest.fixture(scope="module")
def classroom(tokenizer: ChatTokenizer, sandbox: ForkedSandbox) -> ScriptRunner:
    return ScriptRunner(OfficeEnvironment(), tokenizer, sandbox, crowding=CROWDING)


@pytest.fixture(scope="module")
async def kept(classroom: ScriptRunner) -> list[Sample]:
    return await demonstrated_samples(classroom, scenarios(), FAULTS, seed=1)


def scenarios(count: int = 20) -> Sequence[Scenario]:
    return OfficeEnvironment().scenarios("train", count, seed=31)


@pytest.fixture(scope="module")
def texts(kept: list[Sample], tokenizer: ChatTokenizer) -> list[str]:
    return [tokenizer.decode(sample.ids) for sample in kept]


async def test_nearly_all_demonstrations_succeed_and_fit_the_policy(kept: list[Sample]) -> None:
    assert len(kept) >= 57
    assert max(len(sample.ids) for sample in kept) < MAX_LENGTH


async def test_only_successes_are_kept(classroom: ScriptRunner) -> None:
    """An expert who believes to be at another site finds no operation that it knows."""
    (here,), (there,) = (OfficeEnvironment(site=site).scenarios("train", 1, seed=3) for site in (5, 6))
    astray = Scenario(here.id, here.template, here.seed, (here.tasks[0], *there.tasks[1:]))
    assert len(await demonstrated_samples(classroom, [astray], FAULTS, seed=0)) == 1


async def test_only_the_experts_tokens_are_trained_on(kept: list[Sample], tokenizer: ChatTokenizer) -> None:
    for sample in kept:
        said = tokenizer.decode([token for token, own in zip(sample.ids, sample.sampled, strict=True) if own])
        heard = tokenizer.decode([token for token, own in zip(sample.ids, sample.sampled, strict=True) if not own])
        assert said.endswith(")\n```<|end|>")
        assert "apis.supervisor.complete_task(" in said
        assert "<|user|>" not in said
        assert said.count("<|end|>") == heard.count("<|assistant|>")


async def test_the_same_seed_gives_the_same_samples_and_another_gives_others(
    classroom: ScriptRunner, kept: list[Sample]
) -> None:
    once, other = [await demonstrated_samples(classroom, scenarios(), FAULTS, seed) for seed in (1, 2)]
    assert once == kept
    assert other != kept


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


async def test_a_certain_fault_occurs_in_every_task(sandbox: ForkedSandbox, tokenizer: ChatTokenizer) -> None:
    runner = ScriptRunner(environment=OfficeEnvironment(), tokenizer=tokenizer, sandbox=sandbox)
    ignoring = await demonstrate(runner, scenarios(3), Faults(ignore=1.0), seed=1)
    inline = await demonstrate(runner, scenarios(3), Faults(inline=1.0), seed=1)
    assert [len(each.trajectory.offered) for each in ignoring] == [0, 1, 1] * 3
    assert not any(list(each.trajectory.used()) for each in ignoring)
    assert all(each.verdict.success for each in [*ignoring, *inline])
    assert not any("def " in turn.text for each in inline for turn in each.trajectory.turns)
    assert not any(each.trajectory.offered for each in inline)


async def test_withheld_skills_are_not_offered_and_crowded_ones_are_among_others(
    sandbox: ForkedSandbox, tokenizer: ChatTokenizer
) -> None:
    def runner(crowding: float, withheld: float) -> ScriptRunner:
        return ScriptRunner(
            environment=OfficeEnvironment(),
            tokenizer=tokenizer,
            sandbox=sandbox,
            crowding=crowding,
            withheld=withheld,
        )

    withheld = await demonstrate(runner(0.0, 1.0), scenarios(3), Faults(), seed=1)
    crowded = await demonstrate(runner(1.0, 0.0), scenarios(3), Faults(), seed=1)
    assert all(each.verdict.success for each in [*withheld, *crowded])
    assert not any(each.trajectory.offered for each in withheld)
    assert all(each.trajectory.offered for each in crowded)
    assert [len(list(each.trajectory.used())) for each in crowded] == [0, 1, 1] * 3


def test_samples_are_the_same_after_a_round_trip_to_disk(kept: list[Sample], tmp_path: Path) -> None:
    save_samples(kept[:5], tmp_path / "a.npz")
    save_samples(kept[5:], tmp_path / "b.npz")
    assert load_samples([tmp_path / "a.npz", tmp_path / "b.npz"]) == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


def test_an_empty_list_of_samples_is_the_same_after_a_round_trip_to_disk(tmp_path: Path) -> None:
    save_samples([], tmp_path / "none.npz")
    assert load_samples([tmp_path / "none.npz"]) == []
