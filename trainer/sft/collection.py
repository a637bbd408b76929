"""Collect demonstrations of an expert in an environment, and write the good ones to a file of chats.

Rejection sampling: the expert works through scenarios, and its successes are kept, in the tokens that the
policy would have sampled. An expert may be a model behind a chat endpoint. A collection that was interrupted
resumes: its journal is a file next to the output file, with a line per finished scenario.
"""

import asyncio
import os
import unicodedata
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec

from app.agent.action import extract_code
from app.agent.prompts import Full, Profile, choose_profile
from app.agent.rollout import Agent, RolloutLimits
from app.apis.catalog import with_builtins
from app.apis.listing import ListedApp, listed_apps
from app.base.errors import AppError, InvalidError, ModelError
from app.base.files import write_atomically
from app.base.settings import Settings
from app.base.values import Json, Offer, Policy, Task
from app.engine.hosted.client import OpenAiChatModel, Remedies, WithheldError
from app.engine.protocol import ChatModel, Completion, Sampling
from app.engine.tokenizer import ChatTokenizer, Message, after_thought
from app.runs.chat_lines import ChatRecord
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Observation
from app.skills.in_memory_library import InMemoryLibrary
from trainer.environment import Environment, Scenario, Split, open_environment
from trainer.rollouts.episode import Episode, EpisodeRunner, ExpertContext, OpenModel, open_expert
from trainer.sft.chats import record_of, to_line

_PROBE = "probe"
_FIRST = 2  # tasks of a scenario that must succeed, so that the skills the second used are good ones
UNTOKENIZABLE = "an answer has no tokens of the policy"
LIMITS = RolloutLimits(turns=20, turn_tokens=100_000, task_tokens=1_000_000, seconds=7200)
"""Only turns are limited tightly: the endpoint counts tokens of its own, and may be slow."""
REMEDIES = Remedies(
    key="name the variable that holds a good one, of an expert with --api-key-env",
    model="correct the option model or url",
    slow="raise --timeout, or lower --at-once",
)


class UntokenizableError(InvalidError):
    """The policy's tokenizer cannot represent a text: trained on it, the policy would learn a different text."""


def answer_ids(tokenizer: ChatTokenizer, text: str, *, ended: bool = True) -> tuple[int, ...]:
    """The tokens of one answer, with its end token unless it was cut off. Raises UntokenizableError."""
    reserved = next((token for token in _reserved(tokenizer) if token in text), None)
    if reserved is not None:
        raise UntokenizableError(f"an answer contains {reserved}, which is reserved for the model's chat template")
    ids = tokenizer.encode(text)
    back = tokenizer.decode(ids)
    if _plain(back) != _plain(text):
        raise UntokenizableError(
            f"the model's tokenizer cannot represent {_differing(text, back)!r}: use chats that fit the model"
        )
    return (*ids, end_of_answer(tokenizer)) if ended else tuple(ids)


def end_of_answer(tokenizer: ChatTokenizer) -> int:
    """The token that the chat template writes after an answer or, if it writes none, the model's end of text.

    Raises ModelError where there is neither.
    """
    messages = [Message("user", "?"), Message("assistant", _PROBE)]
    tail = tokenizer.render(messages, generate=False).rpartition(_PROBE)[2].lstrip()
    ids = [*tokenizer.encode(tail)[:1], *tokenizer.eos_ids]
    end = next((token for token in ids if token in tokenizer.stop_ids), None)
    if end is None:
        raise ModelError("the model has no token that ends an answer: set eos_token_id in its config.json")
    return end


def _reserved(tokenizer: ChatTokenizer) -> list[str]:
    added = tokenizer.tokenizer.get_added_tokens_decoder().values()
    return [token.content for token in added if token.special]


def _plain(text: str) -> str:
    """The text without the differences that many tokenizers normalize away: letter forms and white space."""
    return "".join(unicodedata.normalize("NFKC", text).split())


def _differing(text: str, back: str) -> str:
    """The first word that was not decoded as it was."""
    return next((word for word in text.split() if _plain(word) not in _plain(back)), text[:40])


