"""Which release is the reference of the gate, by the evidence of those that have served."""

import pytest

from app.base.values import Json
from app.db.tables import Release
from app.releases.reference import possible_loss, since_reference
from tests.support.promoted_releases import EVEN, GAIN, LOSS, exam, live, named, served
from tests.support.task_results import chains
from trainer.evaluation.gate_decision import check_reference, decide
from trainer.evaluation.metrics import TaskResult


class History:
    """Releases of a project, of which the last is active. The first has the base model."""

    def __init__(self) -> None:
        self.releases = [served([], "base")]

    @property
    def active(self) -> Release:
        return self.releases[-1]

    def add(self, evidence: dict[str, Json] | None, model: str = "") -> Release:
        made = served(self.releases, model or f"weights {len(self.releases) + 1}", evidence)
        self.releases.append(made)
        return made

    def line(self, active: Release | None = None) -> list[int]:
        """The numbers from the reference to the active release."""
        return [each.number for each in since_reference(self.releases[::-1], active or self.active)]


@pytest.fixture
def history() -> History:
    return History()


def test_the_first_release_is_the_reference(history: History) -> None:
    assert history.line() == [1]


def test_one_that_shows_a_gain_is_the_reference_and_one_without_is_not(history: History) -> None:
    history.add(exam(history.active, GAIN))
    assert history.line() == [2]
    history.add(exam(history.active))
    assert history.line() == [2, 3]
    history.add(exam(history.active, reference=history.releases[1]))
    assert history.line() == [2, 3, 4]


def test_a_gain_over_the_active_release_alone_leaves_the_reference_as_it_is(history: History) -> None:
    best = history.add(exam(history.active, GAIN))
    history.add(exam(best, LOSS))
    history.add(exam(history.active, GAIN, reference=best, than=EVEN))
    assert history.line() == [2, 3, 4]
    history.add(exam(history.active, EVEN, reference=best, than=GAIN))
    assert history.line() == [5]


def test_an_exam_without_a_gain_leaves_the_possible_loss_of_the_canaries_before_it(history: History) -> None:
    first = history.active
    history.add(live(first, EVEN, lost=0.03))
    assert possible_loss(history.releases[::-1], history.active) == 0.03
    history.add(exam(history.active, reference=first))
    same = history.add(None, history.active.model)
    assert possible_loss(history.releases[::-1], same) == 0.03
    stopped = live(history.active, EVEN)
    stopped["canary"]["decision"]["action"] = "wait"
    history.add(exam(history.active, reference=first) | stopped)
    assert possible_loss(history.releases[::-1], history.active) == 0.03, (
        "a person ended its trial and activated it"
    )
    history.add(exam(history.active, EVEN, reference=first, than=GAIN))
    assert possible_loss(history.releases[::-1], history.active) == 0.0
    assert possible_loss(history.releases[::-1], history.releases[1]) == 0.03, "after a roll-back"


def test_a_gain_in_tasks_counts_and_one_that_scenarios_pay_for_does_not(history: History) -> None:
    history.add(exam(history.active, EVEN, GAIN))
    assert history.line() == [2]
    history.add(exam(history.active, LOSS, GAIN))
    assert history.line() == [2, 3]


def test_a_gain_on_live_tasks_counts_as_one_in_an_exam(history: History) -> None:
    first = history.active
    history.add(exam(first) | live(first, GAIN))
    assert history.line() == [2]
    history.add(live(history.active, EVEN))
    assert history.line() == [2, 3]
    history.add(live(history.active, GAIN))
    assert history.line() == [2, 3, 4]


def test_a_gain_that_live_tasks_show_at_the_end_of_a_trial_counts(history: History) -> None:
    history.add(live(history.active, EVEN, EVEN))
    assert history.line() == [1, 2]
    other = History()
    other.add(live(other.active, EVEN, GAIN))
    assert other.line() == [2]


def test_live_tasks_that_compared_it_with_another_release_than_the_exam_decide_alone(history: History) -> None:
    first = history.active
    other = history.add(None)
    history.add(exam(first, GAIN) | live(other, EVEN))
    assert history.line() == [2, 3]


def test_after_a_roll_back_it_is_what_it_was(history: History) -> None:
    history.add(exam(history.active))
    back = history.add(exam(history.active, GAIN, reference=history.releases[0]))
    history.add(exam(history.active, GAIN, reference=history.releases[0], than=GAIN))
    assert history.line() == [4]
    assert history.line(back) == [1, 2, 3]


