"""How often an exam sees a gain that is there, by its number of scenarios alone: known before it runs. Pure."""

from math import comb

_GAIN = 5.0  # points, as many as the gate lets a candidate lose
_TAIL = 0.025  # of a bootstrap below its 95 % interval


def fewest_gained(scenarios: int) -> int:
    """The scenarios that a candidate which lost none has to gain for the gate to see that it solves more.

    The bootstrap's interval is above 0 once hardly any resample is without a gained scenario.

    >>> fewest_gained(67)
    4
    """
    return next(gained for gained in range(scenarios + 1) if (1 - gained / scenarios) ** scenarios < _TAIL)


def power(scenarios: int, gain: float = _GAIN) -> float:
    """The probability that a gain of so many points of scenarios is seen, if none is lost, which lowers it.

    >>> [round(power(scenarios), 2) for scenarios in (30, 67, 100, 200)]
    [0.06, 0.43, 0.74, 0.99]
    """
    share, enough = gain / 100, fewest_gained(scenarios)
    missed = (comb(scenarios, k) * share**k * (1 - share) ** (scenarios - k) for k in range(enough))
    return max(0.0, 1 - sum(missed))


def power_in_words(scenarios: int) -> str:
    """
    >>> power_in_words(67)
    '67 scenarios: a gain of 5 points is seen 43 times in 100 if no scenario is lost, else more seldom'
    """
    if not scenarios:
        return "no scenario can be tried"
    seen = f"a gain of {_GAIN:g} points is seen {100 * power(scenarios):.0f} times in 100"
    return f"{scenarios} scenarios: {seen} if no scenario is lost, else more seldom"
