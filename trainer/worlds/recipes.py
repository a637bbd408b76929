"""What determines the seed policy and the adapters of pretrained models, and what these are examined on.

The recipe of a work directory refuses to mix the results of two. Imports no torch, so that the command that
shows the defaults starts fast.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from app.base.errors import InvalidError
from app.base.files import write_atomically

MAX_LENGTH = 2048
Positive = Annotated[int, msgspec.Meta(ge=1)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_FIXED = {"model", "base", "start"}  # follow from the model and the adapter that are named
_FREE = "office?names=varied&wording=free"
_EXPERT = "scripted?inline=0.3&unprepared=0.08&page=0.08&synonym=0.04&glance=0.15&ignore=0.02&trust=0.3&notes=1"
_FILE = "recipe.json"
_Recipe = TypeVar("_Recipe", bound=msgspec.Struct)


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Size and training of the seed policy."""

    seed: int = 0
    hidden: int = 160
    layers: int = 6
    heads: int = 5  # of 32: the smallest head that vLLM serves
    mlp: int = 448
    drills: int = 40_000  # of each kind, to sample from
    drill_steps: int = 300
    steps: int = 6000
    tokens: int = 16_384  # per step
    lr: float = 1e-3


class MixPart(msgspec.Struct, frozen=True, kw_only=True):
    """Demonstrations of one environment by one expert."""

    name: str
    share: Share  # of all scenarios
    environment: str
    expert: str  # with its probabilities of errors, which it repairs


MIX = (
    MixPart(name="strangers", share=0.26, environment="strangers", expert="strangers?crowded=0&withheld=0"),
    MixPart(
        name="strangers-crowded", share=0.12, environment="strangers", expert="strangers?crowded=1&withheld=0"
    ),
    MixPart(
        name="strangers-withheld", share=0.07, environment="strangers", expert="strangers?crowded=0&withheld=1"
    ),
    MixPart(name="gym", share=0.19, environment="gym", expert="gym?crowded=0&withheld=0"),
    MixPart(name="gym-crowded", share=0.09, environment="gym", expert="gym?crowded=1&withheld=0"),
    MixPart(name="gym-withheld", share=0.07, environment="gym", expert="gym?crowded=0&withheld=1"),
    MixPart(name="office", share=0.1, environment=_FREE, expert=_EXPERT),
    MixPart(name="office-crowded", share=0.06, environment="office", expert=f"{_EXPERT}&crowded=1"),
    MixPart(name="office-withheld", share=0.04, environment=_FREE, expert=f"{_EXPERT}&withheld=1"),
)
"""Skills offered, among others that do not fit, and none although some were written."""

HELD_OUT = {
    "gym, unseen domains": "gym?held_out=domains",
    "gym, unseen API shapes": "gym?held_out=shapes",
    "gym, unseen compositions": "gym?held_out=compositions",
    "gym, unseen phrasings": "gym?held_out=phrasings",
    "strangers, unseen APIs and phrasings": "strangers",
    "office, unseen templates": "office",
    "office, unseen templates and wording": "office?wording=free",
    "office, unseen templates and names": "office?names=varied",
}
"""The environments of the test split, by what training never saw."""


class AdapterRecipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data and training of an adapter. The number of processes changes its rounding alone."""

    model: str
    base: str  # a hash of its configuration and of the sizes of its weights
    start: str = ""  # content hash of the adapter to go on from; its rank stays
    seed: int = 0
    scenarios: Positive = 1600  # to demonstrate, three tasks each
    held_out_scenarios: Positive = 40  # of validation, for the loss
    mix: tuple[MixPart, ...] = MIX
    profile: str = "brief"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # of the frozen base: what is faster on this machine
    rank: Positive = 16
    alpha: Positive = 32
    lr: Share = 1e-3  # peak
    warmup: Positive = 10  # steps
    decay: Share = 0.3  # of all steps: the last ones, down to a tenth of lr
    steps: Positive = 500
    tokens: Positive = 4096  # per step
    report_every: Positive = 25  # steps between two points of the learning curve
    exam_every: Positive = 250  # steps between two exams, a multiple of `report_every`
    exam_scenarios: Positive = 16  # of validation, of each environment


def check_recipe(recipe: AdapterRecipe) -> None:
    """Raises InvalidError for values that do not fit together."""
    total = sum(part.share for part in recipe.mix)
    if abs(total - 1) > 1e-6:
        raise InvalidError(f"the shares of the mix add up to {total:g}: they must add up to 1")
    if len({part.name for part in recipe.mix}) < len(recipe.mix):
        raise InvalidError("two parts of the mix have the same name: give each its own")
    if recipe.exam_every % recipe.report_every:
        raise InvalidError(
            f"exam_every={recipe.exam_every} is no multiple of report_every={recipe.report_every}: exams are run "
            "at points of the learning curve"
        )


def divide_scenarios(total: int, mix: Sequence[MixPart]) -> list[int]:
    """Whole scenarios for each part, by largest remainder; their sum is `total`.

    >>> [each.share for each in MIX[:3]], divide_scenarios(10, MIX)
    ([0.26, 0.12, 0.07], [3, 1, 1, 2, 1, 1, 1, 0, 0])
    """
    exact = [total * part.share for part in mix]
    counts = [int(each + 1e-9) for each in exact]
    order = sorted(range(len(mix)), key=lambda at: (counts[at] - exact[at], at))
    for at in order[: total - sum(counts)]:
        counts[at] += 1
    return counts


def with_settings(recipe: AdapterRecipe, given: Sequence[str]) -> AdapterRecipe:
    """The recipe with other values, each written "name=value"; `mix` is JSON.

    Raises InvalidError for an unknown name and for a value that does not fit.
    """
    values = msgspec.to_builtins(recipe)
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or name not in values or name in _FIXED:
            known = ", ".join(sorted(values.keys() - _FIXED))
            raise InvalidError(f"--set {each}: write name=value, with one of {known}")
        values[name] = _read_json(value) if name == "mix" else value
    try:
        return msgspec.convert(values, AdapterRecipe, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the recipe does not fit: {error}") from error


def file_name(title: str) -> str:
    """
    >>> file_name("gym, unseen API shapes")
    'gym-unseen-api-shapes'
    """
    return title.lower().replace(",", "").replace(" ", "-")


def claim_directory(work: Path, recipe: _Recipe) -> None:
    """Mark `work` as this recipe's. Raises InvalidError if it is another's: their results would mix silently."""
    path = work / _FILE
    if not path.exists():
        write_atomically(msgspec.json.encode(recipe), path)
        return
    try:
        begun = msgspec.structs.asdict(msgspec.json.decode(path.read_bytes(), type=type(recipe)))
    except msgspec.ValidationError as error:
        raise InvalidError(
            f"{work} was begun by a build of another kind, of the seed policy or of an adapter: name another "
            "directory with --work"
        ) from error
    other = [name for name, value in msgspec.structs.asdict(recipe).items() if begun[name] != value]
    if other:
        was = ", ".join(f"{name}={begun[name]}" for name in other)
        raise InvalidError(f"{work} was begun with {was}: use the same values, or another work directory")


def _read_json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidError(f"--set mix is no JSON: {error}") from error
