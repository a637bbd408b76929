"""Releases as the gate and canaries leave them: weights, and the evidence by which they were promoted."""

from collections.abc import Sequence
from datetime import UTC, datetime

from app.base.values import Json
from app.db.tables import Release, ReleaseState

GAIN: dict[str, Json] = {"mean": 5.0, "low": 1.0, "high": 9.0}
EVEN: dict[str, Json] = {"mean": 0.0, "low": -2.0, "high": 2.0}
LOSS: dict[str, Json] = {"mean": -3.0, "low": -4.5, "high": -1.0}


def named(release: Release) -> dict[str, Json]:
    return {"number": release.number, "model": release.model}


def exam(
    over: Release, sgc: Json = EVEN, tgc: Json = EVEN, *, reference: Release | None = None, than: Json = EVEN
) -> dict[str, Json]:
    """A promotion by the gate: the differences to the active release, and that to the reference in scenarios."""
    found: dict[str, Json] = {
        "verdict": "promote",
        "compared_with": named(over),
        "difference": {"sgc": sgc, "tgc": tgc},
        "reference_release": named(reference or over),
    }
    third = {"reference_difference": {"sgc": than, "tgc": EVEN}}
    return found | (third if reference is not None and reference.model != over.model else {})


def live(over: Release, reward: Json, at_the_end: Json = None, *, lost: float = 0.0) -> dict[str, Json]:
    """A promotion of a canary, beside what the gate has shown. `lost` is its possible loss."""
    metrics = {"reward": {"difference": reward, "at_the_end": at_the_end}}
    decision = {"action": "promote", "metrics": metrics, "possible_loss": lost}
    return {"verdict": "promote", "canary": {"baseline": named(over), "decision": decision}}


def served(history: Sequence[Release], model: str, evidence: dict[str, Json] | None = None) -> Release:
    """The next release, which has been active."""
    return Release(
        number=len(history) + 1,
        model=model,
        state=ReleaseState.RETIRED,
        evidence=evidence,
        activated_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
