"""WorkBench: the work of an office on calendar, mails, analytics, projects and customers, by a checkout of its
repository, whose own comparison of the final state judges.

Its tools keep their state in modules. Here each world has a state of its own, which is put there for its calls.
"""

import ast
import csv
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType

from host import Json, RefusedCallError, serve

_SPLITS = ("train", "train", "train", "validation", "test", "test")  # of templates, by turns
_TYPES = {"dict": "object", "list": "array"}
_STATES = {
    "calendar": "CALENDAR_EVENTS",
    "email": "EMAILS",
    "analytics": "PLOTS_DATA",
    "project_management": "PROJECT_TASKS",
    "customer_relationship_manager": "CRM_DATA",
}
_ABOUT = {
    "calendar": "Events with their participants",
    "email": "Mails that were sent and received",
    "analytics": "Visits of the website, and plots of them",
    "project_management": "Tasks on boards and in lists",
    "customer_relationship_manager": "Customers, whom they are assigned to, and their status",
    "company_directory": "Mail addresses of the employees",
}


def _stand_in(name: str, **members: Json) -> None:
    """For a package of agents, which WorkBench imports and a world does not need."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


class Tool:
    """What WorkBench has of LangChain's: the decorator and its result."""

    def __init__(self, name: str, return_direct: bool) -> None:  # noqa: ARG002
        self.name = name

    def __call__(self, function: Callable[..., Json]) -> "Tool":
        self.func, self.description = function, inspect.getdoc(function) or ""
        return self


class WorkBench:
    """A checkout. Its modules read their data from the current directory."""

    def __init__(self, root: str) -> None:
        _stand_in("langchain")
        _stand_in("langchain.tools", tool=Tool)
        _stand_in("langchain.agents", initialize_agent=None, AgentType=None)
        _stand_in("langchain_openai", ChatOpenAI=None, OpenAI=None)
        for name in ("anthropic", "anyscale"):
            _stand_in(f"langchain_community.chat_models.{name}", ChatAnthropic=None, ChatAnyscale=None)
        os.chdir(root)
        sys.path.insert(0, root)
        from src.evals import utils  # noqa: PLC0415  it is where the caller says
        from src.tools import toolkits  # noqa: PLC0415

        self.evaluation = utils
        self.tools: dict[str, Tool] = {tool.name: tool for tool in toolkits.all_tools}
        self.writing = {tool.name for tool in toolkits.tools_with_side_effects}
        self.now = utils.HARDCODED_CURRENT_TIME

    def reset(self) -> None:
        for domain in self.evaluation.DOMAINS:
            domain.reset_state()

    def state(self) -> dict[str, Json]:
        return {domain: getattr(getattr(self.evaluation, domain), name) for domain, name in _STATES.items()}

    def restore(self, state: dict[str, Json]) -> None:
        for domain, name in _STATES.items():
            setattr(getattr(self.evaluation, domain), name, state[domain])


class Query:
    """A task. Its answer are the calls that change what is to be changed."""

    def __init__(self, row: dict[str, str], split: str, number: int) -> None:
        self.text, self.family, self.split = row["query"], row["base_template"], split
        self.id = f"{number} {self.text}"
        self.calls: list[str] = ast.literal_eval(row["answer"])


class Desk:
    def __init__(self, bench: WorkBench, query: Query) -> None:
        self._bench, self._query = bench, query
        self.now = f"{bench.now.isoformat()}+00:00"
        self._calls: list[str] = []
        bench.reset()
        self._state = bench.state()

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:
        """Arguments are texts, as those that the evaluation of WorkBench repeats."""
        given = {name: str(value) for name, value in arguments.items()}
        written = ", ".join(f"{name}={value!r}" for name, value in given.items())
        self._calls.append(f"{app}.{operation}.func({written})")
        self._bench.restore(self._state)
        try:
            result = self._bench.tools[f"{app}.{operation}"].func(**given)
        except Exception as error:
            raise RefusedCallError(f"{type(error).__name__}: {error}") from error
        finally:
            self._state = self._bench.state()
        return result.tolist() if hasattr(result, "tolist") else result

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:  # noqa: ARG002  none is asked for
        right = completed and self._bench.evaluation.is_correct(self._calls, self._query.calls, "")
        failures = [] if right else ["not so: the final state is the one wanted"]
        return {"passed": int(right), "total": 1, "failures": failures}

    def solve(self) -> Json:
        self._calls += self._query.calls

    def close(self) -> None:
        pass


class WorkBenchHost:
    def __init__(self, root: str) -> None:
        self._bench = WorkBench(root)
        directory = Path(root) / "data" / "processed" / "queries_and_answers"
        self._queries = {each.id: each for each in _queries(directory)}
        zone = self._bench.now
        self._today = (
            f"Today's date is {zone.strftime('%A')}, {zone.date()} and the current time is {zone.time()}. "
            "Meetings must not start before 9am or end after 6pm."
        )

    def tasks(self) -> list[dict[str, Json]]:
        return [
            {
                "id": each.id,
                "instruction": f"{self._today}\n{each.text}",
                "split": each.split,
                "family": each.family,
                "apps": "all",
            }
            for each in self._queries.values()
        ]

    def apps(self, key: str) -> list[dict[str, Json]]:  # noqa: ARG002  all tasks have the same
        tools = sorted(self._bench.tools.values(), key=lambda tool: tool.name)
        return [
            {"name": app, "description": _ABOUT[app], "operations": [self._operation(each) for each in of_app]}
            for app, of_app in groupby(tools, lambda tool: tool.name.partition(".")[0])
        ]

    def _operation(self, tool: Tool) -> dict[str, Json]:
        parts = re.split(r"^(Parameters|Returns|Examples)\n-+\n", tool.description + "\n", flags=re.MULTILINE)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        described = dict(_described(sections.get("Parameters", "")))
        properties = {
            name: {"type": "string", "description": described.get(name, "")}
            for name in inspect.signature(tool.func).parameters
        }
        returned = re.match(r"\w+ : (\w+)", sections.get("Returns", ""))
        kind = _TYPES.get(returned[1], "string") if returned else "string"
        return {
            "name": tool.name.partition(".")[2],
            "description": parts[0],
            "parameters": {"type": "object", "properties": properties},
            "returns": {"type": kind} | ({"items": {}} if kind == "array" else {}),
            "safe": tool.name not in self._bench.writing,
        }

    def open(self, task: str) -> Desk:
        return Desk(self._bench, self._queries[task])


def _described(section: str) -> Iterator[tuple[str, str]]:
    """The parameters in a docstring of NumPy's style, and what is said of them."""
    for name, text in re.findall(r"^(\w+) ?:.*\n((?:    .*\n?)*)", section, re.MULTILINE):
        yield name, " ".join(text.split())


def _queries(directory: Path) -> Iterator[Query]:
    """All, each template in one split."""
    number = 0
    for file in sorted(directory.glob("*.csv")):
        with file.open(encoding="utf-8") as text:
            rows = list(csv.DictReader(text))
        templates = list(dict.fromkeys(row["base_template"] for row in rows))
        for row in rows:
            number += 1
            yield Query(row, _SPLITS[templates.index(row["base_template"]) % len(_SPLITS)], number)


if __name__ == "__main__":
    serve(lambda: WorkBenchHost(sys.argv[1]))