KeepRule: TypeAlias = Literal["chain", "task"]


class RejectReason(StrEnum):
    """Why a trajectory is not imitated."""

    FAILED = "the task failed"
    CHAIN = "an early task of the scenario failed"
    NO_CODE = "a turn had no code"
    CUT_OFF = "an answer was cut off"


class Selection(msgspec.Struct, frozen=True):
    kept: list[Episode]
    dropped: dict[str, int]  # by reason


def select(episodes: Sequence[Episode], rule: KeepRule = "chain") -> Selection:
    """The successes of one pass over a scenario in which every turn has code and was not cut off.

    Under "chain", as in SAGE (arXiv 2512.17102), only if at least the first two tasks succeeded.
    """
    early = [episode.verdict.success for episode in episodes[:_FIRST]]
    kept: list[Episode] = []
    dropped = Counter[str]()
    for episode in episodes:
        reason = _reject_reason(episode) or (RejectReason.CHAIN if rule == "chain" and not all(early) else None)
        if reason is None:
            kept.append(episode)
        else:
            dropped[reason.value] += 1
    return Selection(kept, dict(dropped))


def _reject_reason(episode: Episode) -> RejectReason | None:
    turns = episode.trajectory.turns
    if any(extract_code(turn.full_text) is None for turn in turns):
        return RejectReason.NO_CODE
    if any(turn.finish == "length" for turn in turns):
        return RejectReason.CUT_OFF
    return None if episode.verdict.success else RejectReason.FAILED


class CollectionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one scenario: a line of the journal."""

    index: int
    tried: int  # tasks
    dropped: dict[str, int]
    kept: list[str]  # lines of chats


class CollectionJournal:
    """The finished scenarios, on disk. `settings` are those of the collection: others are refused."""

    def __init__(self, out: Path, settings: dict[str, Json]) -> None:
        """Raises InvalidError where `out` exists, or its journal has other settings."""
        self.entries: dict[int, CollectionEntry] = {}
        self._out = out
        self._path = out.with_name(f"{out.name}.journal")
        if out.exists():
            raise InvalidError(f"{out} exists: name another file, or remove it")
        out.parent.mkdir(parents=True, exist_ok=True)
        content = self._path.read_bytes() if self._path.exists() else b""
        if b"\n" in content:
            self._read(content, settings)
        else:
            self._path.write_bytes(msgspec.json.encode(settings) + b"\n")

    def add(self, entry: CollectionEntry) -> None:
        """Append an entry. It is on disk when this returns."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")
        self.entries[entry.index] = entry

    def close(self) -> None:
        """Remove a journal without entries, so that the next collection may have other settings."""
        if not self.entries:
            self._path.unlink(missing_ok=True)

    def finish(self) -> CollectionEntry:
        """Write the chats in the order of the scenarios, and remove the journal. Returns the sum of all
        entries.
        """
        entries = [self.entries[index] for index in sorted(self.entries)]
        kept = [line for entry in entries for line in entry.kept]
        write_atomically("".join(kept).encode(), self._out)
        self._path.unlink()
        dropped = sum((Counter(entry.dropped) for entry in entries), Counter[str]())
        return CollectionEntry(
            index=0, tried=sum(entry.tried for entry in entries), dropped=dict(dropped), kept=kept
        )

    def _read(self, content: bytes, settings: dict[str, Json]) -> None:
        """Read the entries. A last line that was cut short by a crash or a full disk is removed."""
        whole = content[: content.rfind(b"\n") + 1]
        first, *lines = whole.splitlines()
        begun, given = msgspec.json.decode(first), msgspec.json.decode(msgspec.json.encode(settings))
        other = [f"{name}={begun.get(name)}" for name in given if begun.get(name) != given[name]]
        if other:
            raise InvalidError(
                f"{self._path} was begun with {', '.join(other)}: use the same, or remove it to start over"
            )
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        for line in lines:
            entry = msgspec.json.decode(line, type=CollectionEntry)
            self.entries[entry.index] = entry


Play = Callable[[Scenario, float], Awaitable[list[Episode]]]
"""One pass over the tasks of a scenario, at a temperature."""


