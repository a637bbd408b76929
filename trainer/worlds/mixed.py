"""Several environments as one, whose scenarios come by turns."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

import msgspec

from app.base.errors import InvalidError
from app.base.values import Task
from trainer.environment import Environment, Scenario, Split, World, open_environment

_SEPARATOR = ":"


def load_environment(*, of: str = "gym,office") -> "MixedEnvironment":
    """A plug-in: `trainer.worlds.mixed:load_environment?of=NAME,NAME`.

    With options, a part is written as in an address: `office%3Fnames%3Dvaried`.
    """
    texts = [text for text in of.split(",") if text]
    parts = {text.partition("?")[0]: text for text in texts}
    if not texts or len(parts) < len(texts):
        raise InvalidError(f"of={of}: name environments, each once, with commas between them")
    return MixedEnvironment({name: open_environment(text) for name, text in parts.items()})


class MixedEnvironment:
    """Implements `Environment`. Scenarios and templates have the name of their environment before them."""

    def __init__(self, parts: Mapping[str, Environment]) -> None:
        self._parts = parts

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        share = -(-count // len(self._parts))
        drawn = [
            [_named(name, scenario) for scenario in part.scenarios(split, share, seed)]
            for name, part in self._parts.items()
        ]
        return [scenario for turn in zip(*drawn, strict=True) for scenario in turn][:count]

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]:
        name, _, own = scenario.id.partition(_SEPARATOR)
        return self._parts[name].open(msgspec.structs.replace(scenario, id=own), task)


def _named(name: str, scenario: Scenario) -> Scenario:
    return msgspec.structs.replace(
        scenario,
        id=f"{name}{_SEPARATOR}{scenario.id}",
        template=f"{name}{_SEPARATOR}{scenario.template}",
    )
