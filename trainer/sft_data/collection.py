"""Collect demonstrations of an expert in an environment, and write the good ones to a file of chats."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from app.agent.prompt_profiles import choose_profile
from app.engine.tokenizer import ChatTokenizer
from app.sandbox.forked_sandbox import ForkedSandbox
from app.settings import Settings
from trainer.environment import Split, open_environment
from trainer.rollouts.expert import ExpertContext, OpenModel, open_expert
from trainer.sft_data.collection_journal import CollectionEntry, CollectionJournal
from trainer.sft_data.rejection_sampling import RejectionSampler
from trainer.sft_data.selection import KeepRule


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
