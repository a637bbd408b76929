"""From trajectories to tensors: every token is in its place, and its logprob is the model's own."""

from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
import torch
from transformers import PreTrainedModel

from app.base.values import Policy, Stop, Task, Trajectory, Turn
from tests.support.tiny_model import make_model_dir
from tests.support.trajectory_samples import sample_of
from trainer.learning.batch import Sample, pad, plan, samples_of
from trainer.learning.model import load_model, sampled_logprobs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    torch.set_num_threads(1)
    return load_model(make_model_dir(tmp_path_factory.mktemp("tiny")), torch.device("cpu"))


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory(
        task=Task(uuid4(), "do"), policy=Policy(), profile="compact", turns=turns, stop=Stop.COMPLETED
    )


def turn(context: tuple[int, ...], sampled: tuple[int, ...], *, extends: bool = True) -> Turn:
    logprobs = (-0.5,) * len(sampled)
    return Turn(context_ids=context, sampled_ids=sampled, logprobs=logprobs, text="", extends=extends)


def sample(length: int, seed: int) -> Sample:
    """Random tokens, of which about half were sampled; the first and the last token both were."""
    rng = Random(seed)
    marks = [rng.random() < 0.5 for _ in range(length - 2)]
    return Sample(tuple(rng.randrange(250) for _ in range(length)), (True, *marks, True))


def test_a_sample_holds_all_tokens_in_order_and_marks_what_was_sampled() -> None:
    found = sample_of(trajectory(turn((1, 2, 3), (4, 5)), turn((6,), (7, 8, 9))))
    assert found.ids == (1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert found.sampled == (False, False, False, True, True, False, True, True, True)


def test_a_turn_before_which_the_template_rewrote_others_begins_another_sample() -> None:
    first, rewritten, last = (
        turn((1, 2), (3,)),
        turn((1, 4), (5, 6), extends=False),
        turn((7,), (8,)),
    )
    assert samples_of(trajectory(first, rewritten, last)) == [
        Sample((1, 2, 3), (False, False, True)),
        Sample((1, 4, 5, 6, 7, 8), (False, False, True, True, False, True)),
    ]
    cut_off = turn((1, 4, 5), (), extends=False)
    assert samples_of(trajectory(first, cut_off)) == samples_of(trajectory(first))


def test_padding_is_on_the_right_to_a_multiple_of_32_and_never_counts() -> None:
    batch = pad([Sample((7, 8, 9), (False, True, True)), Sample((5,) * 33, (False,) * 32 + (True,))])
    assert batch.ids.shape == (2, 64)
    assert batch.ids[0].tolist() == [7, 8, 9] + [0] * 61
    assert batch.present.sum(1).tolist() == [3, 33]
    assert batch.sampled.nonzero().tolist() == [[0, 1], [0, 2], [1, 32]]


def test_nothing_predicts_the_first_token() -> None:
    assert not pad([Sample((7, 8), (True, False))]).sampled.any()


def test_an_epoch_takes_every_sample_once_and_keeps_to_the_budget_with_padding() -> None:
    rng = Random(1)
    lengths = [rng.randrange(1, 300) for _ in range(200)] + [700]
    groups = list(plan(lengths, 512, torch.Generator().manual_seed(3)))
    assert sorted(index for group in groups for index in group) == list(range(201))
    for group in groups:
        padded = pad([Sample((1,) * lengths[index], (True,) * lengths[index]) for index in group]).ids
        assert padded.numel() <= 512 or group == [200]
    assert len(groups) < 90  # 31k tokens with the least padding fill 61 groups of 512, and remainders


def test_groups_hold_samples_of_one_length_so_that_little_is_padded() -> None:
    lengths = [32, 64, 96] * 20
    groups = plan(lengths, 320, torch.Generator().manual_seed(0))
    mixed = [group for group in groups if len({lengths[index] for index in group}) > 1]
    assert len(mixed) <= 2  # where one length ends and the next begins


def test_the_order_is_the_same_for_a_seed_and_another_in_each_epoch() -> None:
    lengths = [10 + index for index in range(60)]

    def epochs(seed: int) -> list[list[list[int]]]:
        generator = torch.Generator().manual_seed(seed)
        return [list(plan(lengths, 200, generator)) for _ in range(2)]

    assert epochs(4) == epochs(4)
    assert epochs(4)[0] != epochs(4)[1]
    assert epochs(4)[0] != epochs(5)[0]


def test_an_epoch_of_nothing_is_empty() -> None:
    assert list(plan([], 100, torch.Generator())) == []


def test_logprobs_are_those_of_a_plain_softmax_sample_by_sample(model: PreTrainedModel) -> None:
    samples = [sample(40, 1), sample(5, 2), sample(33, 3)]
    by_hand = []
    with torch.no_grad():
        found = sampled_logprobs(model, pad(samples))
        for each in samples:
            logits = model(torch.tensor([each.ids])).logits[0]
            for place in range(1, len(each.ids)):
                if each.sampled[place]:
                    scores = logits[place - 1]
                    by_hand.append(scores[each.ids[place]] - scores.exp().sum().log())
    torch.testing.assert_close(found, torch.stack(by_hand), atol=1e-5, rtol=0)
    assert found.std() > 0.5  # the model has opinions, or nothing was compared


def test_logprobs_do_not_depend_on_padding_or_on_other_rows(model: PreTrainedModel) -> None:
    one = sample(20, 4)
    count = sum(one.sampled[1:])
    with torch.no_grad():
        alone = sampled_logprobs(model, pad([one]))
        together = sampled_logprobs(model, pad([one, sample(90, 5), sample(3, 6)]))[:count]
        other = sampled_logprobs(model, pad([one, sample(70, 7)]))[:count]
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(other, alone, atol=1e-5, rtol=0)


def test_a_model_directory_is_loaded_in_float32(model: PreTrainedModel, tmp_path: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(tmp_path)  # type: ignore[arg-type]
    model.to(torch.float32)  # type: ignore[arg-type]
    assert load_model(tmp_path, torch.device("cpu")).dtype == torch.float32
