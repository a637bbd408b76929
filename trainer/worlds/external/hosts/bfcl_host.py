"""BFCL: requests of several turns, carried out by calls on the package's own classes, judged by its own checker.

A task is a whole conversation. Its first request is the instruction, and `apis.user.next_request()` ends a turn.
Documents of functions that the package holds back come with the request that adds them; these are called through
`apis.user.call_added`, as the APIs of a task do not change while it runs.
"""

import itertools
import json
import os
import sys

from host import Json, RefusedCallError, serve

os.environ.setdefault("BFCL_PROJECT_ROOT", sys.prefix)  # where it makes directories when it is imported

from bfcl_eval.constants.default_prompts import DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC
from bfcl_eval.constants.eval_config import MULTI_TURN_FUNC_DOC_PATH
from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.utils import load_dataset_entry, load_file, load_ground_truth_entry

_USER = "user"
_OF_TOOL = " Tool description: "  # what a function's description has after that of its class
_FAILED = "Error during execution: "
_NEXT = {
    "name": "next_request",
    "description": "End your turn: what the user says next.\n`request` is null if the user wants nothing more.",
    "parameters": {"type": "object", "properties": {}},
    "returns": {"type": "object", "properties": {"request": {"type": "string"}, "functions": {"type": "array"}}},
}
_ADDED = {
    "name": "call_added",
    "description": "Call a function that a request of the user has added.",
    "parameters": {
        "type": "object",
        "properties": {"function": {"type": "string"}, "arguments": {"type": "object"}},
        "required": ["function", "arguments"],
    },
}
_RULES = (
    "You carry out the requests of a user, one after the other. When you have done what a request asks for, call "
    "apis.user.next_request() for the next one. If an API or a value that it needs is missing, do the same: the "
    "user may say more. Complete the task when there is no request left. The first one:\n"
)


class BfclWorld:
    """One conversation. The package keeps its objects by a name, which no other world has."""

    now = ""
    _numbers = itertools.count()

    def __init__(self, entry: dict[str, Json], ground_truth: list[list[str]]) -> None:
        self._entry, self._ground_truth = entry, ground_truth
        self._name = f"world{next(self._numbers)}"
        self._turns: list[list[str]] = [[]]  # the calls of each
        self._added: set[str] = set()

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:
        if app != _USER:
            return self._run(_as_code(operation, arguments))
        if operation == _NEXT["name"]:
            return self._next_request()
        function = arguments["function"]
        if function not in self._added:
            raise RefusedCallError(f"no request has added a function {function!r}")
        return self._run(_as_code(function, arguments["arguments"]))

    def _next_request(self) -> Json:
        if len(self._turns) == len(self._ground_truth):
            return {"request": None}
        turn = len(self._turns)
        self._turns.append([])
        added = self._entry.get("missed_function", {}).get(str(turn), [])
        if not added:
            return {"request": _said(self._entry["question"][turn])}
        self._added.update(each["name"] for each in added)
        return {
            "request": DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC,
            "functions": [_operation(each) for each in added],
        }

    def _run(self, code: str) -> Json:
        """The result of a call, which counts in this turn whether it succeeds or not."""
        self._turns[-1].append(code)
        (text,), _ = multi_turn_utils.execute_multi_turn_func_call(
            [code],
            self._entry["initial_config"],
            self._entry["involved_classes"],
            self._name,
            self._entry["id"],
            long_context="long_context" in self._entry["id"],
        )
        if text.startswith(_FAILED):
            raise RefusedCallError(text.removeprefix(_FAILED))
        try:
            result = json.loads(text)
        except ValueError:
            return text
        if isinstance(result, dict) and result.keys() == {"error"}:
            raise RefusedCallError(str(result["error"]))
        return result

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:  # noqa: ARG002  only the calls count
        failure = self._failure(completed)
        return {"passed": int(not failure), "total": 1, "failures": [failure] if failure else []}

    def _failure(self, completed: bool) -> str:
        if not completed:
            return "not so: the task was completed"
        if (asked := len(self._turns)) < (total := len(self._ground_truth)):
            return f"not so: all requests were asked for, but {asked} of {total}"
        turns = [[[call] for call in calls] for calls in self._turns]
        name = f"{self._name}_{next(self._numbers)}"
        try:
            found = multi_turn_checker(turns, self._ground_truth, self._entry, "", name)
        finally:
            _forget(name)
        return "" if found["valid"] else found["error_message"]

    def solve(self) -> Json:
        for turn, calls in enumerate(self._ground_truth):
            if turn:
                self._next_request()
            for code in calls:
                try:
                    self._run(code)
                except RefusedCallError:  # some are meant to fail
                    continue
        return None

    def close(self) -> None:
        _forget(self._name)


