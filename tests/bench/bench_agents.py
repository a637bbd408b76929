"""The agent loop's turns a second and core, beside smolagents' CodeAgent and LangGraph's agent.

    pip install smolagents langgraph
    python -m tests.bench.bench_agents [--turns 10] [--tasks 40] [--repeats 3]

The same scripted model answers at once, in memory; each turn runs Python, and with calls writes to the same HTTP
API in a process of its own. Counted is the CPU time of the loop and of its processes, not of the API. Ours runs
the code in the sandbox, behind the gateway, with tokens, log probabilities and statistics of each turn in the
trajectory; smolagents interprets it in the process, within its rules; LangGraph's tool executes it as it is.
No database: a journal is what neither of the others has. `bench_task_cpu` measures the whole server.
"""

import asyncio
import importlib.util
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import httpx
import uvloop

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits, run_rollout
from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.base.values import Policy, Stop
from app.engine.protocol import Completion, Sampling
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.bench.results_file import write_results
from tests.support.ledger import Ledger
from tests.support.processes import cpu_seconds_of, descendants
from tests.support.rollout_bench import TASK
from tests.support.scripted_engine import END, block, byte_tokenizer

PLAIN = "total = 0\nfor number in range(20):\n    total += number * number\nprint(total)"
WRITES = 6  # calls of a turn
_ROOT = Path(__file__).parents[2]


@click.command()
@click.option("--turns", default=10, show_default=True, help="of a task")
@click.option("--tasks", default=40, show_default=True, help="in a round")
@click.option("--repeats", default=3, show_default=True, help="rounds")
@click.option("--only", hidden=True, help="measure this one, here")
@click.option("--url", default="", hidden=True, help="of the API; none: turns without calls")
def main(turns: int, tasks: int, repeats: int, only: str | None, url: str) -> None:
    """Measure agent loops."""
    if only:
        print(_LOOPS[only](turns, tasks, url))
        return
    present = [name for name in _LOOPS if name == "ours" or importlib.util.find_spec(name)]
    figures: dict[str, dict[str, float]] = {}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.bench.bench_agents_api"], cwd=_ROOT, stdout=subprocess.PIPE, text=True
    ) as api:
        assert api.stdout is not None
        listening = api.stdout.readline().strip()
        for kind, url in (("code alone", ""), (f"{WRITES} calls a turn", listening)):
            rounds = {name: [_measure(name, turns, tasks, url) for _ in range(repeats)] for name in present}
            medians = {name: statistics.median(each) for name, each in rounds.items()}
            figures[kind] = medians
            for name, rate in medians.items():
                print(f"{kind:16} {name:11} {rate:7.0f} turns a CPU second, ours: {medians['ours'] / rate:5.1f} x")
        api.terminate()
    write_results("agents", {"turns": turns, "tasks": tasks, "turns_per_cpu_second": figures})


def _measure(name: str, turns: int, tasks: int, url: str) -> float:
    sizes = ["--turns", str(turns), "--tasks", str(tasks), "--only", name, "--url", url]
    command = [sys.executable, "-W", "ignore", "-m", "tests.bench.bench_agents", *sizes]
    return float(subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout.split()[-1])


def _rate(turns: int, tasks: int, work: Callable[[int], None]) -> float:
    """Turns a CPU second, of this process and those that it started, after a task that warms up."""
    work(1)
    before = _cpu()
    work(tasks)
    return turns * tasks / (_cpu() - before)


def _cpu() -> float:
    own = int(Path("/proc/self").readlink().name)
    return sum(map(cpu_seconds_of, {own, *descendants(own)}))


class _Scripted:
    """An engine with one answer."""

    def __init__(self, tokenizer: ChatTokenizer, answer: str) -> None:
        ids = tuple(tokenizer.encode(answer + END))
        self._completion = Completion(ids, tuple(-0.5 for _ in ids), "stop")

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        return self._completion


