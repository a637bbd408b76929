"""The expert's slips: of every kind, each in a program of its own, corrected in a sentence."""

from random import Random

import pytest

from trainer.worlds.generated.gym import GymKey, plan_of
from trainer.worlds.generated.gym_expert import Slip, draw_style, slips, write_program

KINDS = {
    "rows": "only ",
    "nesting": "the fields of a row are in ",
    "envelope": "the rows are in ",
    "auth": "a token is needed: ",
    "name": "the field is ",
    "state": " is a value of ",
    "label": " is ",
}


def kind_of(slip: Slip) -> str:
    return next(kind for kind, words in KINDS.items() if words in slip.correction)


@pytest.fixture(scope="module")
def found() -> dict[str, list[Slip]]:
    """The slips of 300 scenarios; each makes another program than the right one."""
    kinds: dict[str, list[Slip]] = {kind: [] for kind in KINDS}
    for seed in range(300):
        plan = plan_of(GymKey("train", "domains", seed))
        ask, style = plan.ask, draw_style(plan.key.random("style"))
        right = write_program(ask, style)
        for slip in slips(ask, plan.values[0], style, Random(seed)):
            assert write_program(slip.ask, style) != right, (plan.key, slip.correction)
            kinds[kind_of(slip)].append(slip)
    return kinds


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_slip_occurs(found: dict[str, list[Slip]], kind: str) -> None:
    assert len(found[kind]) >= 5


def test_only_a_label_in_another_field_takes_a_look_at_rows(found: dict[str, list[Slip]]) -> None:
    looks = {kind: {bool(slip.look) for slip in each} for kind, each in found.items()}
    assert looks == {kind: {kind == "label"} for kind in KINDS}


def test_a_correction_names_what_the_document_has(found: dict[str, list[Slip]]) -> None:
    for slip in found["state"]:
        api = slip.ask.main
        assert slip.correction.rpartition(" ")[2] not in api.fields.values()
