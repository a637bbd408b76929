"""Logprobs that prove which weights a server uses. Numbers worked out by hand."""

import pytest

from app.base.errors import AdapterError
from app.base.values import Probe, ProbePoint
from app.releases.swap import allowed_error, verify_logprobs

PROBE = Probe((1, 2, 3), (ProbePoint(1, 2, logprob=-1.0, base=-2.0), ProbePoint(2, 3, logprob=-0.5, base=-0.25)))


FAR = Probe((1, 2, 3), (ProbePoint(1, 2, logprob=-12.0, base=-2.0), ProbePoint(2, 3, logprob=-0.5, base=-10.5)))
SMOLLM2 = (  # trained in bfloat16, its base; in float32: itself, its base, three steps later, a tenth smaller
    (-12.0095, -0.4325, -12.2595, -0.4773, -12.1404, -10.7677),
    (-11.6542, -4.8229, -11.6097, -4.8166, -11.0013, -10.2997),
    (-12.2765, -5.1112, -12.3696, -5.1506, -11.9627, -11.6242),
    (-17.2361, -6.4567, -17.3584, -6.5165, -16.6167, -16.2094),
    (-10.4354, -0.3126, -10.2858, -0.3368, -9.7634, -9.0712),
    (-0.0000, -15.5603, -0.0000, -15.6307, -0.0000, -0.0000),
    (-0.0000, -6.7096, -0.0000, -6.6592, -0.0000, -0.0000),
    (-0.0001, -7.0737, -0.0001, -7.1337, -0.0001, -0.0002),
)


def test_equal_logprobs_pass() -> None:
    figures = verify_logprobs(PROBE, served=(-1.0005, -0.5005), base=(-2.0, -0.25))
    assert figures.error == pytest.approx(0.0005)
    assert figures.distance == pytest.approx(((0.9995**2 + 0.2505**2) / 2) ** 0.5)
    assert figures.noise == 0


def test_a_server_of_lower_precision_may_be_off_by_three_times_the_noise_of_its_base() -> None:
    verify_logprobs(PROBE, served=(-1.14, -0.36), base=(-2.05, -0.3))
    with pytest.raises(
        AdapterError, match=r"other weights than the trained ones.*0\.1600.*and 0\.1500 is allowed"
    ):
        verify_logprobs(PROBE, served=(-1.16, -0.34), base=(-2.05, -0.3))


def test_it_may_be_off_by_a_tenth_and_a_part_of_what_the_adapter_changes() -> None:
    verify_logprobs(FAR, served=(-12.29, -0.79), base=(-2.05, -10.45))
    with pytest.raises(AdapterError, match=r"0\.3100.*and 0\.3000 is allowed"):
        verify_logprobs(FAR, served=(-12.31, -0.81), base=(-2.05, -10.45))


def test_a_small_adapter_may_round_more_than_a_base_that_both_round_alike() -> None:
    """The root mean square of its changes is 0.729."""
    verify_logprobs(PROBE, served=(-1.114, -0.614), base=(-2.02, -0.27))
    with pytest.raises(AdapterError, match=r"0\.1160.*and 0\.1146 is allowed"):
        verify_logprobs(PROBE, served=(-1.116, -0.616), base=(-2.02, -0.27))


def test_that_is_at_most_sixteen_times_the_noise_of_its_base() -> None:
    verify_logprobs(FAR, served=(-12.0015, -0.5015), base=(-2.0001, -10.5001))
    with pytest.raises(AdapterError, match=r"0\.0017.*and 0\.0016 is allowed"):
        verify_logprobs(FAR, served=(-12.0017, -0.5017), base=(-2.0001, -10.5001))


def test_one_difference_among_many_tokens_counts_as_its_part_of_them() -> None:
    """The root mean square of 0.2 and 0 is 0.141; 0.15 is allowed."""
    verify_logprobs(PROBE, served=(-1.2, -0.5), base=(-2.05, -0.3))


def test_an_adapter_trained_in_bfloat16_is_verified_in_float32_and_close_ones_are_refused() -> None:
    """Measured with the bundled adapter: the largest error is 0.25, and three times the largest noise is 0.21."""
    trained, trained_base, served, base, later, smaller = zip(*SMOLLM2, strict=True)
    points = tuple(
        ProbePoint(1 + index, 1, *pair) for index, pair in enumerate(zip(trained, trained_base, strict=True))
    )
    probe = Probe((1,) * 9, points)
    figures = verify_logprobs(probe, served, base)
    assert figures.error == pytest.approx(0.1175, abs=1e-4)
    assert 2 * figures.error < allowed_error(figures.noise, 9.92)
    for others in (later, smaller):
        with pytest.raises(AdapterError, match="other weights than the trained ones"):
            verify_logprobs(probe, others, base)


def test_a_thousandth_is_allowed_however_exact_the_base_is() -> None:
    verify_logprobs(PROBE, served=(-1.0009, -0.5009), base=(-2.0, -0.25))
    with pytest.raises(AdapterError, match=r"0\.0011.*and 0\.0010 is allowed"):
        verify_logprobs(PROBE, served=(-1.0011, -0.5011), base=(-2.0, -0.25))


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
