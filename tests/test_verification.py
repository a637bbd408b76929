"""Logprobs that prove which weights a server uses. Numbers worked out by hand."""

import pytest

from app.errors import AdapterError
from app.hot_swap.verification import verify_logprobs
from app.records import Probe, ProbePoint

PROBE = Probe((1, 2, 3), (ProbePoint(1, 2, logprob=-1.0, base=-2.0), ProbePoint(2, 3, logprob=-0.5, base=-0.25)))


def test_equal_logprobs_pass() -> None:
    figures = verify_logprobs(PROBE, served=(-1.0005, -0.5), base=(-2.0, -0.25))
    assert figures.error == pytest.approx(0.0005)
    assert figures.distance == pytest.approx(0.9995)
    assert figures.noise == 0


def test_a_server_of_lower_precision_may_be_off_by_three_times_the_noise_of_its_base() -> None:
    verify_logprobs(PROBE, served=(-1.05, -0.5), base=(-2.02, -0.25))
    with pytest.raises(
        AdapterError, match=r"other weights than the trained ones.*0\.0700, and 0\.0600 is allowed"
    ):
        verify_logprobs(PROBE, served=(-1.07, -0.5), base=(-2.02, -0.25))


def test_a_thousandth_is_allowed_however_exact_the_base_is() -> None:
    verify_logprobs(PROBE, served=(-1.0009, -0.5), base=(-2.0, -0.25))
    with pytest.raises(AdapterError, match=r"0\.0011, and 0\.0010 is allowed"):
        verify_logprobs(PROBE, served=(-1.0011, -0.5), base=(-2.0, -0.25))


def test_a_server_that_serves_the_base_instead_is_detected() -> None:
    with pytest.raises(AdapterError, match=r"behaves like the base.*without using it"):
        verify_logprobs(PROBE, served=(-2.0, -0.25), base=(-2.0, -0.25))


def test_noise_as_large_as_the_adapter_does_not_hide_the_base() -> None:
    """A base off by 0.4 allows an error of 1.2, and the adapter is 1.0 from the base."""
    with pytest.raises(AdapterError, match="closer to the base model"):
        verify_logprobs(PROBE, served=(-1.9, -0.3), base=(-2.4, -0.25))


def test_weights_that_change_nothing_cannot_be_verified() -> None:
    same = Probe((1, 2), (ProbePoint(1, 2, logprob=-1.0, base=-1.0),))
    with pytest.raises(AdapterError, match="these weights behave like the base: even in training"):
        verify_logprobs(same, served=(-1.0,), base=(-1.0,))


def test_another_base_model_is_named_as_the_cause() -> None:
    with pytest.raises(AdapterError, match=r"another base model than the trained one.*SAGE_MODEL"):
        verify_logprobs(PROBE, served=(-1.5, -0.5), base=(-4.0, -0.25))


def test_nan_proves_nothing() -> None:
    with pytest.raises(AdapterError):
        verify_logprobs(PROBE, served=(float("nan"), -0.5), base=(-2.0, -0.25))
