"""The APIs that a model was made for, as its card says."""

from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from app.records import Json

_CARD_FIELD = "made_for_apis"


class ModelScope(msgspec.Struct, frozen=True):
    """`apis` are names; empty: the model's card names none, so that it may serve any."""

    model: str = ""
    apis: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: str, card: Mapping[str, Json]) -> Self:
        """`model` is as SAGE_MODEL names it."""
        listed = card.get(_CARD_FIELD)
        return cls(model, frozenset(map(str, listed)) if isinstance(listed, list) else frozenset())

    def others(self, apis: Iterable[str]) -> list[str]:
        """Those of the APIs that the model was not made for."""
        return sorted(set(apis) - self.apis) if self.apis else []

    def remark(self, apis: Iterable[str]) -> str | None:
        """What to tell about a project with these APIs; None if the model may serve them all.

        >>> ModelScope("seed", frozenset({"mail", "notes"})).remark(["billing"]).partition(":")[0]
        'the model seed was made for the APIs mail, notes alone and will do nothing useful with billing'
        >>> ModelScope("seed", frozenset({"mail"})).remark(["mail"]), ModelScope("any").remark(["billing"])
        (None, None)
        """
        if not (others := self.others(apis)):
            return None
        return (
            f"the model {self.model} was made for the APIs {', '.join(sorted(self.apis))} alone and will do "
            f"nothing useful with {', '.join(others)}: set SAGE_MODEL to an instruct model (`sage models list` "
            "shows some) and restart"
        )
