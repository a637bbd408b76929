"""Is a draft fit to be kept? Pure."""

import ast
import builtins
import re
from collections.abc import Iterator

import msgspec

from app.apis.catalog import Catalog
from app.records import Json, Trajectory
from app.skills.api_terms import vocabulary
from app.skills.extract import Draft, api_references, extract, global_names, parse

MAX_SOURCE = 8_000  # characters: a skill is offered as a whole, and a prompt is short
_BUILT_IN = {"supervisor.complete_task"}  # with all of api_docs: there in every project, and in no catalog
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_WORD = re.compile(r"\w+")
_ORDINARY = frozenset(
    _WORD.findall(
        "a an all and any are as at be by do does each every for from had has have how i if in into is it its me"
        " mine more most much my no not of off on one or our out over please show than that the their them then"
        " there these they this to under up us was we what when where which who whose with you your"
    )
)


class Vetted(msgspec.Struct, frozen=True):
    """The drafts of one rollout, sorted."""

    kept: tuple[Draft, ...]
    refused: dict[str, list[str]]  # name -> reasons


def vet(trajectory: Trajectory, catalog: Catalog) -> Vetted:
    """Extract and check what a rollout wrote."""
    reasons = {draft: check(draft, trajectory, catalog) for draft in extract(trajectory)}
    kept = tuple(draft for draft, found in reasons.items() if not found)
    return Vetted(kept, {draft.name: found for draft, found in reasons.items() if found})


def check(draft: Draft, trajectory: Trajectory, catalog: Catalog) -> list[str]:
    """Why the draft is no skill: one sentence per reason. None: keep it."""
    tree = parse(draft.source)
    if tree is None:
        return ["It does not compile."]
    if len(draft.source) > MAX_SOURCE:
        return [f"It is longer than {MAX_SOURCE:,} characters."]
    return [
        *_name_faults(draft, tree),
        *_use_faults(draft),
        *_api_faults(draft, catalog),
        *_literal_faults(tree, trajectory.task.instruction, vocabulary(catalog)),
    ]


def is_wrapper(source: str) -> bool:
    """Is a skill one API call in a function's clothes? One call in one place, and that not in a loop."""
    tree = ast.parse(source)
    loops = ast.For | ast.While | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    looped = any(api_references(node)[0] for node in ast.walk(tree) if isinstance(node, loops))
    found, dynamic = api_references(tree)
    return len(found) == 1 and not dynamic and not looped


def _name_faults(draft: Draft, tree: ast.Module) -> Iterator[str]:
    if draft.name == "apis" or hasattr(builtins, draft.name):
        yield f"Its name hides the builtin {draft.name}."
    missing = global_names(draft.source) - set(dir(builtins)) - {"apis"}
    if missing:
        yield f"It needs names that it does not bring: {', '.join(sorted(missing))}."
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == draft.name)
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    untyped = [each.arg for each in parameters if each and each.annotation is None]
    if untyped:
        yield f"Parameters without a type: {', '.join(untyped)}."


def _use_faults(draft: Draft) -> Iterator[str]:
    if not draft.calls:
        yield "It was not called."
    elif not draft.returned:
        yield "No call of it returned."


def _api_faults(draft: Draft, catalog: Catalog) -> Iterator[str]:
    outside = [api for api in draft.apis if not api.startswith("api_docs.") and api not in _BUILT_IN]
    if not outside:
        yield "It calls no API."
    known = {f"{app}.{operation}" for app, operations in catalog.names().items() for operation in operations}
    unknown = [api for api in outside if api not in known]
    if unknown:
        yield f"It names APIs that do not exist: {', '.join(unknown)}."


def _literal_faults(tree: ast.Module, instruction: str, known: frozenset[str]) -> Iterator[str]:
    words = _WORD.findall(instruction.lower())
    numbers = {float(found.replace(",", "")) for found in _NUMBER.findall(instruction)}
    found = [value for value in _constants(tree) if _is_detail(value, words, numbers, known)]
    if found:
        shown = ", ".join(repr(value) for value in dict.fromkeys(found))
        yield f"It carries details of its own task that should be arguments: {shown}."


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
    """Constants that the code computes with: neither annotations nor docstrings nor other idle strings."""
    for field, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        for child in children if field not in ("annotation", "returns") else ():
            match child:
                case ast.Constant(value=constant):
                    yield constant
                case ast.AST() if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                    yield from _constants(child)
