"""Run a policy, or an expert whom it is to imitate, on tasks of an environment, and verify the results.

Tasks come alone or in chains. Whoever runs them in this process opens model, sandbox and skill libraries as one
stack. An expert is a plug-in: a function `load_expert(context, *, option: type =
default, ...)` that returns an async context manager of an `Expert`, registered in the entry-point group
`sage.experts` or named "module:attribute".
"""

import asyncio
from collections import ChainMap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from app.agent.prompts import Profile, choose_profile
from app.agent.rollout import Agent, ResumeState, RolloutHooks, RolloutLimits, hosted_agent, run_rollout
from app.apis.calls.gateway import Gateway
from app.apis.calls.skill_guard import GuardedSkill, SkillGuard, SkillManifest
from app.base import plugins
from app.base.errors import AppError, WorldError
from app.base.plugins import PluginSpec, load_options
from app.base.settings import Settings, urls_in
from app.base.values import Offer, Policy, Task, Trajectory
from app.engine.protocol import ChatAnswer, ChatModel, Engine, RetryingEngine, Tokens
from app.engine.tokenizer import ChatTokenizer, Message
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox
from app.skills.checks import is_wrapper, validate_drafts
from app.skills.in_memory_library import GrownSkill, InMemoryLibrary
from app.skills.provenance import manifests_of
from app.skills.search import load_retrieval, needs_embeddings
from trainer.engines.embedded import EnginePool, SubprocessEngine, local_embedder, subprocess_engine
from trainer.engines.servers import SharedServers
from trainer.environment import Environment, OpensGateway, Scenario, Verdict, World
from trainer.rollouts.memories import Memory, transcript

GROUP = "sage.experts"


class AdapterEngine(Engine, Protocol):
    """An engine that loads adapters: the client of the model servers, or the trainer's own engine."""

    async def load_adapter(self, name: str, path: Path) -> None: ...

    async def unload_adapter(self, name: str) -> None: ...


LibraryFactory: TypeAlias = Callable[[], InMemoryLibrary]
"""Makes an empty library for one chain."""


T = TypeVar("T")


class Episode(msgspec.Struct, frozen=True):
    """A trajectory, its verdict, and the skills it made."""

    trajectory: Trajectory
    verdict: Verdict
    made: tuple[Offer, ...] = ()
    creditable: frozenset[UUID] = frozenset()  # without wrappers of a single API, which earn no bonus
    manifests: Mapping[str, SkillManifest] = {}  # of the skills it made, by name


class Chain(msgspec.Struct, frozen=True):
    """Tasks to be worked through in order."""

    scenario: Scenario
    tasks: tuple[Task, ...]
    label: str | None  # by which skills are found; None: by the instructions alone


def scenario_chain(scenario: Scenario, length: int | None = None) -> Chain:
    """The first `length` tasks of a scenario, or all of them."""
    return Chain(scenario, tuple(scenario.tasks[:length]), scenario.label)


_FUNCTION: Final = """\
You are shown a task that was solved by Python. Write ONE function with typed parameters that does tasks of this \
kind, what this task names being its arguments. After it, call it for this task, and end the task with \
apis.supervisor.complete_task(), with the answer if it asked for one. Reply with one block of Python."""


class _Prepared:
    """A policy with one answer. Implements `ChatModel`."""

    context_length: int | None = None
    lost = Tokens()
    thinks = False

    def __init__(self, text: str) -> None:
        self._text = text

    async def answer(
        self,
        messages: Sequence[Message],  # noqa: ARG002
        *,
        max_tokens: int,  # noqa: ARG002
        temperature: float,  # noqa: ARG002
        stop_strings: Sequence[str] = (),  # noqa: ARG002
    ) -> ChatAnswer:
        return ChatAnswer(text=self._text)


Mix: TypeAlias = Callable[[int, list[Offer]], list[Offer]]
"""What a task is offered, given its position in the chain and the skills that were found for it."""


