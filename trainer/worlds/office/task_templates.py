"""Templates of instructions: an app, a verb and a selector, filled with a value."""

from typing import Literal

import msgspec

from trainer.worlds.office.apps import ACTS, APPS, GROUPS, PEOPLE, THRESHOLDS, Act, AppSpec, Role

Verb = Literal["act1", "act2", "act3", "count", "total", "top"]
Selector = Literal["person", "label", "group", "over"]

VERBS: tuple[Verb, ...] = ("act1", "act2", "act3", "count", "total", "top")
SELECTORS: tuple[Selector, ...] = ("person", "label", "group", "over")

_ACT_PHRASES = (
    "{act} every one of my {nouns} {where}",
    "{act} all {nouns} {where}",
    "please {act} the {nouns} {where}",
)
_COUNT_PHRASES = (
    "how many {nouns} {where} do i have",
    "count my {nouns} {where}",
    "what is the number of {nouns} {where}",
)
_TOTAL_PHRASES = (
    "what is the total {measure} of my {nouns} {where}",
    "add up the {measure} of all {nouns} {where}",
    "sum the {measure} of the {nouns} {where}",
)
_TOP_PHRASES = (
    "{act} the {most} {noun} {where}",
    "{act} only the {most} one of my {nouns} {where}",
    "please {act} the one {most} {noun} {where}",
)
_WHERE: dict[Selector, str] = {
    "person": "from {value}",
    "label": "in {value}",
    "group": "from my {value}",
    "over": "with {measure} over {value}",
}


class Template(msgspec.Struct, frozen=True):
    """A kind of task. All tasks of a scenario have the same template."""

    app: str
    verb: Verb
    selector: Selector

    @property
    def name(self) -> str:
        return f"{self.app}.{self.verb}.{self.selector}"

    @property
    def spec(self) -> AppSpec:
        return APPS[self.app]

    @property
    def role(self) -> Role | None:
        """The role of the operation that changes items; None if nothing is changed."""
        if self.verb == "top":
            return "act1"
        return self.verb if self.verb in ACTS else None

    @property
    def act(self) -> Act | None:
        return self.spec.acts[ACTS.index(self.role)] if self.role else None

    @property
    def values(self) -> tuple[str, ...]:
        """The possible values of the selector."""
        pools = {"person": PEOPLE, "label": self.spec.values, "group": GROUPS, "over": THRESHOLDS}
        return pools[self.selector]

    @property
    def function(self) -> str:
        """The name of the function that solves the task, the same at every site."""
        verb = self.act.verb if self.act and self.verb != "top" else self.verb
        return f"{verb}_{self.spec.nouns}_by_{self.selector}"

    @property
    def phrasings(self) -> tuple[str, ...]:
        """The phrasings of the instruction, with {value} left open."""
        spec = self.spec
        words = {"noun": spec.noun, "nouns": spec.nouns, "measure": spec.measure, "most": spec.most}
        words["act"] = self.act.verb if self.act else ""
        words["where"] = _WHERE[self.selector].format(value="{value}", **words)
        return tuple(phrase.format(**words) for phrase in _phrases(self.verb))


def _phrases(verb: Verb) -> tuple[str, ...]:
    special = {"count": _COUNT_PHRASES, "total": _TOTAL_PHRASES, "top": _TOP_PHRASES}
    return special.get(verb, _ACT_PHRASES)


# The largest item over a threshold is simply the largest item: nothing would be selected.
TEMPLATES: tuple[Template, ...] = tuple(
    Template(app, verb, selector)
    for app in APPS
    for verb in VERBS
    for selector in SELECTORS
    if (verb, selector) != ("top", "over")
)
