"""Whether a skill lowers the share of successes, by Fisher's exact test. Pure."""

from math import comb

from app.db.skill_evidence import Outcomes


def chance_of_so_few(with_it: Outcomes, without_it: Outcomes) -> float:
    """The probability of so few successes with a skill, were it of no effect.

    By the hypergeometric distribution.

    >>> [round(chance_of_so_few(Outcomes(1, 2), Outcomes(good, 3 - good)), 3) for good in (3, 1)]
    [0.2, 0.8]
    """
    good, bad = with_it.successes + without_it.successes, with_it.failures + without_it.failures
    if with_it.total <= without_it.total:  # the sum over the smaller of the two has few terms
        tail = sum(comb(good, few) * comb(bad, with_it.total - few) for few in range(with_it.successes + 1))
    else:
        many = range(without_it.successes, without_it.total + 1)
        tail = sum(comb(good, each) * comb(bad, without_it.total - each) for each in many)
    return tail / comb(good + bad, min(with_it.total, without_it.total))
