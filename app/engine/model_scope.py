"""The APIs that a model was made for, as its card says."""

from collections.abc import Collection, Mapping
from typing import Self

import msgspec

from app.base.values import Json

ADVICE = (
    "add a hosted model (`sage models add`) and let it serve the project, or set SAGE_MODEL to a larger model "
    "(`sage models list` shows some)"
)
LARGER = "try a larger hosted model (`sage models add`), and let it serve the project"
_CARD_FIELD = "made_for_apis"
_NONE: Mapping[str, tuple[int, int, str | None]] = {}
_ANY_FORM = "full"  # the prompt profile of models that were not trained by us
_NAMES = "api_names"  # in whose lessons operations had these names: "readable", or "operation_id"


def trial_remark(right: int, asked: int, hosted: str | None = None) -> str | None:
    """What to tell about an API whose trial ended so, with the `hosted` model of this name, if with one; None if
    the model can use it. One question alone proves little.

    >>> trial_remark(1, 5), str(trial_remark(0, 5)).partition(":")[0]
    (None, 'the model answered 0 of 5 questions right, so it cannot use this API yet')
    >>> trial_remark(0, 1, "wise")  # doctest: +ELLIPSIS
    'the hosted model wise answered 0 of 1 questions right, so perhaps it cannot use this API, though only one ...'
    """
    if right or not asked:
        return None
    who, advice = ("the model", ADVICE) if hosted is None else (f"the hosted model {hosted}", LARGER)
    said = f"{who} answered 0 of {asked} questions right, so"
    if asked == 1:
        return f"{said} perhaps it cannot use this API, though only one question could be made: {advice}"
    return f"{said} it cannot use this API yet: {advice}"


class ModelScope(msgspec.Struct, frozen=True):
    """`apis` are names, each with the operations that the model knows; without any, it knows those of every API of
    this name. Empty: the model's card names none, so that it may serve any.

    `as_written`: its training showed it operations under the names and in the form of their documents, as its card
    says by `api_names: operation_id`, or by a prompt profile of ours without `api_names: readable`.
    """

    model: str = ""
    apis: Mapping[str, Collection[str]] = {}
    as_written: bool = False

    @classmethod
    def of(cls, model: str, card: Mapping[str, Json]) -> Self:
        """`model` is as SAGE_MODEL names it. The card has a list of names, or a mapping to lists of operations."""
        listed = card.get(_CARD_FIELD)
        if isinstance(listed, list):
            listed = dict.fromkeys(listed)
        known = listed if isinstance(listed, dict) else {}
        apis = {str(name): frozenset(map(str, names or ())) for name, names in known.items()}
        readable = card.get("prompt_profile", _ANY_FORM) == _ANY_FORM
        return cls(model, apis, card.get(_NAMES, "readable" if readable else "operation_id") != "readable")

    def others(self, apis: Mapping[str, Collection[str]]) -> list[str]:
        """Those of the APIs, given with their operations, that the model was not made for."""
        return sorted(name for name, operations in apis.items() if self._is_other(name, operations))

    def remark(
        self, apis: Mapping[str, Collection[str]], tried: Mapping[str, tuple[int, int, str | None]] = _NONE
    ) -> str | None:
        """What to tell about a project with these APIs; None if the model may serve them all. Of one that was
        `tried`, given as for `trial_remark`, it tells that instead.

        >>> scope = ModelScope("seed", {"mail": {"send", "list"}, "notes": ()})
        >>> scope.remark({"billing": ["pay"]}).partition(":")[0]
        'the model seed was made for the APIs mail, notes alone and will do nothing useful with billing'
        >>> scope.remark({"mail": ["list", "archive"]}).partition("for ")[2].partition(":")[0]
        'the APIs mail, notes alone and will do nothing useful with mail, which has other operations'
        >>> scope.remark({"mail": ["list"], "notes": ["add"]}), ModelScope("any").remark({"billing": ["pay"]})
        (None, None)
        """
        failed = {name: trial_remark(*tried[name]) for name in sorted(apis.keys() & tried.keys())}
        said = [f"{name}: {text}" for name, text in failed.items() if text is not None]
        if guess := self._guess({name: each for name, each in apis.items() if name not in tried}):
            said.append(guess)
        return "; ".join(said) or None

    def _guess(self, apis: Mapping[str, Collection[str]]) -> str | None:
        if not (others := self.others(apis)):
            return None
        shown = [f"{name}, which has other operations" if name in self.apis else name for name in others]
        return (
            f"the model {self.model} was made for the APIs {', '.join(sorted(self.apis))} alone and will do "
            f"nothing useful with {', '.join(shown)}: set SAGE_MODEL to an instruct model (`sage models list` "
            "shows some) and restart"
        )

    def _is_other(self, name: str, operations: Collection[str]) -> bool:
        known = self.apis.get(name)
        return bool(self.apis) and (known is None or (bool(known) and not set(operations) <= set(known)))
