"""AppWorld: a person's errands in nine apps, by the package's own servers, databases and unit tests.

The agent looks APIs up and ends its task by means of the trainer, so the package's `api_docs` and
`supervisor.complete_task` are no operations: what a completed task answers is given to the latter here, before
the unit tests judge.
"""

import os
import shutil
import sys
import tempfile
from datetime import UTC
from pathlib import Path

import jsonref
from appworld import AppWorld, load_task_ids, update_root
from appworld.api_docs import prepare_api_docs
from appworld.apps import APP_TO_DESCRIPTION, get_all_apps
from appworld.common.path_store import path_store
from appworld.common.utils import import_apis_module, read_json
from appworld.task import task_id_to_generator_id
from host import Json, RefusedCallError, serve

_COMPLETE = ("supervisor", "complete_task")


class AppworldWorld:
    def __init__(self, task: str) -> None:
        self._world = AppWorld(
            task,
            raise_on_failure=False,
            max_api_calls_per_interaction=None,  # the trainer counts them
            timeout_seconds=None,
            null_patch_unsafe_execution=False,  # no code of the agent is executed here
        )
        self.now = self._world.task.datetime.replace(tzinfo=UTC).isoformat()

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:
        requester = self._world.requester
        response = requester._request(app, operation, **arguments)
        found = requester.response_to_json(response)
        if response.status_code != 200:
            raise RefusedCallError(found.get("message") or str(found))
        return found

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:
        """By the package's unit tests."""
        call = f"apis.{'.'.join(_COMPLETE)}(answer={answer!r})"
        self._world.execute(call if completed else "pass")  # it also saves the state that is judged
        tests = self._world.evaluate()
        failures = [f"{each['requirement']}: {_reason(each['trace'])}" for each in tests.failures]
        return {"passed": tests.pass_count, "total": tests.num_tests, "failures": failures}

    def solve(self) -> Json:
        """By the compiled solution of the data, as the package's `appworld verify tasks` does."""
        solution = Path(self._world.task.ground_truth.loaded_from_directory) / "compiled_solution.py"
        if not solution.exists():
            raise RefusedCallError(f"the data has no solution of {self._world.task_id}")
        self._world.execute(f"{solution.read_text()}\nsolution(apis, requester)")
        return self.call("supervisor", "show_active_task", {})["answer"]

    def close(self) -> None:
        self._world.close()
        shutil.rmtree(self._world.output_directory)


class AppworldHost:
    def __init__(self, splits: dict[str, str]) -> None:
        self._splits = splits
        root = Path(tempfile.mkdtemp())  # it writes beside its data
        (root / "data").symlink_to(path_store.data)
        update_root(str(root))
        os.environ["IPYTHONDIR"] = str(root)

    def tasks(self) -> list[dict[str, Json]]:
        return [
            {
                "id": task,
                "instruction": read_json(f"{path_store.data}/tasks/{task}/specs.json")["instruction"],
                "split": split,
                "family": task_id_to_generator_id(task),
                "apps": "all",
            }
            for split, dataset in self._splits.items()
            for task in load_task_ids(dataset)
        ]

    def apps(self, key: str) -> list[dict[str, Json]]:  # noqa: ARG002  all tasks have the same
        return [
            {"name": app, "description": APP_TO_DESCRIPTION[app], "operations": _operations(app)}
            for app in get_all_apps(skip_admin=True, skip_api_docs=True)
        ]

    def open(self, task: str) -> AppworldWorld:
        return AppworldWorld(task)


def _operations(app: str) -> list[dict[str, Json]]:
    functions = [each["function"] for each in prepare_api_docs(app, format="function_calling")]
    schemas = {each["name"].removeprefix(f"{app}__"): each["parameters"] for each in functions}
    openapi = jsonref.replace_refs(import_apis_module(app).app.openapi(), proxies=False, lazy_load=False)
    return [
        {
            "name": each["api_name"],
            "description": each["description"],
            "parameters": {
                **schemas[each["api_name"]],
                "required": [parameter["name"] for parameter in each["parameters"] if parameter["required"]],
            },
            "returns": _returns(openapi["paths"][each["path"].removeprefix(f"/{app}")][each["method"].lower()]),
            "safe": _is_safe(each),
        }
        for each in prepare_api_docs(app)
        if (app, each["api_name"]) != _COMPLETE
    ]


def _returns(operation: dict[str, Json]) -> Json:
    return operation["responses"]["200"]["content"]["application/json"]["schema"]


def _is_safe(api: dict[str, Json]) -> bool:
    """A log-in changes nothing; what is downloaded becomes a file."""
    reads = api["method"] == "GET" and not api["api_name"].startswith("download_")
    return reads or api["api_name"] == "login"


def _reason(trace: str) -> str:
    """What an assertion found, which is said after its code."""
    return trace.rpartition("----------\n")[2].strip().partition("\n")[0]


if __name__ == "__main__":
    serve(lambda: AppworldHost(dict(each.split("=") for each in sys.argv[1:])))