def test_a_changed_prompt_changes_no_reference(history: History) -> None:
    history.add(exam(history.active))
    history.add({"reason": "the prompt changed"}, history.active.model)
    assert history.line() == [1, 3]
    history.add(exam(history.active, GAIN, reference=history.releases[0]))
    assert history.line() == [1, 3, 4]


@pytest.mark.parametrize("evidence", [None, {"verdict": "untested", "reason": "no environment"}])
def test_what_a_person_activated_is_the_reference(history: History, evidence: dict[str, Json] | None) -> None:
    history.add(exam(history.active))
    history.add(evidence)
    assert history.line() == [3]
    history.add(exam(history.active))
    assert history.line() == [3, 4]


def test_what_a_person_activated_although_it_was_rejected_is_the_reference(history: History) -> None:
    history.add(exam(history.active))
    history.add(exam(history.active, LOSS) | {"verdict": "reject"})
    assert history.line() == [3]


def test_weights_that_have_not_served_by_their_evidence_prove_nothing(history: History) -> None:
    tried = history.add(exam(history.active, GAIN))
    tried.activated_at = None
    history.add(exam(history.releases[0]))
    assert history.line() == [1, 3]


def test_evidence_of_earlier_versions_is_read_as_far_as_it_goes(history: History) -> None:
    """They named a reference only where it was evaluated, which was not so after a gain."""

    def earlier(evidence: dict[str, Json]) -> dict[str, Json]:
        kept = evidence if "reference_difference" in evidence else {**evidence, "reference_release": None}
        return {name: each for name, each in kept.items() if each is not None}

    first = history.active
    history.add(earlier(exam(first, GAIN)))
    assert history.line() == [2]
    history.add(earlier(exam(history.active, EVEN)))
    history.add(earlier(exam(history.active, GAIN)))
    assert history.line() == [2, 3, 4]
    history.add(earlier(exam(history.active, EVEN, reference=history.releases[1], than=GAIN)))
    assert history.line() == [5]
    history.add({"verdict": "promote", "compared_with": named(history.active), "difference": "better"})
    assert history.line() == [5, 6]
    history.add({"verdict": "promote", "compared_with": "release 6"})
    assert history.line() == [7]


def test_where_the_adapter_of_the_reference_was_gone_a_gain_over_the_next_one_counts(history: History) -> None:
    history.add(exam(history.active))
    history.add(exam(history.active, GAIN))  # which names the active release as the reference
    assert history.line() == [3]


def test_the_weights_of_the_reference_are_the_reference_again(history: History) -> None:
    best = history.add(exam(history.active, GAIN))
    history.add(exam(history.active))
    again = exam(history.active) | {"reference_release": named(best)}
    history.add(again, best.model)
    assert history.line() == [4]


def test_releases_that_were_compared_with_each_other_come_to_an_end(history: History) -> None:
    two, three = history.add(None), history.add(None)
    two.evidence, three.evidence = exam(three), exam(two)
    assert history.line() == [2, 3]


@pytest.mark.slow
def test_a_series_of_small_losses_and_partial_regains_does_not_lead_downwards(history: History) -> None:
    """Of 200 scenarios, two candidates solve 3 less than what serves, each with fewer tokens, and the next one 4
    more, and so on. Only a reference that stays stops them.
    """
    lost: dict[bool, int] = {}
    for with_reference in (False, True):
        history, solved = History(), {"base": 160}
        for number, more in enumerate((-3, -3, 4) * 4):
            serving = history.active
            reference = since_reference(history.releases, serving)[0] if with_reference else serving
            now, model = solved[serving.model] + more, f"weights {len(history.releases) + 1}"
            candidate = outcome(now, 999 - number)
            decision = decide(candidate, outcome(solved[serving.model], 1000 - number))
            assert decision.promote
            if reference is not serving:
                decision = check_reference(decision, candidate, outcome(solved[reference.model], 1000))
            if decision.promote:
                about = {"verdict": "promote", "compared_with": named(serving)}
                history.add(about | {"reference_release": named(reference)} | decision.figures, model)
                solved[model] = now
        lost[with_reference] = 160 - solved[history.active.model]
    assert lost[False] == 8
    assert lost[True] <= 3


def outcome(solved: int, tokens: int) -> list[TaskResult]:
    return chains([True] * solved + [False] * (200 - solved), tokens=tokens)
