"""tau2: support of customers, as tool calls on the package's own databases, judged by its own evaluators.

The telecom domain is served in its solo mode: the agent has the customer's tools, too. The other domains have no
such mode: what their simulated customer knows and wants is the instruction, and what the agent has to tell the
customer is looked for in its answer.
"""

import json
import re
import sys

from host import Json, RefusedCallError, serve
from loguru import logger
from tau2.data_model.message import AssistantMessage, Message, ToolCall
from tau2.data_model.tasks import RewardType, StructuredUserInstructions, Task
from tau2.domains.airline import environment as airline
from tau2.domains.retail import environment as retail
from tau2.domains.telecom import environment as telecom
from tau2.environment.environment import Environment
from tau2.environment.toolkit import ToolType
from tau2.evaluator.evaluator_action import ActionEvaluator
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

_DOMAINS = {"telecom": telecom, "retail": retail, "airline": airline}
_POLICY = {
    "name": "show_policy",
    "description": "The rules to follow, and how problems are solved.",
    "parameters": {"type": "object", "properties": {}},
    "returns": {"type": "string"},
    "safe": True,
}
_DATABASE = (RewardType.DB, RewardType.ENV_ASSERTION)


class Tau2World:
    now = ""

    def __init__(self, domain: str, task: Task) -> None:
        self._domain, self._task = domain, task
        self._environment = _new_environment(domain)
        self._messages: list[Message] = []
        if state := task.initial_state:
            self._messages = list(state.message_history or [])
            self._environment.set_state(state.initialization_data, state.initialization_actions, self._messages)

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:  # noqa: ARG002  there is one
        if operation == _POLICY["name"]:
            return self._environment.get_policy()
        call = ToolCall(id=str(len(self._messages)), name=operation, arguments=arguments)
        response = self._environment.get_response(call)
        self._messages += [AssistantMessage(role="assistant", tool_calls=[call]), response]
        content = response.content or ""
        if response.error:
            raise RefusedCallError(content.removeprefix("Error: "))
        try:
            return json.loads(content)
        except ValueError:
            return content

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:
        """The product of the rewards on which the task is based, as the package has it."""
        basis = set(self._task.evaluation_criteria.reward_basis)
        said = answer if isinstance(answer, str) else json.dumps(answer)
        messages = [*self._messages, AssistantMessage(role="assistant", content=said)]
        rewards = {}
        if not completed:
            rewards["the task was completed"] = 0.0
        if basis.intersection(_DATABASE):
            found = EnvironmentEvaluator.calculate_reward(self._constructor, self._task, messages)
            rewards["the final state is the one wanted"] = found.reward
        if RewardType.ACTION in basis:
            found = ActionEvaluator.calculate_reward(self._task, messages)
            rewards["each action wanted was taken"] = found.reward
        if RewardType.COMMUNICATE in basis:
            found = CommunicateEvaluator.calculate_reward(self._task, messages)
            rewards["the customer was told what was wanted"] = found.reward
        failures = [f"not so: {what}" for what, reward in rewards.items() if not reward]
        return {"passed": len(rewards) - len(failures), "total": len(rewards), "failures": failures}

    def _constructor(self, solo_mode: bool = False) -> Environment:  # noqa: ARG002  of the evaluator
        return _new_environment(self._domain)

    def solve(self) -> Json:
        for action in self._task.evaluation_criteria.actions or []:
            try:
                self.call(self._domain, action.name, action.arguments)
            except RefusedCallError:  # which the package passes over as well
                continue
        return " ".join(self._task.evaluation_criteria.communicate_info or [])

    def close(self) -> None:
        pass


class Tau2Host:
    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._tasks = {task.id: task for task in _DOMAINS[domain].get_tasks("base")}
        environment = _new_environment(domain)
        self._kits = [kit for kit in (environment.tools, environment.user_tools) if kit is not None]

    def tasks(self) -> list[dict[str, Json]]:
        splits = _DOMAINS[self._domain].get_tasks_split()
        split_of = {task: split for split in ("train", "test") for task in splits[split]}
        return [
            {
                "id": each,
                "instruction": self._instruction(task),
                "split": split_of[each],
                "family": self._family(task),
                "apps": self._domain,
            }
            for each, task in self._tasks.items()
        ]

    def _instruction(self, task: Task) -> str:
        wanted = task.user_scenario.instructions
        if task.ticket:
            request = task.ticket
        elif isinstance(wanted, StructuredUserInstructions):
            parts = [wanted.reason_for_call, wanted.known_info, wanted.unknown_info, wanted.task_instructions]
            request = "\n".join(filter(None, parts))
        else:
            request = wanted
        return (
            f"You support customers. Follow the rules of apis.{self._domain}.{_POLICY['name']}(). Do what can be "
            f"done for this one, and answer with what you would tell them.\n{request}"
        )

    def _family(self, task: Task) -> str:
        """Of telecom the kind of its trouble; elsewhere what is to be changed."""
        if kind := re.match(r"\[(\w+)\]", task.id):
            return kind[1]
        names = {each.name for each in task.evaluation_criteria.actions or []}
        return " ".join(sorted(name for name in names if self._type_of(name) is ToolType.WRITE)) or "nothing"

    def _type_of(self, name: str) -> ToolType:
        return next(kit.tool_type(name) for kit in self._kits if kit.has_tool(name))

    def apps(self, key: str) -> list[dict[str, Json]]:
        tools = [tool for kit in self._kits for tool in kit.get_tools().values()]
        operations = [
            {
                "name": tool.name,
                "description": tool.openai_schema["function"]["description"],
                "parameters": tool.params.model_json_schema(),
                "returns": _value(tool.returns.model_json_schema()),
                "safe": self._type_of(tool.name) is not ToolType.WRITE,
            }
            for tool in tools
        ]
        return [{"name": key, "description": f"Customers of {key}.", "operations": [_POLICY, *operations]}]

    def open(self, task: str) -> Tau2World:
        return Tau2World(self._domain, self._tasks[task])


def _new_environment(domain: str) -> Environment:
    module = _DOMAINS[domain]
    return module.get_environment(solo_mode=True) if module is telecom else module.get_environment()


def _value(schema: dict[str, Json]) -> dict[str, Json]:
    """The schema of the one property of a model."""
    return {**schema["properties"]["returns"], "$defs": schema.get("$defs", {})}


if __name__ == "__main__":
    logger.remove()
    serve(lambda: Tau2Host(sys.argv[1]))