@dataclass(frozen=True, kw_only=True)
class RejectionSampler:
    """Samples an expert at rising temperatures until a pass over a scenario leaves something to keep."""

    environment: Environment
    profile: Profile  # of the policy that will imitate
    play: Play
    temperatures: Sequence[float]  # in order
    rule: KeepRule
    source: str  # the expert's name, stored with each chat
    at_once: int = 8  # scenarios

    async def run(
        self, scenarios: Sequence[Scenario], journal: CollectionJournal, report: Callable[[], object]
    ) -> None:
        """Sample all scenarios that the journal does not hold yet; `report` is called for each.

        Raises the first EngineError or SandboxError; unfinished scenarios are then abandoned, finished ones kept.
        """
        slots = asyncio.Semaphore(self.at_once)

        async def sample(index: int, scenario: Scenario) -> None:
            async with slots:
                journal.add(await self._sample(index, scenario))
                report()

        try:
            async with asyncio.TaskGroup() as group:
                for index, scenario in enumerate(scenarios):
                    if index not in journal.entries:
                        group.create_task(sample(index, scenario))
        except* AppError as failures:
            raise failures.exceptions[0] from None

    async def _sample(self, index: int, scenario: Scenario) -> CollectionEntry:
        dropped, tried, kept = Counter[str](), 0, list[str]()
        for temperature in self.temperatures:
            try:
                episodes = await self.play(scenario, temperature)
            except UntokenizableError:
                tried, dropped = tried + 1, dropped + Counter({UNTOKENIZABLE: 1})
                continue
            selection = select(episodes, self.rule)
            tried, dropped = tried + len(episodes), dropped + Counter(selection.dropped)
            if selection.kept:
                records = [await self._record(scenario, each, temperature) for each in selection.kept]
                kept = [to_line(record).decode() for record in records]
                break
        return CollectionEntry(index=index, tried=tried, dropped=dict(dropped), kept=kept)

    async def _record(self, scenario: Scenario, episode: Episode, temperature: float) -> ChatRecord:
        trajectory = episode.trajectory
        async with self.environment.open(scenario, trajectory.task) as world:
            apps = listed_apps(with_builtins(world.catalog))
        opening = self.profile.opening(trajectory.task, trajectory.offered, apps)
        about: dict[str, Json] = {
            "template": scenario.template,
            "score": episode.verdict.fraction,
            "source": self.source,
            "temperature": temperature,
        }
        return record_of(trajectory, opening, about)


class CollectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to collect. One file never mixes chats of different settings."""

    expert: str  # a plug-in of the group `sage.experts`, with its options
    environment: str
    split: Split = "train"
    scenarios: int = 100
    seed: int = 0
    temperatures: tuple[float, ...] = (0.0,)
    keep: KeepRule = "chain"
    profile: str = ""  # of the policy that will imitate; "": the one its model card names


class ExpertAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How the expert is reached. It may differ between calls that collect into one file."""

    key: str = ""
    at_once: int = 8  # scenarios
    timeout: float = 120.0  # seconds per answer
    patience: float = 360.0  # seconds of retries while the expert is overloaded, slow or unreachable
    open_model: OpenModel | None = None  # that of a project, whose rules and whose account hold


async def collect(
    wanted: CollectionSettings,
    access: ExpertAccess,
    settings: Settings,
    out: Path,
    report: Callable[[int], object],
) -> CollectionEntry:
    """Collect into `out`, resuming from its journal after an interruption. Returns the sum over all scenarios.

    `report` is called with the number of scenarios finished since its last call. Raises InvalidError for settings
    that do not fit, EngineError where the expert does not answer.
    """
    tokenizer = ChatTokenizer.load(settings.model_dir, settings.template_kwargs)
    profile = choose_profile(wanted.profile or settings.prompt_profile, tokenizer.card)
    wanted = msgspec.structs.replace(wanted, profile=profile.name)
    environment = open_environment(wanted.environment)
    async with ForkedSandbox() as sandbox:
        context = ExpertContext(
            environment=environment,
            tokenizer=tokenizer,
            profile=profile,
            sandbox=sandbox,
            seed=wanted.seed,
            key=access.key,
            timeout=access.timeout,
            patience=access.patience,
            open_model=access.open_model,
        )
        async with open_expert(wanted.expert, context) as expert:
            scenarios = environment.scenarios(wanted.split, wanted.scenarios, wanted.seed)
            journal = CollectionJournal(out, msgspec.to_builtins(wanted))
            report(len(journal.entries))
            sampler = RejectionSampler(
                environment=environment,
                profile=profile,
                play=expert.play,
                temperatures=(0.0,) if expert.deterministic else wanted.temperatures,
                rule=wanted.keep,
                source=wanted.expert,
                at_once=access.at_once,
            )
            try:
                await sampler.run(scenarios, journal, lambda: report(1))
            finally:
                journal.close()
    return journal.finish()


