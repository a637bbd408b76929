"""Derives the manifest of a function from what it really did in the rollout that wrote it. Pure."""

import ast
from collections.abc import Iterator, Sequence

from app.agent.action import extract_code
from app.apis.calls.skill_guard import (
    CONSTANT,
    PARAMETER,
    RESULT,
    AllowedOperation,
    SkillManifest,
    ValueOrigins,
    constants_of,
    read_values,
)
from app.apis.catalog import COMPLETE_TASK, Catalog
from app.base.untrusted import parse, syntax_tree
from app.base.values import Call, Json, Trajectory
from app.skills.extract import Draft, api_references


def manifests_of(drafts: Sequence[Draft], trajectory: Trajectory, catalog: Catalog) -> dict[str, SkillManifest]:
    """The manifest of each function, by name. Run it in a thread: large values take up to a second a function."""
    return {draft.name: manifest_of(draft, trajectory, catalog) for draft in drafts}


def manifest_of(draft: Draft, trajectory: Trajectory, catalog: Catalog) -> SkillManifest:
    """The operations that the source names and that were called in turns in which the function ran.

    An argument's origins are all that could explain the values it had. An operation that was never called, or that
    the catalog no longer has, is left out.
    """
    named = set(api_references(syntax_tree(draft.source))[0])
    made = [call for turn in _turns_of(draft, trajectory) for call in turn if call.api in named]
    seen = _given(draft, trajectory, made)
    used: dict[str, dict[str, set[str]]] = {}
    for call in made:
        arguments = used.setdefault(call.api, {})
        for name, value in call.arguments.items():
            found = (origin for trace in seen.trace(value) for origin in trace.origins)
            arguments.setdefault(name, set()).update(found)
        for value in read_values(call):
            seen.add(RESULT + call.api, value)
    operations = {
        api: AllowedOperation(
            operation.method, operation.safe, {name: sorted(used[api][name]) for name in used[api]}
        )
        for app in catalog.apps.values()
        for operation in app.operations.values()
        if (api := operation.api) in used
    }
    if COMPLETE_TASK.api in named:
        operations[COMPLETE_TASK.api] = AllowedOperation()
    return SkillManifest(dict(sorted(operations.items())))


def _turns_of(draft: Draft, trajectory: Trajectory) -> Iterator[tuple[Call, ...]]:
    """The calls of each turn in which the function ran."""
    for turn in trajectory.turns[draft.turn :]:
        if any(use.function == draft.name and not use.inherited for use in turn.uses):
            yield turn.calls


def _given(draft: Draft, trajectory: Trajectory, made: Sequence[Call]) -> ValueOrigins:
    """The constants, and what it may have been called with: texts of the task, and results of other calls."""
    own = {call.seq for call in made}
    seen = ValueOrigins()
    seen.add(CONSTANT, list(constants_of(draft.source)))
    seen.add(PARAMETER, trajectory.task.instruction)
    if trajectory.task.conversation:
        seen.add(PARAMETER, trajectory.task.conversation)
    for turn in trajectory.turns:
        seen.add(PARAMETER, list(_constants_at_top(extract_code(turn.full_text) or "")))
    for call in trajectory.calls:
        if call.seq not in own:
            for value in read_values(call):
                seen.add(PARAMETER, value)
    return seen


def _constants_at_top(code: str) -> Iterator[Json]:
    """The constants that code computes with outside of functions."""
    tree = parse(code)
    for statement in tree.body if tree else ():
        if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from constants_of(ast.unparse(statement))
