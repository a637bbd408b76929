"""No step takes a policy much farther than `max_kl` from the one that sampled, whatever the learning rate is."""

from pathlib import Path

import msgspec
import pytest
import torch
from torch import Tensor

from app.base.run_settings import RunKind, RunSettings
from tests.support.distributed_process import SETTINGS, new_learner, round_of
from tests.support.tiny_model import make_model_dir
from tests.support.trajectory_samples import sample_of
from trainer.learning.batch import pad
from trainer.learning.learner import Learner, shorten
from trainer.sage.advantages import AdvantagedRollout

HUGE = msgspec.structs.replace(SETTINGS, kl=0.0, lr=0.05)
FREE = 0.0  # no limit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"), spread=0.1)


def logprobs(learner: Learner, rollouts: list[AdvantagedRollout]) -> Tensor:
    with torch.no_grad():
        batch = pad([sample_of(each.rollout.trajectory) for each in rollouts], torch.device("cpu"))
        return learner.token_logprobs(batch)


def divergence(old: Tensor, new: Tensor) -> float:
    ratio = (new - old).exp()
    return (ratio - 1 - ratio.log()).mean().item()


def settings(kind: RunKind, max_kl: float) -> RunSettings:
    return msgspec.structs.replace(HUGE, kind=kind, max_kl=max_kl)


@pytest.mark.parametrize(("kind", "steps_reached"), [(RunKind.LOGGED, 1), (RunKind.ROLLOUT, 3)])
def test_a_step_stays_near_the_policy_that_sampled(model: Path, kind: RunKind, steps_reached: int) -> None:
    """The one at the start of a run on served tasks; in one of rollouts that of each step."""
    learner = new_learner(model, settings(kind, max_kl=0.01))
    start = logprobs(learner, round_of(3))
    for _ in range(3):
        before = logprobs(learner, round_of(3))
        stats = learner.update(round_of(3))
        assert stats is not None
        assert 0.005 < stats.kl_of_step <= 0.011
        sampling = start if kind is RunKind.LOGGED else before
        assert divergence(sampling, logprobs(learner, round_of(3))) == pytest.approx(stats.kl_of_step, rel=0.5)
    assert (divergence(start, logprobs(learner, round_of(3))) > 0.02) is (steps_reached > 1)


def test_without_a_limit_the_same_step_leads_far_away(model: Path) -> None:
    learner = new_learner(model, settings(RunKind.LOGGED, max_kl=FREE))
    stats = learner.update(round_of(3))
    assert stats is not None
    assert stats.kl_of_step > 0.1


def test_a_step_that_is_short_by_itself_is_taken_as_it_is(model: Path) -> None:
    small = msgspec.structs.replace(HUGE, lr=1e-5)
    near, far = (new_learner(model, msgspec.structs.replace(small, max_kl=limit)) for limit in (0.01, FREE))
    for learner in (near, far):
        assert learner.update(round_of(3)) is not None
    theirs = far.state()["weights"]
    assert all(torch.equal(each, theirs[name]) for name, each in near.state()["weights"].items())


def test_the_direction_is_kept() -> None:
    weights, center = {"it": torch.tensor([3.0, 5.0])}, {"it": torch.tensor([1.0, 1.0])}

    def found() -> float:
        return (weights["it"] - center["it"]).square().sum().item()

    assert shorten(weights, center, 0.2, found) == pytest.approx(0.2)
    torch.testing.assert_close(weights["it"], torch.tensor([1.2, 1.4]))


def test_a_step_that_no_shortening_brings_near_is_not_taken() -> None:
    weights, center = {"it": torch.tensor([3.0])}, {"it": torch.tensor([1.0])}
    assert shorten(weights, center, 0.1, lambda: float("inf")) == 0
    assert torch.equal(weights["it"], center["it"])
