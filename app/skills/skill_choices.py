"""Why skills were offered to a task or not, as its view shows it."""

from collections.abc import Iterable
from uuid import UUID

import msgspec

from app.base.values import Offer
from app.skills.fusion import FusionWeights, Scored, fuse
from app.skills.skill_index import SkillIndex

_NEAR = 10  # skills that were found but fit too little, at most
_NEVER_OFFERED = "it is not similar enough: none of its scores reaches its threshold"
SURPLUS = "better skills took all places"
WITHHELD = "withheld: the task is in the share that does without skills, to measure what they are worth"


class SkillChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that was found. `scores` are its similarities in the retrieval lists that hold it, `ranks` its ranks
    in them, from 1. `reason` says why it was not offered.
    """

    skill_id: UUID
    name: str
    version: int
    offered: bool
    reason: str | None = None
    ranks: dict[str, int] = {}
    scores: dict[str, float] = {}


class SkillSelectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when the task began, best first: the skills that were offered, those that could not be or
    that others came before, and at most ten that fit too little. A score that reaches its threshold admits one.
    """

    thresholds: dict[str, float]
    choices: list[SkillChoice]


class RetrievalTrace:
    """Keeps what a retrieval compares. One of a plug-in compares what it likes, and leaves it empty."""

    def __init__(self) -> None:
        self.near: list[Offer] = []  # that were not admitted, the best first
        self._lists: dict[str, dict[UUID, float]] = {}
        self._settings = FusionWeights({}, {})

    def note(self, lists: dict[str, Scored[UUID]], settings: FusionWeights) -> None:
        self._lists = {label: dict(entries) for label, entries in lists.items()}
        self._settings = settings

    def close(self, index: SkillIndex, found: Iterable[UUID]) -> None:
        """Name the skills that were compared and not found."""
        known = set(found)
        anything = FusionWeights(self._settings.weights, dict.fromkeys(self._settings.thresholds, float("-inf")))
        lists = {
            label: [
                entry for entry in entries.items() if not self._is_admitted(entry[0]) and entry[0] not in known
            ]
            for label, entries in self._lists.items()
        }
        ranked = fuse(lists, anything, _NEAR, index.newest)
        self.near = [index.offer(key) for key, _ in ranked]

    def record(self, offered: Iterable[Offer], others: Iterable[tuple[Offer, str]]) -> SkillSelectionRecord:
        """`others` were found and not offered, each with the reason."""
        choices = [self._choice(offer, None) for offer in offered]
        choices += [self._choice(offer, reason) for offer, reason in others]
        choices += [self._choice(offer, _NEVER_OFFERED) for offer in self.near]
        thresholds = {label: least for label, least in self._settings.thresholds.items() if label in self._lists}
        return SkillSelectionRecord(thresholds=thresholds, choices=choices)

    def _is_admitted(self, key: UUID) -> bool:
        least = self._settings.thresholds
        return any(entries.get(key, float("-inf")) >= least[label] for label, entries in self._lists.items())

    def _choice(self, offer: Offer, reason: str | None) -> SkillChoice:
        scores = {
            label: round(float(each[offer.skill_id]), 4)
            for label, each in self._lists.items()
            if offer.skill_id in each
        }
        return SkillChoice(
            skill_id=offer.skill_id,
            name=offer.name,
            version=offer.version,
            offered=reason is None,
            reason=reason,
            ranks=offer.ranks,
            scores=scores,
        )
