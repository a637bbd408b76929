"""When do logprobs prove which weights answer? Numbers worked out by hand."""

import pytest

from app.errors import AdapterError
from app.hot_swap.verification import compare
from app.records import Probe, ProbePoint

PROBE = Probe((1, 2, 3), (ProbePoint(1, 2, logprob=-1.0, base=-2.0), ProbePoint(2, 3, logprob=-0.5, base=-0.25)))


def test_a_server_that_says_what_the_trainer_says_has_proven_it() -> None:
    figures = compare(PROBE, served=(-1.0005, -0.5), base=(-2.0, -0.25))
    assert figures.error == pytest.approx(0.0005)
    assert figures.distance == pytest.approx(0.9995)
    assert figures.noise == 0


def test_a_server_with_fewer_bits_may_be_off_by_three_times_what_its_base_is_off() -> None:
    compare(PROBE, served=(-1.05, -0.5), base=(-2.02, -0.25))
    with pytest.raises(AdapterError, match=r"other weights than were trained.*0\.0700, and 0\.0600 is allowed"):
        compare(PROBE, served=(-1.07, -0.5), base=(-2.02, -0.25))


def test_a_thousandth_is_allowed_however_exact_the_base_is() -> None:
    compare(PROBE, served=(-1.0009, -0.5), base=(-2.0, -0.25))
    with pytest.raises(AdapterError, match=r"0\.0011, and 0\.0010 is allowed"):
        compare(PROBE, served=(-1.0011, -0.5), base=(-2.0, -0.25))


def test_a_server_that_loaded_an_adapter_and_answers_as_the_base_is_found_out() -> None:
    with pytest.raises(AdapterError, match=r"answers as the base does.*without using it"):
        compare(PROBE, served=(-2.0, -0.25), base=(-2.0, -0.25))


def test_noise_as_great_as_the_adapter_does_not_hide_the_base() -> None:
    """The base off by 0.4 allows an error of 1.2, and the adapter lies 1.0 from the base."""
    with pytest.raises(AdapterError, match="more like the base model"):
        compare(PROBE, served=(-1.9, -0.3), base=(-2.4, -0.25))


def test_weights_that_change_nothing_can_prove_nothing() -> None:
    same = Probe((1, 2), (ProbePoint(1, 2, logprob=-1.0, base=-1.0),))
    with pytest.raises(AdapterError, match="these weights answer as the base does: in training, too"):
        compare(same, served=(-1.0,), base=(-1.0,))


def test_another_base_model_is_named_as_the_cause() -> None:
    with pytest.raises(AdapterError, match=r"another base model than the one that was trained.*SAGE_MODEL"):
        compare(PROBE, served=(-1.5, -0.5), base=(-4.0, -0.25))


def test_nonsense_proves_nothing() -> None:
    with pytest.raises(AdapterError):
        compare(PROBE, served=(float("nan"), -0.5), base=(-2.0, -0.25))
