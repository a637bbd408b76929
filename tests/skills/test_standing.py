"""The rule by which skills move up on evidence."""

from typing import Any

import msgspec
import pytest

from app.db.tables import SkillState
from app.projects.settings import SkillPolicy
from app.skills.admission import Standing, standing
from app.skills.evidence import Outcomes, SkillEvidence
from tests.support.every_row import every_row

ENOUGH = SkillEvidence(
    maker_score=0.5,
    others=True,
    uses={"maker": Outcomes(3), "ann": Outcomes(2), "bob": Outcomes(1)},
    replays_matched=1,
    with_it=Outcomes(3, 1),
    without_it=Outcomes(3, 1),
)


def of(state: str = "probation", policy: SkillPolicy = "evidence", **changed: Any) -> Standing:
    return standing(SkillState(state), "maker", msgspec.structs.replace(ENOUGH, **changed), policy)


def test_a_skill_with_all_evidence_moves_up() -> None:
    assert of() == Standing(SkillState.ACTIVE)
    assert of("quarantined") == Standing(SkillState.PROBATION)
    assert of(policy="open").earned


@pytest.mark.parametrize("state", ["active", "superseded", "retired", "deleted"])
def test_other_states_are_left_by_no_evidence(state: str) -> None:
    assert not of(state).earned
    assert of(state).state == state


@pytest.mark.parametrize("state", ["quarantined", "probation"])
def test_under_review_no_evidence_replaces_a_person(state: str) -> None:
    assert of(state, "review").missing == ("a person's approval",)


PARTS: list[tuple[dict[str, Any], str]] = [
    ({"violations": 1}, "a person's approval, because it attempted calls beyond its manifest"),
    ({"replays_matched": 0}, "a replay"),
    ({"replays_failed": 1}, "a person's approval, because a replay went another way"),
    ({"maker_score": None}, "a score of the task that wrote it, by others than its key"),
    ({"maker_score": 0.49}, "a good score of the task that wrote it"),
    ({"with_it": Outcomes(2, 1)}, "an outcome no worse than without it"),
]


def test_each_part_of_the_evidence_is_needed() -> None:
    with every_row() as row:
        for state in ("quarantined", "probation"):
            for changed, missing in PARTS:
                with row(state, changed, missing):
                    assert of(state, **changed).missing == (missing,)


@pytest.mark.parametrize(
    ("with_it", "without_it", "earned"),
    [((3, 1), (3, 1), True), ((3, 1), (4, 1), False), ((3, 1), (0, 0), True), ((0, 0), (5, 0), True)],
)
def test_the_outcome_with_it_must_not_be_worse_than_without_it(
    with_it: tuple[int, int], without_it: tuple[int, int], earned: bool
) -> None:
    assert of(with_it=Outcomes(*with_it), without_it=Outcomes(*without_it)).earned is earned


@pytest.mark.parametrize(
    ("uses", "others", "missing"),
    [
        ({"ann": Outcomes(9)}, True, ("1 more principals that used it successfully",)),
        ({"ann": Outcomes(1), "bob": Outcomes(1)}, True, ("1 more successful uses",)),
        ({"ann": Outcomes(3), "bob": Outcomes(0, 3)}, True, ("1 more principals that used it successfully",)),
        (
            {"maker": Outcomes(9)},
            True,
            ("2 more principals that used it successfully", "3 more successful uses"),
        ),
        ({"maker": Outcomes(3)}, False, ()),
        ({"maker": Outcomes(2)}, False, ("1 more successful uses",)),
    ],
)
def test_probation_is_left_by_uses_of_other_principals_if_there_are_any(
    uses: dict[str, Outcomes], others: bool, missing: tuple[str, ...]
) -> None:
    assert of(uses=uses, others=others).missing == missing


def test_quarantine_is_left_by_uses_of_its_own_principal() -> None:
    assert of("quarantined", uses={"maker": Outcomes(3)}).earned
    uses = {"maker": Outcomes(2), "ann": Outcomes(9)}
    assert of("quarantined", uses=uses).missing == ("1 more successful uses",)
