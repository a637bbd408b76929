"""The parts of in-process rollouts: model, sandbox, environment and skill libraries."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import msgspec

from app.agent.prompts import choose_profile
from app.agent.rollout import Agent, RolloutLimits
from app.base.settings import Settings, urls_in
from app.engine.protocol import RetryingEngine
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills.in_memory_library import GrownSkill, InMemoryLibrary
from app.skills.search import load_retrieval, needs_embeddings
from trainer.engines.embedded import EnginePool, SubprocessEngine, local_embedder, subprocess_engine
from trainer.engines.servers import SharedServers
from trainer.environment import Environment
from trainer.rollouts.episode import AdapterEngine, LibraryFactory


@dataclass(frozen=True)
class RolloutStack:
    """The parts with which a policy is trained and evaluated."""

    agent: Agent  # greedy
    engine: AdapterEngine  # the agent's
    environment: Environment
    new_library: LibraryFactory


@asynccontextmanager
async def open_stack(
    environment: Environment,
    retrieval: str,
    settings: Settings,
    limits: RolloutLimits | None = None,
    grown: Sequence[GrownSkill] = (),
) -> AsyncIterator[RolloutStack]:
    """Open all parts; the limits are the deployment's unless given. Every library begins with `grown`.

    The time limit leaves out generation, which tokens limit: how many rollouts share the engine says nothing about
    the policy.

    Raises InvalidError for an unknown retrieval, ModelError for a model that cannot be served.
    """
    rule = load_retrieval(retrieval)
    tokenizer = ChatTokenizer.load(settings.model_dir, settings.template_kwargs)
    profile = choose_profile(settings.prompt_profile, tokenizer.card)
    async with AsyncExitStack() as stack:
        sandbox = await stack.enter_async_context(ForkedSandbox())
        embedder = await stack.enter_async_context(local_embedder() if needs_embeddings(rule) else nullcontext())
        new_library = partial(InMemoryLibrary, embedder, retrieval=rule, grown=grown)
        engine = await stack.enter_async_context(_engine(settings))
        retrying = RetryingEngine(engine) if settings.rollout_engine_urls else engine  # a dead child stays dead
        own_time = msgspec.structs.replace(limits or RolloutLimits.of(settings), counts_generation=False)
        agent = Agent(retrying, tokenizer, profile, sandbox, own_time, served_length=lambda: engine.max_length)
        yield RolloutStack(agent, engine, environment, new_library)


@asynccontextmanager
async def _engine(settings: Settings) -> AsyncIterator[SharedServers | SubprocessEngine | EnginePool]:
    urls = urls_in(settings.rollout_engine_urls)
    if urls:
        async with SharedServers(
            urls,
            timeout=settings.engine_timeout_seconds,
            load_timeout=settings.engine_load_timeout_seconds,
            separate_base=settings.engine_separate_base,
        ) as servers:
            yield servers
        return
    async with AsyncExitStack() as stack:
        own = [
            await stack.enter_async_context(
                subprocess_engine(
                    settings.model_dir,
                    settings.engine_device,
                    dtype=settings.engine_dtype,
                    kv_mb=settings.engine_kv_mb,
                )
            )
            for _ in range(engine_count(settings))
        ]
        yield own[0] if len(own) == 1 else EnginePool(own)


def engine_count(settings: Settings) -> int:
    """How many engines of its own a run starts: as many as processes update, which wait meanwhile; one on a GPU,
    which one can keep busy.
    """
    if settings.train_processes == 1:
        return 1
    from trainer.learning.model import pick_device  # noqa: PLC0415  torch takes seconds

    return settings.train_processes if pick_device(settings.engine_device).type == "cpu" else 1
