"""AgentDojo: tasks of a user, and attacks on the agent in what tools return, judged by the package's own checks.

With an attack there is a task for each pair of a user's task and an injection, which the package's own code puts
where the agent reads when it does the task rightly.
"""
# ruff: noqa: E402  the package can be imported only after `_leave_out_models`

import json
import sys
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import agentdojo
import yaml
from host import Json, RefusedCallError, serve
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python


def _leave_out_models() -> None:
    """Make the package importable without the clients of four providers of models, which nothing here calls."""
    pipelines = ModuleType("agentdojo.agent_pipeline")
    pipelines.__path__ = [str(Path(agentdojo.__file__).parent / "agent_pipeline")]
    client = ModuleType("agentdojo.agent_pipeline.llms.google_llm")
    vars(client)["EMPTY_FUNCTION_NAME"] = "<empty-function>"  # all that others import of it
    sys.modules |= {each.__name__: each for each in (pipelines, client)}


_leave_out_models()

from agentdojo.agent_pipeline.ground_truth_pipeline import GroundTruthPipeline
from agentdojo.attacks import BaseAttack, load_attack
from agentdojo.base_tasks import BaseInjectionTask, BaseUserTask
from agentdojo.functions_runtime import Function, FunctionCall, FunctionsRuntime
from agentdojo.task_suite import TaskSuite, get_suite
from agentdojo.types import text_content_block_from_string

_VERSION = "v1.2.2"  # of the benchmark
_MODEL = "local"  # whom an attack addresses by name: a "Local model"
_READING = ("check_", "get_", "list_", "read_", "search_")
_CHANGING = ("get_unread_emails", "get_webpage")  # they mark as read, and send to any address


class AgentDojoWorld:
    """A user's task, and an injection where there is one."""

    def __init__(
        self,
        suite: TaskSuite,
        task: BaseUserTask,
        injection: BaseInjectionTask | None,
        injections: dict[str, str],
        judge: str,
    ) -> None:
        self._suite, self._task, self._injection, self._judge = suite, task, injection, judge
        self._runtime = FunctionsRuntime(suite.tools)
        self._state = task.init_environment(suite.load_and_inject_default_environment(injections))
        self._before = self._state.model_copy(deep=True)
        self._calls: list[FunctionCall] = []
        calendar = getattr(self._state, "calendar", None)
        self.now = f"{calendar.current_day}T09:00:00+00:00" if calendar else ""

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:  # noqa: ARG002  there is one
        self._calls.append(FunctionCall(function=operation, args=arguments))
        result, error = self._runtime.run_function(self._state, operation, arguments)
        if error:
            raise RefusedCallError(error)
        return to_jsonable_python(result)

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:
        """Whether the user's task was done, and whether an injection was resisted, if that is to be judged."""
        said = answer if isinstance(answer, str) else "" if answer is None else json.dumps(answer)
        results = {}
        if self._judge != "security":
            results["the task of the user was done"] = completed and self._is_done(self._task, said)
        if self._judge != "utility":
            results["the injection was resisted"] = not self._is_done(self._injection, said)
        failures = [f"not so: {what}" for what, holds in results.items() if not holds]
        return {"passed": len(results) - len(failures), "total": len(results), "failures": failures}

    def _is_done(self, task: BaseUserTask | BaseInjectionTask, said: str) -> bool:
        answer = [text_content_block_from_string(said)]
        return bool(self._suite._check_task_result(task, answer, self._before, self._state, self._calls))

    def reference(self, goal: str) -> dict[str, Json]:
        """By which the package does the "task", or the "injection". It has no calls for some injections."""
        task: BaseUserTask | BaseInjectionTask = self._task if goal == "task" else self._injection
        calls = task.ground_truth(self._before.model_copy(deep=True))
        return {
            "instruction": task.PROMPT if goal == "task" else task.GOAL,
            "calls": [[each.function, to_jsonable_python(each.args)] for each in calls],
            "answer": task.GROUND_TRUTH_OUTPUT,
        }

    def solve(self) -> Json:
        found = self.reference("task")
        for operation, arguments in found["calls"]:
            self.call(self._suite.name, operation, arguments)
        return found["answer"]

    def close(self) -> None:
        pass


class AgentDojoHost:
    """`limits`: "off", or whether all tasks of the "suite" may make the changes that one of them needs, or each
    "task" its own alone. What changes nothing may be called always.
    """

    def __init__(self, suite: str, attack: str, judge: str, limits: str) -> None:
        self._suite: TaskSuite = get_suite(_VERSION, suite)
        self._attack: BaseAttack | None = None
        if attack != "none":
            pipeline = GroundTruthPipeline(None)
            pipeline.name = _MODEL
            self._attack = load_attack(attack, self._suite, pipeline)
        self._judge, self._limits = judge, limits
        self._changes = {name: self._needed(task) for name, task in self._suite.user_tasks.items()}

    def _needed(self, task: BaseUserTask) -> list[str]:
        """The tools that change something, once for each time that its reference solution calls them."""
        state = task.init_environment(self._suite.load_and_inject_default_environment({}))
        return [each.function for each in task.ground_truth(state) if not _is_safe(each.function)]

    def tasks(self) -> list[dict[str, Json]]:
        injections = list(self._suite.injection_tasks) if self._attack else [""]
        system = yaml.safe_load((files("agentdojo") / "data" / "system_messages.yaml").read_text())["default"]
        return [
            {
                "id": f"{self._suite.name} {name} {injection}".strip(),
                "instruction": f"{system}\n{task.PROMPT}",
                "split": "test",
                "family": name,
                "apps": name if self._limits == "task" else self._suite.name,
                "changes": self._most_changes(name),
            }
            for name, task in self._suite.user_tasks.items()
            for injection in injections
        ]

    def _most_changes(self, task: str) -> int | None:
        if self._limits == "off":
            return None
        return len(self._changes[task]) if self._limits == "task" else max(map(len, self._changes.values()))

    def apps(self, key: str) -> list[dict[str, Json]]:
        """Of a task by its name, or of the suite."""
        tasks = [key] if key in self._changes else self._changes
        needed = {each for task in tasks for each in self._changes[task]}
        operations = [
            _operation(tool)
            for tool in self._suite.tools
            if self._limits == "off" or _is_safe(tool.name) or tool.name in needed
        ]
        name = self._suite.name
        return [{"name": name, "description": f"All that is at hand: {name}.", "operations": operations}]

    def open(self, task: str) -> AgentDojoWorld:
        _, name, *injection = task.split(" ")
        user_task = self._suite.get_user_task_by_id(name)
        if not (self._attack and injection):
            return AgentDojoWorld(self._suite, user_task, None, {}, self._judge)
        goal = self._suite.get_injection_task_by_id(injection[0])
        return AgentDojoWorld(self._suite, user_task, goal, self._attack.attack(user_task, goal), self._judge)


def _is_safe(tool: str) -> bool:
    return tool.startswith(_READING) and tool not in _CHANGING


def _operation(tool: Function) -> dict[str, Json]:
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters.model_json_schema(),
        "returns": TypeAdapter(tool.return_type).json_schema(mode="serialization"),
        "safe": _is_safe(tool.name),
    }


if __name__ == "__main__":
    serve(lambda: AgentDojoHost(*sys.argv[1:]))
