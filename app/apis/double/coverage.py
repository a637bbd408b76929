"""What can be practised on the double of an API, what a real server shows of it, and how both differ."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from app.apis.catalog import App, Operation
from app.apis.documents.protocols import encode
from app.apis.double.masking import with_masked_names
from app.apis.double.model import Model, read_model
from app.apis.double.reads import Given, Pair, Reading, RealAnswer, differences, reading_plan
from app.apis.double.service import Double
from app.apis.double.state import typed_key
from app.apis.media_types import DocumentedAnswers
from app.base.errors import ApiDocumentError, HostError
from app.base.values import Json

PracticeState: TypeAlias = Literal["ready", "no_records", "not_openapi", "unreadable"]
"""`ready`: there are records to practise on; `no_records`: the document describes none; `unreadable`: to look for
them takes too long or too much memory, or fails."""
_SEED: Final = "compared"


class LeftOutOperation(msgspec.Struct, frozen=True):
    """An operation that cannot be practised. `operation` is its name, "" if it cannot be called either."""

    operation: str
    method: str
    path: str
    reason: str


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """Of the `operations` of a document so many can be `practised`, on records of these `collections`."""

    state: PracticeState
    reason: str | None = None  #: why nothing can be practised, and what to do
    operations: int = 0
    practised: int = 0
    left_out: list[LeftOutOperation] = []
    collections: list[str] = []


class PracticeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """`samples` are answers by the names of operations in the model; `answers` are to be compared."""

    about: Literal["coverage", "plan", "differences"]
    samples: dict[str, Json] = {}
    answers: list[RealAnswer] = []


class PracticeFinding(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question: one of the three. `app` has the operations of the plan alone, and as little of
    each as a call needs.
    """

    coverage: Coverage | None = None
    plan: list[Reading] = []
    app: App | None = None
    differences: list[str] = []


def practice_finding(
    document: Mapping[str, Json], app: App, question: PracticeQuestion, server: str | None = None
) -> PracticeFinding:
    """`app` is the API of the document as tasks call it, `server` overrides that of the document.

    Raises ApiDocumentError.
    """
    if app.protocol != "openapi":
        reason = "it is no OpenAPI document, and only these say what records an API has"
        return PracticeFinding(coverage=Coverage(state="not_openapi", reason=reason))
    try:
        model = read_model(app.name, document, server=server, source=app.source, samples=question.samples)
        match question.about:
            case "coverage":
                return PracticeFinding(coverage=_coverage(model, app))
            case "plan":
                plan = reading_plan(model, app)
                return PracticeFinding(plan=plan, app=_called(app, plan))
        return PracticeFinding(differences=_differences(model, question.answers))
    except RecursionError as error:
        raise ApiDocumentError("its schemas are nested too deeply to be practised on") from error


def _coverage(model: Model, app: App) -> Coverage:
    names = {f"{each.method} {each.path}": each.name for each in (*app.operations.values(), *app.hidden)}
    practised = {f"{each.operation.method} {each.operation.path}" for each in model.operations.values()}
    reasons = {each.operation: each.reason for each in reversed(model.left_out) if each.operation not in practised}
    left_out = [
        LeftOutOperation(names.get(place, ""), method, path, reason)
        for place, reason in reasons.items()
        for method, _, path in [place.partition(" ")]
    ]
    left_out.sort(key=lambda each: each.path)
    reason = None
    if not model.collections:
        why = next((f" ({each.method} {each.path}: {each.reason})" for each in left_out), "")
        reason = f"the document shows no records{why}: its schemas have to say what lists and records have"
    return Coverage(
        state="ready" if model.collections else "no_records",
        reason=reason,
        operations=len(practised) + len(left_out),
        practised=len(practised),
        left_out=left_out,
        collections=list(model.collections),
    )


def _called(app: App, plan: Sequence[Reading]) -> App:
    """The app for the calls of the plan, which can be sent to another process: schemas are small in it."""
    found: dict[str, Operation] = {}
    for each in plan:
        operation, given = app.operations[each.operation], {*each.arguments, *(name for name, _ in each.above)}
        found[each.operation] = msgspec.structs.replace(
            operation,
            description="",
            parameters=tuple(one for one in operation.parameters if one.name in given),
            bodies=(),
            returns={},
            answers=DocumentedAnswers(),
        )
    return msgspec.structs.replace(app, operations=found, hidden=(), left_out=())


def _differences(model: Model, answers: Sequence[RealAnswer]) -> list[str]:
    """How the answers differ from those of a double that knows the document alone, to the same calls."""
    double = Double(model, _SEED)
    pairs: list[Pair] = []
    plan = {each.name: each for each in reading_plan(model, model.app)}
    values = {name: [each.given.value for each in answers if each.name == name] for name in plan}
    told = {name: iter(with_masked_names(values[name], plan[name])) for name in plan}  # names may be values
    for each in answers:
        if each.name not in plan:
            continue
        reading, value = plan[each.name], next(told[each.name])
        if not reading.is_blind and (given := _asked(double, reading, each)) is not None:
            real = msgspec.structs.replace(each.given, value=value)
            pairs.append(Pair(each.name, given, real, each.arguments))
    return differences(model, pairs)


def _asked(double: Double, reading: Reading, real: RealAnswer) -> Given | None:
    """What the double answers to the same call, for a record of its own; None if it has no such record."""
    operation = double.model.operations[reading.name].operation
    given = {each.name: real.arguments[each.name] for each in operation.parameters if each.name in real.arguments}
    if reading.above:
        _, last = reading.above[-1]
        count = len(reading.above)
        place = next((each[-count:] for each in double.state.records.get(last, {}) if len(each) >= count), None)
        if place is None:
            return None
        schemas = {each.name: each.schema for each in operation.parameters}
        for (name, _), key in zip(reading.above, place, strict=True):
            given[name] = typed_key(schemas.get(name, {}), key)
    try:
        request = encode(double.model.app, operation, given)
    except HostError:
        return None
    path, _, query = request.target.partition("?")
    credential = double.authentication(operation.name)
    query = credential.url(f"http://double/?{query}").partition("?")[2]
    answer = double.respond(operation.method, path, query, credential.merged(request.headers))
    return Given(answer.status, answer.value, answer.headers)