@dataclass(frozen=True)
class EpisodeRunner:
    """Runs one policy in one environment. Skills that have manifests are held to them, as when they are served.

    Those that rollouts write have none unless `guard_written`, which experts and experiments do without.
    """

    agent: Agent
    environment: Environment
    policy: Policy = Policy()  # noqa: RUF009 - frozen
    manifests: dict[UUID, SkillManifest] = field(default_factory=dict)  # of offers that are in no library
    guard_written: bool = False
    post_hoc: bool = False  # skills are written after tasks that succeeded, not in them

    async def run_task(
        self,
        scenario: Scenario,
        task: Task,
        library: InMemoryLibrary | None = None,
        offers: Sequence[Offer] = (),
        *,
        seed: int = 0,
        hooks: RolloutHooks | None = None,
        memory: str = "",
    ) -> Episode:
        """One verified rollout in a world of its own. The skills it makes are saved in `library`. `memory` is what
        it is shown of earlier tasks.

        Raises WorldError for whatever the environment raises, but for an AppError.
        """
        async with AsyncExitStack() as stack:
            world = await of_world(stack.enter_async_context(self.environment.open(scenario, task)), scenario)
            gateway = gateway_of(world, self.agent.limits.calls)
            gateway.guard = self._guard(offers, library)
            resume = ResumeState(seed=seed, now=world.now)
            shown = msgspec.structs.replace(world.task, memory=memory)
            trajectory = await run_rollout(self.agent, shown, self.policy, gateway, offers, resume, hooks)
            verdict = await of_world(world.verify(trajectory), scenario)
            catalog = world.catalog
        if library is None:
            return Episode(trajectory, verdict)
        source: Trajectory | None = trajectory
        if self.post_hoc:
            source = await self._written_after(scenario, task, trajectory) if verdict.success else None
        drafts = validate_drafts(source, catalog).kept if source is not None else []
        manifests = {}
        if drafts and source is not None and self.guard_written:
            manifests = await asyncio.to_thread(manifests_of, drafts, source, catalog)
        saved = await library.save(drafts, scenario.label, manifests)
        earning = (offer for offer, draft in zip(saved, drafts, strict=True) if not is_wrapper(draft.source))
        creditable = frozenset(() if self.post_hoc else (offer.skill_id for offer in earning))
        return Episode(trajectory, verdict, tuple(saved), creditable, manifests)

    async def _written_after(self, scenario: Scenario, task: Task, done: Trajectory) -> Trajectory | None:
        """The task again, in a fresh world, by a function that is written after it; None if that fails."""
        code = await self.write(_FUNCTION, transcript(done))
        agent = hosted_agent(self.agent, _Prepared(code))
        once = replace(agent, limits=msgspec.structs.replace(agent.limits, turns=1))
        again = await replace(self, agent=once, post_hoc=False).run_task(scenario, task)
        return again.trajectory if again.verdict.success else None

    async def write(self, instructions: str, material: str) -> str:
        """A text by the policy; "" where the material does not fit. Raises EngineError."""
        messages = [Message("system", instructions), Message("user", material)]
        conversation = self.agent.conversation(self.policy.model, messages)
        longest, most = conversation.max_length, self.agent.turn_tokens
        length = conversation.prompt()
        if longest is not None and length + most > longest:
            return ""
        return (await conversation.sample(max_tokens=most, temperature=0.0, seed=0)).text.strip()

    def _guard(self, offers: Sequence[Offer], library: InMemoryLibrary | None) -> SkillGuard:
        known = ChainMap(library.manifests if library is not None else {}, self.manifests)
        return SkillGuard(
            {
                offer.name: GuardedSkill.of(known[offer.skill_id], offer.source)
                for offer in offers
                if offer.skill_id in known
            }
        )

    async def run_chain(
        self,
        chain: Chain,
        library: InMemoryLibrary | None,
        seeds: Iterable[int],
        mix: Mix | None = None,
        memory: Memory | None = None,
    ) -> list[Episode]:
        """Run the tasks of a chain in order, each with the skills that the earlier ones made.

        `seeds` has one per task. `library` must be empty and used for this chain only: chains that are compared
        must not share skills. Without one every task runs without skills. `mix` adds others to those found.
        `memory` must be empty as well.
        """
        episodes = []
        for position, (task, seed) in enumerate(zip(chain.tasks, seeds, strict=True)):
            offers = await library.find(task.instruction, chain.label) if library is not None else []
            if mix is not None:
                offers = mix(position, offers)
            recalled = await memory.recall(task) if memory is not None else ""
            done = await self.run_task(chain.scenario, task, library, offers, seed=seed, memory=recalled)
            if memory is not None:
                await memory.learn(done.trajectory, done.verdict.success, self.write)
            episodes.append(done)
        return episodes


async def of_world(result: Awaitable[T], scenario: Scenario) -> T:
    """Environments are of others, and may raise anything; what they raise of ours keeps its kind."""
    try:
        return await result
    except AppError:
        raise
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise WorldError(f"the world of scenario {scenario.id!r} failed: {reason}") from error


def gateway_of(world: World, calls: int) -> Gateway:
    """By which one rollout calls a world's services, at most so many times."""
    if isinstance(world, OpensGateway):
        return world.open_gateway(calls)
    task = world.task
    return Gateway(
        world.catalog, world.client, instruction=task.instruction, variables=task.variables, max_calls=calls
    )


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


OpenModel: TypeAlias = Callable[[], AbstractAsyncContextManager[ChatModel]]


@dataclass(frozen=True, kw_only=True)
class ExpertContext:
    """Where an expert works, and for which policy its turns are recorded."""

    environment: Environment
    tokenizer: ChatTokenizer  # of the policy that will imitate
    profile: Profile  # of the same policy
    sandbox: Sandbox
    seed: int = 0
    key: str = ""  # secret of an expert behind an API
    timeout: float = 120.0  # seconds per answer
    patience: float = 360.0  # seconds of retries while an expert is overloaded, slow or unreachable
    open_model: OpenModel | None = None  # of an expert behind an API, instead of by its options


class Expert(Protocol):
    """Works through whole scenarios. Its trajectories hold the policy's tokens and prompts, as if it had acted."""

    @property
    def deterministic(self) -> bool:
        """Whether every pass over a scenario is the same, regardless of the temperature."""
        ...

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        """One pass over the tasks of a scenario in order, each with the skills that the earlier ones left.

        Raises EngineError where the expert does not answer, UntokenizableError for an answer that the policy's
        tokenizer cannot represent.
        """
        ...


def open_expert(text: str, context: ExpertContext) -> AbstractAsyncContextManager[Expert]:
    """The expert that a setting names, such as "scripted?inline=0.1".

    Raises InvalidError for an unknown name, and for an option that is unknown, missing or does not fit.
    """
    spec = PluginSpec.parse(text)
    load = plugins.load(GROUP, spec.name)
    opened: AbstractAsyncContextManager[Expert] = load(context, **load_options(load, spec))
    return opened
