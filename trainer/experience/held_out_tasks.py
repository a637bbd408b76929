"""Which served tasks no run may learn from, because candidates are examined on them."""

from app.db.exams import HeldOut
from app.project.holdout import is_held_out, kind_of
from app.records import Task
from app.skills.ngrams import NgramIndex

_NEARLY_THE_SAME = 0.9  # Jaccard similarity of the instructions' n-grams


class HeldOutTasks:
    """Recognises them: by the scenario, or by an instruction that is nearly the same."""

    def __init__(self, held_out: HeldOut) -> None:
        self._held_out = held_out
        self._instructions: NgramIndex[int] = NgramIndex()
        for number, instruction in enumerate(held_out.instructions):
            self._instructions.add(number, instruction)

    def __contains__(self, task: Task) -> bool:
        return self.holds(task.instruction, task.scenario)

    def holds(self, instruction: str, scenario: str | None) -> bool:
        """Whether a task of this instruction is held out."""
        held = self._held_out
        if scenario in held.scenarios:
            return True
        if is_held_out(held.project_id, kind_of(instruction, scenario), held.percent):
            return True
        return self.resembles(instruction)

    def resembles(self, text: str) -> bool:
        """Whether a text is nearly the instruction of a task of an exam."""
        nearest = self._instructions.search(text, 1)
        return bool(nearest) and nearest[0][1] >= _NEARLY_THE_SAME
