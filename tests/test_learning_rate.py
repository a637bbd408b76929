"""A run that names no learning rate takes one that suits its model."""

from pathlib import Path

import pytest

from app.engine.tokenizer import read_card
from app.errors import InvalidError
from app.model_catalog import SEED_DIR
from app.run_settings import RunKind, RunSettings
from tests.support.every_row import every_row
from trainer.demo.seed_policy import card
from trainer.learning.learning_rate import with_learning_rate


def test_the_seed_policy_names_its_rate_and_others_get_a_tenth_of_it(tmp_path: Path) -> None:
    seed, other = read_card(SEED_DIR), read_card(tmp_path)
    assert "learning_rate: 0.001\n" in Path(card.__file__).read_text(), "the card of the next one names it, too"
    with every_row() as row:
        for named, given, expected in (
            (RunSettings(), seed, 1e-3),
            (RunSettings(), other, 1e-4),
            (RunSettings(kind=RunKind.ROLLOUT), seed, 1e-3),
            (RunSettings(kind=RunKind.SFT), other, 1e-3),
            (RunSettings(lr=0.5), seed, 0.5),
        ):
            with row(named.kind, named.lr, bool(given)):
                assert with_learning_rate(named, given).lr == expected


def test_a_card_whose_rate_is_none_is_refused_by_name() -> None:
    with every_row() as row:
        for rate in (0, -1, 1, True, "fast", None, float("nan"), [0.1]):
            with row(rate), pytest.raises(InvalidError, match=r"learning_rate: .* mend it, or set lr"):
                with_learning_rate(RunSettings(), {"learning_rate": rate})
