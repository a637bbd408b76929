"""A score interval for the difference between two paired shares."""

from math import sqrt

_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
_HALVINGS = 50


def difference_lower_bound(gained: int, lost: int, scenarios: int) -> float:
    """The lower bound of the 95 % score interval for the difference of two paired shares (Tango 1998), in -1..1.

    `gained` and `lost` count the scenarios that only the first and only the second solved. A bootstrap is useless
    for few losses: without any in 60 scenarios its interval is a point. The true difference is below this bound in
    hardly more than 2.5 % of evaluations.
    """
    low, high = -1.0, (gained - lost) / scenarios
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _is_ruled_out(middle, gained, lost, scenarios):
            low = middle
        else:
            high = middle
    return low


def _is_ruled_out(difference: float, gained: int, lost: int, scenarios: int) -> bool:
    """Whether the score test rejects `difference`, with the maximum likelihood share of losses under it."""
    linear = (2 * scenarios - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    loss_share = (sqrt(linear**2 - 8 * scenarios * constant) - linear) / (4 * scenarios)
    variance = scenarios * (2 * loss_share + difference * (1 - difference))
    return gained - lost - scenarios * difference >= _Z * sqrt(max(variance, 0.0))
