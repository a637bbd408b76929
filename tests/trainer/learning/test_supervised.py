"""Supervised steps learn the sampled tokens, nothing else, and the same after an interruption."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import pytest
import torch
from transformers import PreTrainedModel

from app.base.errors import ModelMemoryError
from tests.support.tiny_model import make_model_dir
from trainer.learning import supervised
from trainer.learning.batch import Sample, pad
from trainer.learning.model import activation_bytes, load_model, sampled_logprobs
from trainer.learning.supervised import OnStep, SftSettings, SftStep, sft_steps, train_sft

SETTINGS = SftSettings(steps=12, lr=2e-3, warmup=3, tokens=128, checkpoint_every=4, seed=5)


class StopError(Exception):
    """The power fails."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.05)


@pytest.fixture
def fresh(directory: Path) -> Callable[[], PreTrainedModel]:
    return lambda: load_model(directory, torch.device("cpu"))


def samples(count: int = 10, tail: int = 0) -> list[Sample]:
    """Eight tokens of context and eight to learn. `tail` other context tokens follow."""
    rng = Random(2)
    head = [tuple(rng.randrange(200) for _ in range(16)) for _ in range(count)]
    ends = [tuple(rng.randrange(200) for _ in range(8)) for _ in range(count)]
    marks = (False,) * 8 + (True,) * 8 + (False,) * 8
    rotated = ends[tail:] + ends[:tail]
    return [Sample((*one, *other), marks) for one, other in zip(head, rotated, strict=True)]


def quiet(step: SftStep) -> None:
    """Ignores the step."""


def weights(model: PreTrainedModel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one: PreTrainedModel, other: PreTrainedModel) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def fails_at(step: int) -> OnStep:
    def report(done: SftStep) -> None:
        if done.index == step:
            raise StopError

    return report


