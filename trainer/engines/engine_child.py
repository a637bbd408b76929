"""`python -m trainer.engines.engine_child`: the embedded engine for one trainer, over an inherited socket."""

import asyncio
import socket
import sys
from pathlib import Path

import click
import torch

from app.engine.embedded.decoder import Decoder, load_model
from app.engine.embedded.lora_layers import AdapterSet
from app.engine.embedded.prometheus import EngineMetrics
from app.engine.embedded.scheduler import SWITCH_INTERVAL, Scheduler
from app.engine.embedded.schemas import CompletionRequest, LoadAdapterRequest
from app.engine.embedded.serve import resolve_device
from app.engine.embedded.service import EngineService
from app.engine.tokenizer import ChatTokenizer
from app.errors import AppError, ModelError
from trainer.engines.engine_messages import (
    Answer,
    Ask,
    Done,
    Forget,
    Load,
    Question,
    Refused,
    Sampled,
    Unload,
    write,
)
from trainer.engines.engine_messages import read_question as read


@click.command()
@click.option("--socket", "fd", required=True, type=int)
@click.option("--model", required=True, type=click.Path(path_type=Path))
@click.option("--device", required=True)
@click.option("--rows", required=True, type=click.IntRange(1))
@click.option("--adapters", required=True, type=click.IntRange(1))
@click.option("--threads", required=True, type=click.IntRange(1))
def main(fd: int, threads: int, **options: object) -> None:
    """Answer until the trainer closes its end."""
    torch.set_num_threads(threads)
    sys.setswitchinterval(SWITCH_INTERVAL)
    asyncio.run(_serve(socket.socket(fileno=fd), **options))  # type: ignore[arg-type]


async def _serve(stream: socket.socket, *, model: Path, device: str, rows: int, adapters: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=stream)
    try:
        scheduler, service = _start(model, device, rows, adapters, writer)
    except ModelError as error:
        write(writer, Refused(0, str(error), error.status))
        writer.close()
        await writer.wait_closed()
        return
    write(writer, Done(0))
    try:
        await Desk(service, writer).answer(reader)
    finally:
        scheduler.stop()


def _start(
    model: Path, device: str, rows: int, adapters: int, writer: asyncio.StreamWriter
) -> tuple[Scheduler, EngineService]:
    """An engine whose death ends the process, so that whoever waits for an answer hears of it."""
    loop, tokenizer = asyncio.get_running_loop(), ChatTokenizer.load(model)
    loaded = load_model(model, resolve_device(device), torch.float32)
    worn = AdapterSet(loaded)
    decoder = Decoder(loaded, rows)

    def end() -> None:
        loop.call_soon_threadsafe(writer.close)

    scheduler = Scheduler(decoder, worn, EngineMetrics(), on_death=end)
    scheduler.start()
    return scheduler, EngineService(tokenizer, worn, scheduler, adapters)


class Desk:
    """Every question gets one answer, save those that are forgotten."""

    def __init__(self, service: EngineService, writer: asyncio.StreamWriter) -> None:
        self._service, self._writer = service, writer
        self._working: dict[int, asyncio.Task[None]] = {}

    async def answer(self, reader: asyncio.StreamReader) -> None:
        """Until the other end closes."""
        try:
            while True:
                self._begin(await read(reader))
        except (EOFError, ConnectionError):
            return
        finally:
            for task in self._working.values():
                task.cancel()

    def _begin(self, question: Question) -> None:
        if isinstance(question, Forget):
            if task := self._working.get(question.number):
                task.cancel()
            return
        task = self._working[question.number] = asyncio.create_task(self._reply(question))
        task.add_done_callback(lambda task: self._end(question.number, task))

    def _end(self, number: int, task: asyncio.Task[None]) -> None:
        """An error that nobody foresaw ends the process: the trainer would wait for this answer for ever."""
        del self._working[number]
        if not task.cancelled() and task.exception() is not None:
            self._writer.close()
            task.result()  # raises: the loop logs it

    async def _reply(self, question: Ask | Load | Unload) -> None:
        try:
            answer = await self._work_on(question)
        except AppError as error:
            answer = Refused(question.number, str(error), error.status)
        write(self._writer, answer)

    async def _work_on(self, question: Ask | Load | Unload) -> Answer:
        match question:
            case Ask():
                return await self._sample(question)
            case Load(name=name, path=path):
                if name not in self._service.loaded:
                    await self._service.load(LoadAdapterRequest(name, path))
            case Unload(name=name):
                if name in self._service.loaded:
                    await self._service.unload(name)
        return Done(question.number)

    async def _sample(self, ask: Ask) -> Answer:
        request = CompletionRequest(
            model=ask.model,
            prompt=list(ask.prompt),
            max_tokens=ask.max_tokens,
            temperature=ask.temperature,
            seed=ask.seed,
            stop_token_ids=list(ask.stops),
        )
        async for progress in self._service.generate(self._service.prepare(request), stream=False):
            if progress.finish in ("stop", "length"):
                return Sampled(ask.number, progress.ids, progress.logprobs, progress.finish)
        return Refused(ask.number, "the engine was stopped while it generated", 503)


if __name__ == "__main__":
    main()
