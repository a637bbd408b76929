"""What a runner process measures: metrics for Prometheus, and traces for OpenTelemetry."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID

import httpx
import msgspec
from prometheus_client.parser import text_string_to_metric_families

from app.apis import store as apis
from app.base.judge import Judge
from app.base.values import Trajectory
from app.db.database import Sessions
from app.db.tables import TASK_END_STATES
from app.projects import store as projects
from app.tasks import store as tasks
from tests.processes.test_asgi import environment, run, sage_process
from tests.support.ledger import Ledger
from tests.support.ledger_project import put_ledger, until
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan
from tests.support.processes import free_ports
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.support.scripted_server import scripted_server

SECRET = "hunter2-the-password"
TURNS = (
    f"apis.ledger.add_entry(text='{SECRET}')\nprint(apis.ledger.list_entries())\napis.down.list_entries()",
    f"apis.supervisor.complete_task(answer='{SECRET}')",
)
INSTRUCTION = "write the confidential word"


def load_even_judge() -> Judge:
    async def judge(_: Trajectory) -> float:
        return 0.5

    return judge


class RunnerOfOne(msgspec.Struct, frozen=True):
    """A runner process, its only task, and the URL of its metrics."""

    task_id: UUID
    metrics: str


@asynccontextmanager
async def one_task(
    committed: Sessions, database_url: str, directory: Path, settings: Mapping[str, str]
) -> AsyncIterator[RunnerOfOne]:
    """A runner process with these settings that has just ended a task of two turns and three calls."""
    ledger = Ledger()
    engine = ScriptedEngine(byte_tokenizer(directory), *map(block, TURNS))
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(ledger.listening())
        model = await stack.enter_async_context(scripted_server(engine))
        (port,) = free_ports(1)
        env = environment(directory, database_url) | {
            "ENGINE_URLS": model,
            "SAGE_PROMPT_PROFILE": "compact",
            "SAGE_METRICS_PORT": str(port),
            "SAGE_JUDGE": "tests.tasks.test_runner_telemetry:load_even_judge",
            **settings,
        }
        async with committed.begin() as session:
            project = await projects.create(session, "demo")
            await put_ledger(session, project.id, ledger, services)
            nowhere = ledger.document("http://127.0.0.1:9")
            await apis.put(session, project.id, "down", source="upload", document=nowhere, digest="down")
            task = await tasks.submit(session, project.id, tasks.NewTask(instruction=INSTRUCTION))
        await stack.enter_async_context(sage_process("runner", env))

        async def has_ended() -> bool:
            async with committed() as session:
                return (await tasks.get(session, task.id)).state in TASK_END_STATES

        await until(has_ended)
        yield RunnerOfOne(task.id, f"http://127.0.0.1:{port}/metrics")


async def scraped(url: str) -> dict[str, float]:
    """The samples by name and labels."""
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        text = (await client.get(url)).text
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("sage_")
    }


async def test_a_runner_serves_what_it_measured_of_its_tasks(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    async with one_task(committed, database_url, tmp_path, {}) as served:
        await until(lambda: _has(served.metrics, "sage_task_outcomes_total['completed', 'done']"))
        found = await scraped(served.metrics)
    assert found["sage_task_outcomes_total['completed', 'done']"] == 1
    assert found["sage_task_attempts_total['first']"] == 1
    assert found["sage_turns_total[]"] == 2
    assert found["sage_api_calls_total['returned']"] == 2
    assert found["sage_api_calls_total['raised']"] == 1
    assert (found["sage_task_score_count['active']"], found["sage_task_score_sum['active']"]) == (1, 0.5)
    assert found["sage_tokens_total['prompt']"] > found["sage_tokens_total['generated']"] > 100
    assert found["sage_task_leases_lost_total[]"] == 0
    phases = {"queue", "prompt", "engine", "sandbox", "calls", "journal"}
    seconds = {each: found[f"sage_task_phase_seconds_sum['{each}']"] for each in phases}
    assert all(found[f"sage_task_phase_seconds_count['{each}']"] == 1 for each in phases)
    assert sum(seconds.values()) <= found["sage_task_duration_seconds_sum[]"]


async def test_a_task_is_a_trace_by_the_conventions_for_generative_ai(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    receiver = OtlpReceiver()
    async with receiver.listening() as endpoint:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with one_task(committed, database_url, tmp_path, settings) as served:
            await until(lambda: bool(receiver.named("invoke_agent")))
    (task,) = receiver.named("invoke_agent")
    assert (task.parent, task.service, task.failed) == ("", "sage-runner", False)
    assert {span.trace for span in receiver.spans} == {served.task_id.hex}
    assert task.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert (task.attributes["sage.task.state"], task.attributes["sage.task.stop_reason"]) == ("done", "completed")
    turns = receiver.named("turn")
    assert [span.parent for span in turns] == [task.id] * 2
    generations = receiver.named("text_completion base")
    assert [span.parent for span in generations] == [span.id for span in turns]
    _check_generation(generations[1])
    total = sum(span.attributes["gen_ai.usage.output_tokens"] for span in generations)
    assert task.attributes["gen_ai.usage.output_tokens"] == total
    calls = receiver.named("execute_tool ")
    assert [span.parent for span in calls] == [turns[0].id] * 3
    assert [span.failed for span in calls] == [False, False, True]
    assert [span.attributes["gen_ai.tool.name"] for span in calls] == [
        "ledger.add_entry",
        "ledger.list_entries",
        "down.list_entries",
    ]
    assert calls[2].attributes["error.type"] == "ApiError"
    assert task.seconds >= sum(span.seconds for span in turns)


async def test_spans_hold_neither_secrets_nor_content(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    receiver = OtlpReceiver()
    async with receiver.listening() as endpoint:
        settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        async with one_task(committed, database_url, tmp_path, settings):
            await until(lambda: bool(receiver.named("invoke_agent")))
    sent = b"".join(receiver.bodies)
    assert b"ledger.add_entry" in sent
    for content in (SECRET, INSTRUCTION, "apis.supervisor", "list_entries("):
        assert content.encode() not in sent


async def test_a_collector_that_is_down_holds_up_neither_tasks_nor_the_end(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    settings = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
    async with one_task(committed, database_url, tmp_path, settings) as served:
        found = await scraped(served.metrics)
    assert found["sage_task_attempts_total['first']"] == 1


async def test_a_port_in_use_is_reported_by_its_setting(database_url: str, tmp_path: Path) -> None:
    async with Ledger().listening() as taken:
        port = taken.rpartition(":")[2]
        env = environment(tmp_path, database_url) | {"SAGE_METRICS_PORT": port}
        status, out, err = await run("-m", "app.cli", "runner", env=env)
    assert status == 1
    assert "set SAGE_METRICS_PORT" in out + err
    assert "Traceback" not in out + err


def _check_generation(span: ReceivedSpan) -> None:
    assert span.kind == 3  # a client's
    found = span.attributes
    assert (found["gen_ai.operation.name"], found["gen_ai.provider.name"]) == ("text_completion", "vllm")
    assert found["gen_ai.request.model"] == "base"
    assert found["gen_ai.usage.output_tokens"] == len(block(TURNS[1])) + 1  # a token per byte, and the last
    assert found["gen_ai.usage.input_tokens"] > len(block(TURNS[0]))
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert found["gen_ai.request.max_tokens"] > 0


async def _has(url: str, name: str) -> bool:
    return name in await scraped(url)
