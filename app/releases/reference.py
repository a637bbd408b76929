"""Which release a candidate must hold against beside the active one: the last that has proven a gain. Pure.

Small losses that each pass would add up if every candidate were compared with the release before only. So what is
promoted becomes the reference only if its evidence shows a gain over the reference, in an exam or as a canary;
until then the old one stays, whatever was gained in between over a release that had lost a little. A release that
a person activated without such evidence is the reference from then on, as the first one is.

All follows from the evidence of the releases that serve, so after a roll-back it is as it was.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from app.base.values import Json
from app.db.tables import Release
from app.releases.statistics import Interval
from app.releases.trials_store import ReleaseName

T = TypeVar("T")


def since_reference(history: Sequence[Release], active: Release) -> list[Release]:
    """The reference, then those that were promoted since, each over the one before, to the active one.

    `history` are all releases of the project. Evidence of earlier versions, which did not name the reference, is
    read as far as it goes.
    """
    numbered = {release.number: release for release in history}
    promoted, proofs = [active], list[_Proof]()
    while (proof := _proof_of(promoted[0].model, promoted[0].number, history)) is not None:
        before = numbered.get(proof.before)
        if before is None or before.number in {each.number for each in promoted}:
            break
        promoted.insert(0, before)
        proofs.insert(0, proof)
    reference = 0
    for place, ((before, release), proof) in enumerate(zip(pairwise(promoted), proofs, strict=True)):
        if proof.shows_gain(before, release, before_is_reference=reference == place):
            reference = place + 1
    return promoted[reference:]


def possible_loss(history: Sequence[Release], active: Release) -> float:
    """The reward that the active release may have lost, by promotions without a gate, and has not gained since.

    That of the last canary among those after the reference: an exam that showed no gain leaves it as it was.
    """
    for release in reversed(since_reference(history, active)[1:]):
        proof = _proof_of(release.model, release.number, history)
        if proof is not None and proof.canary is not None and proof.canary.decision.action == "promote":
            return proof.canary.decision.possible_loss
    return 0.0


class _Exam(msgspec.Struct, frozen=True):
    """The difference that an exam has shown."""

    sgc: Interval
    tgc: Interval

    @property
    def is_gain(self) -> bool:
        """In one of the two, with no loss in the other: one that pays for the other could go on and on."""
        return max(self.sgc.low, self.tgc.low) > 0 and min(self.sgc.mean, self.tgc.mean) >= 0


class _Metric(msgspec.Struct, frozen=True):
    difference: Interval | None = None
    at_the_end: Interval | None = None


class _Decision(msgspec.Struct, frozen=True):
    metrics: dict[str, _Metric]
    action: str = ""
    possible_loss: float = 0.0


class _Canary(msgspec.Struct, frozen=True):
    """What live tasks have shown."""

    baseline: ReleaseName
    decision: _Decision

    @property
    def is_gain(self) -> bool:
        reward = self.decision.metrics.get("reward", _Metric())
        return any(each is not None and each.low > 0 for each in (reward.difference, reward.at_the_end))


class _Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence by which weights were promoted."""

    compared_with: ReleaseName | None
    difference: _Exam | None
    reference: ReleaseName | None
    reference_difference: _Exam | None
    canary: _Canary | None

    @property
    def before(self) -> int:
        """The number of the release that they replaced; 0 if it is not known."""
        replaced = self.canary.baseline if self.canary is not None else self.compared_with
        return 0 if replaced is None else replaced.number

    def shows_gain(self, before: Release, release: Release, *, before_is_reference: bool) -> bool:
        """Over the reference, which the release before may have been."""
        live = self.canary is not None and self.canary.is_gain
        examined = self.compared_with is not None and self.compared_with.model == before.model
        if not examined:
            return before_is_reference and live
        gain = live or (self.difference is not None and self.difference.is_gain)
        if self.reference is None:  # there was no exam, or an earlier version did not name it
            return before_is_reference and gain
        if self.reference.model == before.model:
            return gain
        if self.reference.model == release.model:
            return True
        return self.reference_difference is not None and self.reference_difference.is_gain


def _proof_of(model: str, number: int, history: Sequence[Release]) -> _Proof | None:
    """Of the weights of a release: a changed prompt or API document makes another release with them."""
    found = [each for each in history if each.model == model and each.number <= number and _is_promoted(each)]
    if not found:
        return None
    evidence: Mapping[str, Json] = max(found, key=lambda each: each.number).evidence or {}
    return _Proof(
        compared_with=read_part(evidence.get("compared_with"), ReleaseName),
        difference=read_part(evidence.get("difference"), _Exam),
        reference=read_part(evidence.get("reference_release"), ReleaseName),
        reference_difference=read_part(evidence.get("reference_difference"), _Exam),
        canary=read_part(evidence.get("canary"), _Canary),
    )


def _is_promoted(release: Release) -> bool:
    """By what the gate or a canary has shown."""
    evidence = release.evidence or {}
    is_compared = "compared_with" in evidence or "canary" in evidence
    return release.activated_at is not None and evidence.get("verdict") == "promote" and is_compared


def read_part(stored: Any, kind: type[T]) -> T | None:
    """None if it is missing, or an earlier version wrote it in another form."""
    try:
        return msgspec.convert(stored, kind)
    except msgspec.ValidationError:
        return None
