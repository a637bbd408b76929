"""Plug-ins: practice on the APIs of strangers, and its expert.

A scenario and its contrast have an API that no other has. Its document is shown whole, with operations that no
double models and that no task needs.
"""

from functools import cached_property, lru_cache
from random import Random
from typing import Any, Final, get_args

from app.apis.double.model import read_model
from app.base.errors import InvalidError
from trainer.environment import Split
from trainer.lessons.experts import plug_in
from trainer.practice.environments import Key, NothingToPractiseError, Plan, Practice, PracticeEnvironment
from trainer.practice.experts import PracticeExpert
from trainer.practice.forms import Form
from trainer.worlds.strangers.documents import draw_document

_DRAWS: Final = 20  # of documents, until there is something to practise
_KEPT: Final = 32  # documents in memory


class StrangerPractice(Practice):
    """On one document. All forms are those of its split: no other split has a document like it."""

    @cached_property
    def forms(self) -> dict[Split, list[Form]]:
        return dict.fromkeys(get_args(Split), self._forms)


class Strangers:
    """The plans of all keys."""

    def __init__(self) -> None:
        self.practice_of = lru_cache(maxsize=_KEPT)(self._practice)

    def plan_of(self, key: Key) -> Plan:
        return self.practice_of(key.split, key.seed).plan_of(key)

    def _practice(self, split: Split, seed: int) -> StrangerPractice:
        for attempt in range(_DRAWS):
            drawn = draw_document(split, Random(f"strangers {split} {seed} {attempt}"))
            model = read_model(drawn.name, drawn.content, server=f"http://{drawn.name.replace('_', '-')}.practice")
            practice = StrangerPractice(model)
            try:
                for twin in (0, 1):
                    practice.plan_of(Key(split, seed, twin))
            except NothingToPractiseError:
                continue
            return practice
        raise InvalidError(f"{_DRAWS} documents of the seed {seed} have nothing to practise")


class StrangersEnvironment(PracticeEnvironment):
    """Implements `Environment`."""

    def __init__(self) -> None:
        practice: Any = Strangers()  # asked for plans alone
        super().__init__(practice)


def load_environment() -> StrangersEnvironment:
    return StrangersEnvironment()


load_expert = plug_in("strangers", PracticeExpert, StrangersEnvironment)
