"""By which rewards a policy learns to use a skill that does harm."""

import numpy as np
import pytest

from app.base.run_settings import RunSettings
from tests.bench.bench_skill_bonus import train

pytestmark = pytest.mark.parametrize("seed", [1, 2, 3])


@pytest.mark.parametrize("group", [8, 48])
def test_a_use_that_succeeds_half_as_often_as_doing_without_is_unlearned_by_default(group: int, seed: int) -> None:
    for ratio in (0.5, 0.6):
        assert train(np.random.default_rng(seed), RunSettings().reward, group, ratio) < 0.35


def test_the_reward_of_the_paper_pays_a_use_from_half_the_successes_on(seed: int) -> None:
    assert train(np.random.default_rng(seed), "skill", 8, 0.6) > 0.75


def test_a_use_that_does_no_harm_is_learned_by_default(seed: int) -> None:
    assert train(np.random.default_rng(seed), RunSettings().reward, 8, 1.0) > 0.9