class BfclHost:
    def __init__(self, category: str) -> None:
        name = f"multi_turn_{category}"
        self._entries = {each["id"]: each for each in load_dataset_entry(name)}
        self._ground_truths = {each["id"]: each["ground_truth"] for each in load_ground_truth_entry(name)}
        classes = {each for entry in self._entries.values() for each in entry["involved_classes"]}
        self._apps = {
            function["name"]: _app(each)
            for each in classes
            for function in load_file(MULTI_TURN_FUNC_DOC_PATH / MULTI_TURN_FUNC_DOC_FILE_MAPPING[each])
        }

    def tasks(self) -> list[dict[str, Json]]:
        return [
            {
                "id": name,
                "instruction": _RULES + _said(entry["question"][0]),
                "split": "test",
                "family": " ".join(sorted(map(_app, entry["involved_classes"]))),
                "apps": name,
            }
            for name, entry in self._entries.items()
        ]

    def apps(self, key: str) -> list[dict[str, Json]]:
        """Of one task: it says which functions are held back."""
        entry = self._entries[key]
        user = [_NEXT, _ADDED] if "missed_function" in entry else [_NEXT]
        apps: dict[str, dict[str, Json]] = {
            _USER: {"name": _USER, "description": "The user whom you work for.", "operations": user}
        }
        for function in entry["function"]:
            name = self._apps[function["name"]]
            description = function["description"].partition(_OF_TOOL)[0]
            app = apps.setdefault(name, {"name": name, "description": description, "operations": []})
            app["operations"].append(_operation(function))
        return list(apps.values())

    def open(self, task: str) -> BfclWorld:
        return BfclWorld(self._entries[task], self._ground_truths[task])


def _said(messages: list[dict[str, str]]) -> str:
    return "\n".join(each["content"] for each in messages)


def _app(name: str) -> str:
    """Of a class of the package: as its document is named."""
    document: str = MULTI_TURN_FUNC_DOC_FILE_MAPPING[name]
    return document.removesuffix(".json")


def _operation(function: dict[str, Json]) -> dict[str, Json]:
    return {
        "name": function["name"],
        "description": function["description"].partition(_OF_TOOL)[2],
        "parameters": _schema(function["parameters"]),
        "returns": _schema(function["response"]),
    }


def _schema(node: Json) -> Json:
    """With the types of JSON Schema instead of those of the package."""
    if isinstance(node, list):
        return [_schema(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {name: _schema(each) for name, each in node.items()}
    return found | {"type": GORILLA_TO_OPENAPI[kind]} if isinstance(kind := node.get("type"), str) else found


def _as_code(function: str, arguments: dict[str, Json]) -> str:
    """The call as the package evaluates it. The names in it come from the agent."""
    if wrong := [name for name in arguments if not name.isidentifier()]:
        raise RefusedCallError(f"no argument can be named {wrong[0]!r}")
    return f"{function}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _forget(name: str) -> None:
    """Drop the objects that the package keeps under a name."""
    kept = vars(multi_turn_utils)
    for each in [each for each in kept if each.startswith(f"{name}_")]:
        del kept[each]


if __name__ == "__main__":
    serve(lambda: BfclHost(sys.argv[1]))