def _ours(turns: int, tasks: int, url: str) -> float:
    write = f'for number in range({WRITES}):\n    apis.ledger.add_entry(text="hello")\n'
    code = block(write + "print(number)" if url else PLAIN)

    async def work(count: int) -> None:
        for _ in range(count):
            trajectory = await run_rollout(agent, TASK, Policy("base"), Gateway(catalog, client, max_calls=1000))
            assert trajectory.stop == Stop.TURN_LIMIT, trajectory.stop
            assert len(trajectory.turns) == turns
            assert len(trajectory.calls) == (turns * WRITES if url else 0)

    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,  # as a runner of the server
    ):
        tokenizer = byte_tokenizer(Path(folder) / "model", max_length=1 << 20)
        limits = RolloutLimits(turns=turns, repeats=turns + 1, task_tokens=1 << 20, calls=1000, seconds=3600)
        client = httpx.AsyncClient()
        catalog = Catalog({"ledger": Ledger().app(url or "http://none.test")})
        sandbox = runner.run(ForkedSandbox().__aenter__())
        agent = Agent(_Scripted(tokenizer, code), tokenizer, Compact(), sandbox, limits)
        rate = _rate(turns, tasks, lambda count: runner.run(work(count)))
        runner.run(sandbox.__aexit__(None, None, None))
        runner.run(client.aclose())
    return rate


def _smolagents(turns: int, tasks: int, url: str) -> float:
    from smolagents import ChatMessage, CodeAgent, Model, tool  # type: ignore[import-not-found]  # noqa: PLC0415
    from smolagents.monitoring import LogLevel  # type: ignore[import-not-found]  # noqa: PLC0415

    client = httpx.Client()

    @tool
    def add_entry(text: str) -> int:
        """Write one entry.

        Args:
            text: what to write
        """
        return int(client.post(f"{url}/entries", json={"text": text}).json()["id"])

    write = f'for number in range({WRITES}):\n    add_entry(text="hello")\n'
    code = f"So be it.\n<code>\n{write + 'print(number)' if url else PLAIN}\n</code>"

    class Scripted(Model):  # type: ignore[misc]
        def generate(self, *_: object, **__: object) -> object:
            return ChatMessage(role="assistant", content=code)

    agent = CodeAgent(tools=[add_entry], model=Scripted(), max_steps=turns, verbosity_level=LogLevel.OFF)

    def work(count: int) -> None:
        for _ in range(count):
            list(agent.run(TASK.instruction, stream=True))
            assert agent.step_number > turns

    return _rate(turns, tasks, work)


def _langgraph(turns: int, tasks: int, url: str) -> float:
    from contextlib import redirect_stdout  # noqa: PLC0415
    from io import StringIO  # noqa: PLC0415
    from typing import Any  # noqa: PLC0415

    from langchain_core.language_models import BaseChatModel  # type: ignore[import-not-found]  # noqa: PLC0415
    from langchain_core.messages import AIMessage  # type: ignore[import-not-found]  # noqa: PLC0415
    from langchain_core.outputs import ChatGeneration, ChatResult  # type: ignore[import-not-found]  # noqa: PLC0415
    from langgraph.prebuilt import create_react_agent  # type: ignore[import-not-found]  # noqa: PLC0415

    client = httpx.Client()

    def add_entry(text: str) -> int:
        return int(client.post(f"{url}/entries", json={"text": text}).json()["id"])

    def python(code: str) -> str:
        """Execute Python and return what it prints."""
        with redirect_stdout(StringIO()) as printed:
            exec(code, {"add_entry": add_entry})
        return printed.getvalue()

    write = f'for number in range({WRITES}):\n    add_entry(text="hello")\n'
    code = write + "print(number)" if url else PLAIN

    class Scripted(BaseChatModel):  # type: ignore[misc]
        @property
        def _llm_type(self) -> str:
            return "scripted"

        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

        def _generate(self, messages: Sequence[Any], *_: Any, **__: Any) -> Any:
            asked = len(messages) // 2
            calls = [{"name": "python", "args": {"code": code}, "id": str(asked)}]
            message = AIMessage("So be it.", tool_calls=calls if asked < turns else [])
            return ChatResult(generations=[ChatGeneration(message=message)])

    agent = create_react_agent(Scripted(), [python])

    def work(count: int) -> None:
        for _ in range(count):
            said = {"messages": [("user", TASK.instruction)]}
            ended = agent.invoke(said, {"recursion_limit": 3 * turns + 3})
            assert len(ended["messages"]) == 2 + 2 * turns

    return _rate(turns, tasks, work)


_LOOPS: dict[str, Callable[[int, int, str], float]] = {
    "ours": _ours,
    "smolagents": _smolagents,
    "langgraph": _langgraph,
}

if __name__ == "__main__":
    main()
