"""Prompts that several rollouts share: encoded once, with the logprobs and gradients of the plain way."""

from pathlib import Path
from random import Random

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from app.base.run_settings import RunSettings
from tests.support.distributed_process import new_learner
from tests.support.tiny_model import make_model_dir
from tests.support.trajectory_samples import advantaged, rollout, sample_of
from trainer.learning import distributed
from trainer.learning import learner as learner_module
from trainer.learning.adapter import LogprobModel, with_lora
from trainer.learning.batch import Batch, Sample, TrainingSample, divide, pad, shared_tokens
from trainer.learning.learner import Learner
from trainer.learning.model import Packing, activation_bytes, attend, load_model
from trainer.sage.advantages import AdvantagedRollout

CPU = torch.device("cpu")
SETTINGS = RunSettings(lr=1e-3, lora_rank=4)


@pytest.fixture(autouse=True)
def unclipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients are compared as they are."""
    monkeypatch.setattr(distributed, "GRAD_CLIP", 1e9)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), "llama", spread=0.1)


def tokens(rng: Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(250) for _ in range(count))


def group(*, prompts: int = 2, members: int = 4, length: int = 40) -> list[Sample]:
    """Rollouts of a few prompts, which all begin with one system prompt; contexts stand between their answers."""
    rng = Random(length)
    system = tokens(rng, 20)
    samples = []
    for _ in range(prompts):
        prompt = (*system, *tokens(rng, length))
        for _ in range(members):
            answer, context = tokens(rng, rng.randrange(5, 15)), tokens(rng, rng.randrange(1, 9))
            marks = (False,) * len(prompt) + (True,) * len(answer) + (False,) * len(context) + (True,) * 3
            samples.append(Sample((*prompt, *answer, *context, *tokens(rng, 3)), marks))
    return samples


def plain(batch: Batch) -> Batch:
    return batch._replace(shared=(0,) * len(batch.shared))


def test_a_prompt_is_shared_up_to_its_last_token() -> None:
    """Its hidden state predicts the first answer of each rollout."""
    assert pad(group()).shared == (0, 59, 59, 59, 20, 59, 59, 59)


def test_only_the_context_is_shared_and_never_a_few_tokens() -> None:
    one = Sample(tuple(range(30)), (False,) * 20 + (True,) * 10)
    assert shared_tokens(one, one) == 19
    assert shared_tokens(Sample(tuple(range(18)), (False,) * 18), one) == 18
    assert shared_tokens(Sample(tuple(range(15)), (False,) * 15), one) == 0
    assert shared_tokens(one, Sample(one.ids, (True,) * 30)) == 0
    assert shared_tokens(one, Sample(one.ids, (False,) * 30)) == 0


@pytest.mark.parametrize("window", [None, 4, 30])
def test_a_sample_attends_to_the_shared_tokens_as_to_its_own(window: int | None) -> None:
    """The outputs of the tokens that are encoded, against rows that leave nothing out."""
    generator = torch.Generator().manual_seed(1)
    shared, lengths = [0, 18, 20, 0], [25, 22, 31, 6]
    full = [[torch.randn(1, 2, length, 8, generator=generator) for length in lengths] for _ in range(3)]
    for parts in full[1:]:
        for row in (1, 2):
            parts[row][:, :, : shared[row]] = parts[row - 1][:, :, : shared[row]]
    own = [torch.cat([part[:, :, left:] for part, left in zip(parts, shared, strict=True)], 2) for parts in full]

    def attended(parts: list[Tensor], packing: Packing) -> Tensor:
        query, key, value = parts
        module = torch.nn.Module()
        return attend(module, query, key, value, None, scaling=0.3, sliding_window=window, packing=packing)[0]

    found = attended(own, Packing.of(lengths, CPU, shared))
    whole = [torch.cat(parts, 2) for parts in full]
    every = attended(whole, Packing.of(lengths, CPU))
    expected = [part[:, left:] for part, left in zip(every.split(lengths, 1), shared, strict=True)]
    torch.testing.assert_close(found, torch.cat(expected, 1), atol=1e-6, rtol=1e-5)


def gradient(policy: LogprobModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logprobs, and the gradient of all LoRA weights of their sum, each token weighted differently."""
    policy.zero_grad()
    logprobs = policy(batch)
    (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
    gradients = [each.grad.flatten() for each in policy.parameters() if each.grad is not None]
    return logprobs.detach(), torch.cat(gradients)


@pytest.mark.parametrize("length", [20, 90])
def test_logprobs_and_gradients_are_those_without_sharing(model: Path, length: int) -> None:
    policy = LogprobModel(with_lora(load_model(model, CPU), 4, 8, seed=1))
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(3))
    batch = pad(group(length=length))
    assert sum(batch.shared) > 100
    encoded: list[int] = []
    decoder = policy.model.get_base_model().get_decoder()  # type: ignore[operator]
    decoder.register_forward_pre_hook(
        lambda *given: encoded.append(given[2]["input_ids"].numel()), with_kwargs=True
    )
    logprobs, found = gradient(policy, batch)
    every, expected = gradient(policy, plain(batch))
    torch.testing.assert_close(logprobs, every, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert expected.abs().max() > 1e-2
    assert encoded[1] - encoded[0] == sum(batch.shared)


def training_samples(samples: list[Sample]) -> list[TrainingSample]:
    return [TrainingSample(each, (0.0,) * sum(each.sampled), 1.0, 0.1, False) for each in samples]


def encoded_tokens(batch: list[TrainingSample]) -> int:
    padded = pad([each.sample for each in batch])
    return int(padded.present.sum()) - sum(padded.shared)


def test_micro_batches_keep_groups_together_and_count_what_is_encoded() -> None:
    given = training_samples(group(prompts=4, members=8))
    Random(1).shuffle(given)
    (batches,) = divide(given, 400, share=True)
    assert sorted(each.sample.ids for batch in batches for each in batch) == sorted(s.sample.ids for s in given)
    assert all(encoded_tokens(batch) <= 400 for batch in batches)
    alone = sum(len(each.sample.ids) for each in given)
    assert sum(map(encoded_tokens, batches)) < alone / 2
    assert len(batches) < len(divide(given, 400)[0])


def test_processes_share_what_is_encoded() -> None:
    given = training_samples(group(prompts=6, members=4))
    shares = divide(given, 10_000, processes=2, share=True)
    sizes = [sum(map(encoded_tokens, batches)) for batches in shares]
    assert sum(len(batch) for batches in shares for batch in batches) == len(given)
    assert max(sizes) < 1.3 * min(sizes)
    assert divide(given[:1], 1000, processes=3, share=True).count([]) == 2
    assert divide([], 1000, processes=2, share=True) == [[], []]


def learned(learner: Learner, rollouts: list[AdvantagedRollout]) -> Tensor:
    assert learner.update(rollouts) is not None
    moments = learner.state()["moments"]
    return torch.cat([moments[name]["exp_avg"].flatten() * 10 for name in sorted(moments)])


def group_rollouts() -> list[AdvantagedRollout]:
    """A group whose rollouts all begin with the context of the first."""
    prompt = tokens(Random(1), 50)
    found = []
    for number in range(6):
        one = rollout(number)
        first = msgspec.structs.replace(one.turns[0], context_ids=prompt)
        whole = msgspec.structs.replace(one, turns=(first, *one.turns[1:]))
        found.append(advantaged(whole, number / 3 - 1, size=6))
    return found


def test_an_update_within_little_memory_has_the_same_gradient(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU, micro-batches are limited by what a pass keeps, and a group may be cut."""
    expected = learned(new_learner(model, SETTINGS), group_rollouts())
    small = new_learner(model, SETTINGS)
    policy = LogprobModel(small.model)
    monkeypatch.setattr(learner_module, "ACTIVATION_BYTES", 120 * activation_bytes(policy, CPU))
    passes: list[int] = []
    small.model.get_base_model().get_decoder().register_forward_pre_hook(  # type: ignore[operator]
        lambda *given: passes.append(given[2]["input_ids"].numel()), with_kwargs=True
    )
    found = learned(small, group_rollouts())
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    assert len(passes) > 4
    assert max(passes) <= 120


def test_a_trajectory_that_alone_would_keep_too_much_is_computed_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same gradient, and each pass keeps a fraction: it is never divided."""
    kept: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        kept[-1] += tensor.nbytes
        return tensor

    gradients = []
    for tokens_at_most in (100_000, 40):  # a prompt alone has 50
        learner = new_learner(model, SETTINGS)
        limit = tokens_at_most * activation_bytes(LogprobModel(learner.model), CPU)
        monkeypatch.setattr(learner_module, "ACTIVATION_BYTES", limit)
        kept.append(0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            gradients.append(learned(learner, group_rollouts()[:1] + group_rollouts()[-1:]))
        assert not any(each.training for each in learner.model.modules())
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-4)
    assert kept[1] < kept[0] / 2


def test_the_memory_of_a_token_is_what_a_pass_keeps_for_it(model: Path) -> None:
    policy = LogprobModel(with_lora(load_model(model, CPU), 4, 8))
    base: PreTrainedModel = policy.model.get_base_model()  # type: ignore[assignment]
    layers, width = base.config.num_hidden_layers, base.config.hidden_size
    assert 10 * layers * width * 4 < activation_bytes(policy, CPU) < 50 * layers * width * 4


def test_sharing_can_be_read_off_a_trajectory() -> None:
    one, other = (sample_of(each.rollout.trajectory) for each in group_rollouts()[:2])
    assert shared_tokens(one, other) == 49
