"""Which templates are for training and which are held out: fixed, so that results stay comparable."""

from collections import Counter
from functools import cache
from random import Random

from trainer.environment import Split
from trainer.worlds.office.task_templates import TEMPLATES, Template

_HELD_OUT: tuple[tuple[Split, int], ...] = (("test", 40), ("validation", 16))
_TAUGHT_AT_LEAST = 2  # templates of the train split that contain each pair of a held-out one


@cache
def templates_of(split: Split) -> tuple[Template, ...]:
    """The templates of one split.

    Held-out templates recombine trained ones: each of their pairs (app, verb), (app, selector) and (verb,
    selector) also occurs in the train split.
    """
    return _split()[split]


@cache
def _split() -> dict[Split, tuple[Template, ...]]:
    order = list(TEMPLATES)
    Random("office split").shuffle(order)
    taught = Counter(pair for template in order for pair in _pairs(template))
    splits: dict[Split, tuple[Template, ...]] = {}
    for name, count in _HELD_OUT:
        chosen = _hold_out(order, taught, count)
        splits[name] = chosen
        order = [template for template in order if template not in chosen]
    splits["train"] = tuple(order)
    return splits


def _hold_out(order: list[Template], taught: Counter[tuple[str, str]], count: int) -> tuple[Template, ...]:
    chosen: list[Template] = []
    for template in order:
        if len(chosen) < count and all(taught[pair] > _TAUGHT_AT_LEAST for pair in _pairs(template)):
            chosen.append(template)
            taught.subtract(_pairs(template))
    return tuple(chosen)


def _pairs(template: Template) -> list[tuple[str, str]]:
    app, verb, selector = template.app, template.verb, template.selector
    return [(app, verb), (app, selector), (verb, selector)]