def test_a_small_set_of_samples_is_memorised(fresh: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    seen: list[SftStep] = []
    settings = SftSettings(steps=80, warmup=5, tokens=512)
    train_sft(fresh(), samples(), settings, tmp_path / "it.checkpoint", seen.append)
    assert [step.index for step in seen] == list(range(1, 81))
    assert seen[0].loss > 4
    assert seen[-1].loss < 0.2
    assert seen[-1].accuracy == 1


def first_step(model: PreTrainedModel, checkpoint: Path) -> tuple[SftStep, list[int], list[torch.Tensor]]:
    """The step, the tokens of each of its passes, and the weights after it."""
    passes: list[int] = []
    model.get_decoder().register_forward_pre_hook(
        lambda *given: passes.append(given[2]["input_ids"].numel()), with_kwargs=True
    )
    everything = msgspec.structs.replace(SETTINGS, steps=1, tokens=1024)
    (step,) = sft_steps(model, samples(), everything, checkpoint)
    return step, passes, weights(model)


def test_no_pass_on_a_cpu_keeps_more_than_it_may(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same step in ten passes of few tokens, and where every sample alone is too long."""
    whole, passes, expected = first_step(fresh(), tmp_path / "whole")
    assert passes[-1] == 240
    for room, sizes in ((60, [48] * 5), (10, [24] * 10)):
        model = fresh()
        logprobs = partial(sampled_logprobs, model)
        limit = room * activation_bytes(logprobs, model.device)
        monkeypatch.setattr(supervised, "ACTIVATION_BYTES", limit)
        step, passes, found = first_step(model, tmp_path / str(room))
        assert passes[-len(sizes) :] == sizes
        assert step.loss == pytest.approx(whole.loss, rel=1e-5)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        assert not model.is_activation_checkpointing


def test_the_loss_is_the_mean_over_sampled_tokens_before_the_update(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    seen: list[SftStep] = []
    everything = msgspec.structs.replace(SETTINGS, steps=1, tokens=1024)
    train_sft(fresh(), samples(), everything, tmp_path / "it.checkpoint", seen.append)
    with torch.no_grad():
        logprobs = sampled_logprobs(fresh(), pad(samples()))
    assert logprobs.shape == (80,)
    assert seen[0].loss == pytest.approx(-logprobs.sum().item() / 80, abs=1e-5)
    assert seen[0].accuracy == pytest.approx((logprobs.exp() > 0.5).sum().item() / 80)


def test_only_sampled_tokens_are_learned_from(fresh: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    """Tokens after the last sampled one could change the weights only by being learned from."""
    one, other = fresh(), fresh()
    train_sft(one, samples(), SETTINGS, tmp_path / "one.checkpoint", quiet)
    train_sft(other, samples(tail=3), SETTINGS, tmp_path / "other.checkpoint", quiet)
    assert samples() != samples(tail=3)
    for a, b in zip(weights(one), weights(other), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)


@pytest.mark.parametrize("last", [3, 7, 8, 11])
def test_an_interrupted_training_ends_with_the_weights_of_an_uninterrupted_one(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path, last: int
) -> None:
    """Interrupted before the first checkpoint, between two, just before one, and just before the end."""
    straight = fresh()
    train_sft(straight, samples(), SETTINGS, tmp_path / "straight.checkpoint", quiet)
    with pytest.raises(StopError):
        train_sft(fresh(), samples(), SETTINGS, tmp_path / "broken.checkpoint", fails_at(last))
    resumed, seen = fresh(), list[SftStep]()
    train_sft(resumed, samples(), SETTINGS, tmp_path / "broken.checkpoint", seen.append)
    assert seen[0].index == (last - 1) // 4 * 4 + 1
    assert same(straight, resumed)


def test_the_learning_rate_warms_up_linearly_and_decays_by_a_cosine_to_a_tenth(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    checkpoint, rates = tmp_path / "it.checkpoint", list[float]()

    def note_the_last(step: SftStep) -> None:
        if step.index > 1:
            rates.append(torch.load(checkpoint)["optimizer"]["param_groups"][0]["lr"])

    settings = SftSettings(steps=6, warmup=2, lr=1e-3, tokens=128, checkpoint_every=1)
    train_sft(fresh(), samples(), settings, checkpoint, note_the_last)
    rates.append(torch.load(checkpoint)["optimizer"]["param_groups"][0]["lr"])
    assert rates == pytest.approx([0.5e-3, 1e-3, 0.8682e-3, 0.55e-3, 0.2318e-3, 0.1e-3], rel=1e-4)


def test_a_plateau_keeps_the_rate_and_then_decays_linearly_to_a_tenth(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    checkpoint, rates = tmp_path / "it.checkpoint", list[float]()
    settings = SftSettings(
        steps=6, warmup=2, lr=1e-3, tokens=128, checkpoint_every=1, schedule="plateau", decay=0.5
    )
    for _ in sft_steps(model := fresh(), samples(), settings, checkpoint):
        if checkpoint.exists():
            rates.append(torch.load(checkpoint)["optimizer"]["param_groups"][0]["lr"])
    rates.append(torch.load(checkpoint)["optimizer"]["param_groups"][0]["lr"])
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.7e-3, 0.4e-3, 0.1e-3], rel=1e-4)
    assert not model.training


def test_a_training_in_parts_ends_with_the_weights_of_one_in_a_piece(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    straight, seen = fresh(), list[int]()
    train_sft(straight, samples(), SETTINGS, tmp_path / "straight.checkpoint", quiet)
    for until in (5, 6, 99):
        part = fresh()
        steps = sft_steps(part, samples(), SETTINGS, tmp_path / "parts.checkpoint", until=until)
        seen += [step.index for step in steps]
    assert seen == list(range(1, 13))
    assert same(straight, part)


def test_a_step_counts_what_it_read_and_what_it_learned(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    epoch = list(sft_steps(fresh(), samples(), SETTINGS, tmp_path / "it.checkpoint", until=3))
    assert sorted(step.examples for step in epoch) == [2, 4, 4]  # of 32 padded tokens each
    assert sum(step.read_tokens for step in epoch) == 240
    assert [step.tokens for step in epoch] == [8 * step.examples for step in epoch]


def test_a_finished_training_is_not_repeated(fresh: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    first, again, seen = fresh(), fresh(), list[SftStep]()
    train_sft(first, samples(), SETTINGS, tmp_path / "it.checkpoint", quiet)
    train_sft(again, samples(), SETTINGS, tmp_path / "it.checkpoint", seen.append)
    assert seen == []
    assert same(first, again)


def test_the_seed_decides_the_order_and_so_the_weights(
    fresh: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    ended = []
    for number, seed in enumerate((5, 5, 6)):
        model = fresh()
        settings = msgspec.structs.replace(SETTINGS, seed=seed)
        train_sft(model, samples(), settings, tmp_path / f"{number}.checkpoint", quiet)
        ended.append(model)
    assert same(ended[0], ended[1])
    assert not same(ended[0], ended[2])


def test_training_without_samples_is_refused(fresh: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no samples"):
        train_sft(fresh(), [], SETTINGS, tmp_path / "it.checkpoint", quiet)


def test_a_step_without_memory_says_what_to_lower(fresh: Callable[[], PreTrainedModel], tmp_path: Path) -> None:
    model = fresh()
    model.get_decoder().register_forward_pre_hook(_exhaust)
    with pytest.raises(ModelMemoryError, match=r"memory ran out in an update \(CUDA .*: lower micro_batch_tokens"):
        train_sft(model, samples(), SETTINGS, tmp_path / "checkpoint.pt", quiet)


def _exhaust(*_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.")
