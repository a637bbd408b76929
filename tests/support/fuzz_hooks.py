"""Hooks of Schemathesis: half of the ids and names in requests are of rows that exist."""

import json
import os
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import schemathesis

PROJECTS: list[dict[str, str]] = json.loads(os.environ.get("FUZZED_PROJECTS", "[]"))
"""The ids and names of each project, by parameter. What requests delete is of the first one."""

_NAMES = {
    "projects": "project",
    "apis": "api",
    "secrets": "secret",
    "hosted-models": "hosted",
    "exams": "exam",
}  # of the paths' `name`
_IN_BODIES = {
    "POST /v1/apis": ["project"],
    "POST /v1/tasks": ["project"],
    "POST /v1/training-runs": ["project"],
    "POST /v1/releases": ["project"],
    "POST /v1/feedback": ["task_id"],
}
_CONSUMING = ("DELETE", "/retry", "/activate", "/canary")  # no project is left unchanged by these


@schemathesis.hook
def map_path_parameters(context: schemathesis.HookContext, path_parameters: Any) -> Any:
    return _mapped(context, path_parameters)


@schemathesis.hook
def map_query(context: schemathesis.HookContext, query: Any) -> Any:
    """Most routes need the name of a project, because there are several."""
    if PROJECTS and any(each.name == "project" for each in _operation(context).query):
        query = {"project": "", **(query or {})}
    return _mapped(context, query)


@schemathesis.hook
def map_body(context: schemathesis.HookContext, body: Any) -> Any:
    operation = _operation(context)
    about = f"{operation.method.upper()} {operation.path}"
    if not isinstance(body, dict) or not PROJECTS:
        return body
    named = {name: PROJECTS[-1][name] for name in _IN_BODIES.get(about, ())}
    return {**body, **named} if _number(body) % 4 else {**named, **body}


def _mapped(context: schemathesis.HookContext, given: Any) -> Any:
    if not given or not PROJECTS:
        return given
    operation, chosen = _operation(context), _number(given)
    about = f"{operation.method.upper()} {operation.path}"
    if chosen % 4 == 0:
        return given
    kept = PROJECTS[1:]
    known = PROJECTS[0] if any(each in about for each in _CONSUMING) else kept[chosen // 4 % len(kept)]
    known = known | {"name": known.get(_NAMES.get(operation.path.split("/")[2], ""), "")}
    if "DELETE /v1/projects" in about:
        known = {}
    return {name: known.get(name) or value for name, value in given.items()}


def _operation(context: schemathesis.HookContext) -> Any:
    assert context.operation is not None  # requests are of one
    return context.operation


def _number(given: Mapping[str, Any]) -> int:
    """The same for equal requests, so that they can be repeated."""
    return crc32(repr(sorted(given.items(), key=str)).encode("utf-8", "replace"))
