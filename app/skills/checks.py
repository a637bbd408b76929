"""The built-in checks of a draft skill, each a part of the entry-point group `sage.skill_checks`. Pure."""

import ast
import builtins
import re
from collections.abc import Iterator

from app.apis.catalog import Catalog
from app.base.untrusted import syntax_tree
from app.base.values import Json, Trajectory
from app.sandbox.child.inert import objections
from app.skills.api_terms import api_terms, shown_fields
from app.skills.extract import Draft, api_references, global_names

MAX_SOURCE = 8_000  # characters: a skill is offered as a whole, and a prompt is short
_GIVEN = {"apis", "ApiError"}  # names that the sandbox has besides the builtins
_BUILT_IN = {"supervisor.complete_task"}  # like all of api_docs, in every project and in no catalog
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_ORDINARY = frozenset(
    _WORD.findall(
        "a an all and any are as at be by do does each every for from had has have how i if in into is it its me"
        " mine more most much my no not of off on one or our out over please show than that the their them then"
        " there these they this to under up us was we what when where which who whose with you your"
    )
)


def length(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill is short enough to be offered as a whole."""
    if len(draft.source) > MAX_SOURCE:
        yield f"It is longer than {MAX_SOURCE:,} characters."


def self_contained(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill defines or imports every name it uses, hides no builtin, and types its parameters."""
    if draft.name == "apis" or hasattr(builtins, draft.name):
        yield f"Its name hides the builtin {draft.name}."
    missing = global_names(draft.source) - set(dir(builtins)) - _GIVEN
    if missing:
        yield f"It uses names that it does not define or import: {', '.join(sorted(missing))}."
    body = syntax_tree(draft.source).body
    function = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == draft.name)
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    untyped = [each.arg for each in parameters if each and each.annotation is None]
    if untyped:
        yield f"Parameters without a type: {', '.join(untyped)}."


def inert(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill does nothing until it is called: it has no decorators, and its defaults are constants."""
    yield from objections(syntax_tree(draft.source), draft.name)


def returned(draft: Draft, _trajectory: Trajectory, _catalog: Catalog) -> Iterator[str]:
    """A skill was called, and a call of it returned."""
    if not draft.calls:
        yield "It was not called."
    elif not draft.returned:
        yield "No call of it returned."


def api_calls(draft: Draft, _trajectory: Trajectory, catalog: Catalog) -> Iterator[str]:
    """A skill calls APIs of the project, and only those that exist."""
    outside = [api for api in draft.apis if not api.startswith("api_docs.") and api not in _BUILT_IN]
    if not outside:
        yield "It calls no API."
    known = {f"{app}.{operation}" for app, operations in catalog.names().items() for operation in operations}
    unknown = [api for api in outside if api not in known]
    if unknown:
        yield f"It names APIs that do not exist: {', '.join(unknown)}."


def task_details(draft: Draft, trajectory: Trajectory, catalog: Catalog) -> Iterator[str]:
    """A skill takes the details of its task as parameters instead of hard-coding them."""
    task, known = trajectory.task, api_terms(catalog)
    instruction = f"{task.instruction}\n{task.conversation}"
    words = _WORD.findall(instruction.lower())
    numbers = {float(number.replace(",", "")) for number in _NUMBER.findall(instruction)}
    details = [
        value for value in _constants(syntax_tree(draft.source)) if _is_detail(value, words, numbers, known)
    ]
    if details:  # only now: it takes long to read all answers
        fields = shown_fields(trajectory)
        details = [each for each in details if str(each).lower() not in fields]
    if details:
        shown = ", ".join(repr(value) for value in dict.fromkeys(details))
        yield f"It hard-codes details of its task that should be parameters: {shown}."


def is_wrapper(source: str) -> bool:
    """Whether a skill merely wraps one API call: a single call site, not in a loop."""
    tree = syntax_tree(source)
    loops = ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    looped = any(api_references(node)[0] for node in ast.walk(tree) if isinstance(node, loops))
    references, dynamic = api_references(tree)
    return len(references) == 1 and not dynamic and not looped


def _is_detail(value: Json, words: list[str], numbers: set[float], known: frozenset[str]) -> bool:
    if str(value).lower() in known:
        return False
    if isinstance(value, str):
        own = _WORD.findall(value.lower())
        return not set(own) <= _ORDINARY and _contains(words, own)
    return isinstance(value, int | float) and value not in (0, 1) and value in numbers  # True == 1


def _contains(words: list[str], own: list[str]) -> bool:
    return any(words[start : start + len(own)] == own for start in range(len(words) - len(own) + 1))


def _constants(node: ast.AST) -> Iterator[Json]:
    """Constants that the code computes with: no annotations, docstrings or other strings that stand alone."""
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children if field not in ("annotation", "returns") else ():
            match child:
                case ast.Constant(value=constant):
                    yield constant
                case ast.AST() if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                    yield from _constants(child)
