"""What practice asks more often: what people ask for, and what is neither always solved nor never. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from app.apis.catalog import Operation
from app.apis.double.model import Model, Modelled
from app.apis.presentation import AS_WRITTEN, Presentation, present
from app.records import Call
from trainer.practice.forms import Form, Goal

_ASKED: Final = 8.0  # times as often as otherwise: what people ask for alone
_FAILED: Final = 2  # times as much a real task counts that failed
_FADING: Final = 0.7  # of what rollouts showed, with each round of others
_FLOOR: Final = 0.1  # what is always solved, or never, is still asked so often
_AIMS: Final[Mapping[Goal, str]] = {
    "create": "create", "ensure": "create", "change": "change", "check": "change", "link": "change",
    "unlink": "change", "act": "change", "delete": "delete",
}  # fmt: skip
_ROLES: Final = {
    "list": "read", "get": "read", "create": "create", "replace": "change", "update": "change", "act": "change",
    "delete": "delete", "clear": "delete",
}  # fmt: skip


class RealTask(msgspec.Struct, frozen=True):
    """A task of people: the calls of one API that it made, by operation, and whether it was done well if known."""

    calls: tuple[Call, ...]
    failed: bool = False


class Mix(msgspec.Struct):
    """Weights of forms. A new one has none. It can be stored, so that a run goes on with it.

    `asked` are shares of real tasks, by aim (`notes.change`) and by field (`notes.change.state`); `rates` are the
    tasks that rollouts of a kind solved and tried.
    """

    asked: dict[str, float] = {}
    rates: dict[str, tuple[float, float]] = {}

    @classmethod
    def of(cls, model: Model, tasks: Iterable[RealTask], presentation: Presentation = AS_WRITTEN) -> "Mix":
        """What people asked for, by what their tasks did. Their calls have the names of the presentation."""
        counted, total, known = Counter[str](), 0, _known(model, presentation)
        for task in tasks:
            weight = _FAILED if task.failed else 1
            aims = set(_aims_of(model, known, task.calls))
            total += weight if aims else 0
            for aim in aims:
                counted[aim] += weight
        return cls({aim: count / total for aim, count in counted.items()})

    def weight(self, form: Form) -> float:
        aim = _aim(form)
        wanted = [aim, *(f"{aim}.{each}" for each in (form.field, *form.fields) if each)]
        asked = max((self.asked.get(each, 0.0) for each in wanted), default=0.0)
        return (1 + (_ASKED - 1) * asked) * self._band(form)

    def _band(self, form: Form) -> float:
        """Most for what is solved in half of the tries; a kind that was never tried counts as such."""
        solved, tried = self.rates.get(kind_of_form(form), (0.0, 0.0))
        rate = (solved + 1) / (tried + 2)
        return _FLOOR + (1 - _FLOOR) * 4 * rate * (1 - rate)

    def note(self, found: Mapping[str, tuple[int, int]]) -> None:
        """What a round of rollouts solved and tried, by `kind_of_form`. Earlier rounds count less and less."""
        for kind, (solved, tried) in found.items():
            before = self.rates.get(kind, (0.0, 0.0))
            self.rates[kind] = (_FADING * before[0] + solved, _FADING * before[1] + tried)


def kind_of_form(form: Form) -> str:
    """Forms that are about as difficult as one another."""
    return f"{form.collection}.{form.goal}.{form.by}{'.of' if form.through is not None else ''}"


def _aim(form: Form) -> str:
    return f"{form.collection}.{_AIMS.get(form.goal, 'read')}"


def _known(model: Model, presentation: Presentation) -> dict[str, Operation]:
    """The operations of the document, by the names that tasks know them by now, and knew them by before."""
    written = {(each.method, each.path): each for each in model.app.operations.values()}
    shown = [
        (each, written[each.method, each.path]) for each in present(model.app, presentation).operations.values()
    ]
    former = {name: own for each, own in shown for name in each.former_names}
    return former | {each.name: own for each, own in shown}


def _meant(model: Model, known: Mapping[str, Operation], call: Call) -> Modelled | None:
    operation = known.get(call.api.partition(".")[2])
    if operation is None:
        return None
    path = [each for each in operation.parameters if each.place == "path"]
    return model.meant(operation.name, {each.wire_name: str(call.arguments.get(each.name)) for each in path})


def _aims_of(model: Model, operations: Mapping[str, Operation], calls: Iterable[Call]) -> Iterator[str]:
    """Those of a task: it wanted to read only if it changed nothing."""
    made = [(_meant(model, operations, each), each) for each in calls if each.error is None]
    known = [(each, call) for each, call in made if each is not None and each.role in _ROLES]
    changes = [(each, call) for each, call in known if _ROLES[each.role] != "read"]
    for each, call in changes or known:
        aim = f"{each.collection}.{_ROLES[each.role]}"
        yield aim
        yield from (f"{aim}.{field}" for field in _fields(each, call))


def _fields(made: Modelled, call: Call) -> Iterator[str]:
    """The fields of the record that a call wrote."""
    for each in made.operation.parameters:
        if each.place == "body" and call.arguments.get(each.name) is not None:
            yield each.wire_name