@asynccontextmanager
async def load_expert(
    context: ExpertContext, *, url: str, model: str, max_tokens: Annotated[int, msgspec.Meta(ge=0)] = 1500
) -> AsyncIterator["ChatExpert"]:
    """The plug-in `chat`: an OpenAI-compatible endpoint, and the name of a model there.

    `max_tokens` is per turn; 0 leaves it to the endpoint.
    """
    opened: AbstractAsyncContextManager[ChatModel] = (
        OpenAiChatModel(
            url,
            model,
            key=context.key,
            timeout=context.timeout,
            patience=context.patience,
            remedies=REMEDIES,
        )
        if context.open_model is None
        else context.open_model()
    )
    async with opened as chat_model:
        yield ChatExpert(chat_model, model, context, max_tokens)


class DualFormatEngine:
    """An `Engine` and a `Profile` for one rollout, in two formats.

    The expert reads the `full` profile, because it was trained on no other; the trajectory holds the policy's
    profile, because that is what the policy will read.
    """

    def __init__(self, chat_model: ChatModel, tokenizer: ChatTokenizer, profile: Profile, max_tokens: int) -> None:
        self._chat_model, self._max_tokens, self._tokenizer = chat_model, max_tokens, tokenizer
        self._profile, self._full = profile, Full()
        self.name, self.stop_strings = profile.name, profile.stop_strings
        self.look_up_chars = profile.look_up_chars
        self._messages: list[Message] = []

    def opening(self, task: Task, offers: Sequence[Offer], apps: Sequence[ListedApp]) -> list[Message]:
        self._messages = self._full.opening(task, offers, apps)
        return self._profile.opening(task, offers, apps)

    def observation(self, observation: Observation) -> str:
        self._messages.append(Message("user", self._full.observation(observation)))
        return self._profile.observation(observation)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:  # noqa: ARG002
        """Send the messages so far to the expert. Raises UntokenizableError, also for what a filter withholds."""
        try:
            answer = await self._chat_model.answer(
                self._messages, max_tokens=self._max_tokens, temperature=sampling.temperature
            )
        except WithheldError as error:
            raise UntokenizableError(str(error)) from error
        text = after_thought(self._tokenizer.decode(prompt_ids), answer.text)
        ids = answer_ids(self._tokenizer, text, ended=answer.finish == "stop")
        self._messages.append(Message("assistant", answer.text))
        return Completion(ids, (0.0,) * len(ids), answer.finish)


@dataclass(frozen=True)
class ChatExpert:
    """Implements `Expert`."""

    chat_model: ChatModel
    model: str  # its name
    context: ExpertContext
    max_tokens: int = 0  # of a turn; 0 leaves it to the endpoint
    deterministic: bool = False

    async def play(self, scenario: Scenario, temperature: float) -> list[Episode]:
        context, library, episodes = self.context, InMemoryLibrary(), []
        for task in scenario.tasks:
            offers = await library.find(task.instruction, scenario.id)
            dual = DualFormatEngine(self.chat_model, context.tokenizer, context.profile, self.max_tokens)
            agent = Agent(dual, context.tokenizer, dual, context.sandbox, LIMITS, temperature)
            episode_runner = EpisodeRunner(agent, context.environment, Policy(self.model))
            episodes.append(await episode_runner.run_task(scenario, task, library, offers))
        return episodes
