"""A plug-in: practice on the APIs of strangers. A scenario and its contrast have an API that no other has.

Its document is shown whole, with operations that no double models and that no task needs.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property, lru_cache
from random import Random
from typing import Any, Final, get_args

import msgspec

from app.apis.api_documents import parse_document
from app.apis.catalog import App
from app.apis.double.model import read_model
from app.apis.double.served import in_another_order
from app.errors import InvalidError
from app.gateway.gateway import Gateway
from app.records import Task
from trainer.environment import Scenario, Split
from trainer.practice.environments import (
    Key,
    NothingToPractiseError,
    Plan,
    Practice,
    PracticeEnvironment,
    PracticeWorld,
)
from trainer.practice.forms import Form
from trainer.worlds.strangers.documents import draw_document

_DRAWS: Final = 20  # of documents, until there is something to practise
_KEPT: Final = 32  # documents in memory


class StrangerPractice(Practice):
    """On one document. All forms are those of its split: no other split has a document like it."""

    @cached_property
    def forms(self) -> dict[Split, list[Form]]:
        return dict.fromkeys(get_args(Split), self._forms)

    def app(self, key: Key) -> App:
        model = self.model
        return parse_document(model.app.name, in_another_order(model.document, key.text), server=model.app.server)


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


class StrangerWorld(PracticeWorld):
    """One task with the API of a stranger."""

    def open_gateway(self, max_calls: int) -> Gateway:
        task = self.task
        return Gateway(
            self.catalog,
            self.client,
            instruction=task.instruction,
            variables=task.variables,
            credentials=_Credentials(self),
            max_calls=max_calls,
        )


class _Credentials:
    """Fulfils `Credentials` with what the double of a world takes, for what it does not model, too."""

    def __init__(self, world: PracticeWorld) -> None:
        self._double = world.double

    async def of(self, app: App, operation: Any) -> Any:
        del app
        every = self._double.model.app.operations.values()
        place = (operation.method, operation.path)
        return self._double.authentication(next(each.name for each in every if (each.method, each.path) == place))

    async def refused(self, *_: object, **__: object) -> bool:
        """There are no others."""
        return False


class StrangersEnvironment(PracticeEnvironment):
    """Implements `Environment`."""

    def __init__(self) -> None:
        practice: Any = Strangers()  # asked for plans alone
        super().__init__(practice)

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[PracticeWorld]:
        del scenario  # the task's world determines everything
        plan, index = self.place(task.variables["world"])
        world = plan.world(index, secrets.token_hex(4))
        opened = StrangerWorld(msgspec.structs.replace(task, variables={"world": world}), plan, index)
        async with opened.client:
            yield opened


def load_environment() -> StrangersEnvironment:
    return StrangersEnvironment()
