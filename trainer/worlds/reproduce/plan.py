"""The conditions of the experiment and their trials. Pure.

Every condition gets the same number of steps, rollouts and learning rates to choose from, on the validation
templates with the first seed. All conditions of one seed are evaluated on the same scenarios.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from app.agent.rollout import RolloutLimits
from app.base.model_catalog import SEED
from app.base.run_settings import RunKind, RunSettings
from trainer.worlds.office.expert import Faults
from trainer.worlds.recipes import HELD_OUT

_OF_THE_PAPER = "skill"  # reward


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """A trained row of the table."""

    name: str
    seeds: int
    settings: RunSettings
    sft: bool = True  # start from the supervised adapter; False: from the base model
    retrieval: str = "scenario"  # of skills; chains are of one scenario in any case
    crowded: bool = False  # offer skills of other scenarios, too; not so in the paper
    named: bool = False  # run only if `only` names it


class Trial(msgspec.Struct, frozen=True):
    """One training run of a condition."""

    condition: str
    seed: int
    lr: float

    @property
    def name(self) -> str:
        return f"{self.condition}-{self.seed}-{self.lr:g}"


class ExperimentPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole experiment. Different plans share no results."""

    model: str = SEED  # or a name of `sage models list`, or a directory
    adapter: str = ""  # content hash of the supervised start; empty: it is trained on demonstrations
    profile: str = ""  # of the prompt, where it is not the model's own
    environment: str = "office?busy=0.35"  # of training and validation
    exams: dict[str, str] = {}  # environments of the test splits by title; empty: the same environment
    limits: RolloutLimits = RolloutLimits(
        turns=3, task_tokens=130
    )  # one attempt from scratch, or three uses of a skill
    demonstrated: int = 200  # scenarios that the expert demonstrates for the supervised start
    crowded: float = 0.0  # share of the demonstrations in which unfitting skills are offered, too
    faults: Faults = Faults(unprepared=0.04, page=0.04, synonym=0.02, inline=0.05, ignore=0.45, trust=1.0)
    micro_batch_tokens: int = 4096
    sft: RunSettings = RunSettings(
        kind=RunKind.SFT, steps=100, lr=1e-3, micro_batch_tokens=4096, reward=_OF_THE_PAPER
    )
    steps: int = 16
    pairs: int = 6
    group: int = 8
    lrs: tuple[float, ...] = (3e-4, 6e-4)
    validate_every: int = 4  # steps; the best validated step is kept
    validation: int = 50  # scenarios
    exam: int = 100  # scenarios of the test templates, for each seed
    seeds: int = 5  # of the main rows
    ablation_seeds: int = 3
    only: tuple[str, ...] = ()  # conditions; empty: all

    @property
    def exam_titles(self) -> list[str]:
        """One without a title where the plan names none."""
        return list(self.exams) or [""]

    @property
    def conditions(self) -> dict[str, Condition]:
        """Those to run."""
        return {
            each.name: each
            for each in self._conditions()
            if (each.name in self.only if self.only else not each.named)
        }

    def condition(self, name: str) -> Condition:
        """Also one that `only` leaves out: the plan on disk is the first call's."""
        return next(each for each in self._conditions() if each.name == name)

    def _conditions(self) -> Iterator[Condition]:
        main, few = self.seeds, self.ablation_seeds
        yield Condition(name="sft_grpo", seeds=main, settings=self._settings(skills=False, reward="outcome"))
        yield Condition(name="sage", seeds=main, settings=self._settings())
        yield Condition(name="sage_outcome", seeds=main, settings=self._settings(reward="outcome"))
        yield Condition(name="sage_chain", seeds=main, settings=self._settings(reward="chain"))
        yield Condition(name="sage_crowded", seeds=few, settings=self._settings(), crowded=True)
        value = self._settings(reward="skill_value")
        yield Condition(name="sage_value", seeds=few, settings=value, crowded=True)
        yield Condition(name="sage_no_sft", seeds=few, settings=self._settings(), sft=False)
        for mode in RETRIEVALS:
            yield Condition(name=f"retrieval_{mode}", seeds=few, settings=self._settings(), retrieval=mode)
        same = max(1, self.pairs * 2 // 3)  # with three tasks per chain, as many rollouts
        yield Condition(name="chain_3", seeds=few, settings=self._settings(chain=3, pairs=same))
        for name, memory in MEMORIES.items():
            remembers = self._settings(skills=False, reward="chain", memory=memory)
            yield Condition(name=name, seeds=few, settings=remembers, named=True)
        after = self._settings(reward="chain", extraction="post_hoc")
        yield Condition(name="post_hoc", seeds=few, settings=after, retrieval="query_embedding", named=True)

    def _settings(self, **changes: object) -> RunSettings:
        common: dict[str, object] = {
            "kind": RunKind.ROLLOUT,
            "steps": self.steps,
            "pairs": self.pairs,
            "group": self.group,
            "max_kl": 0.0,  # as in the paper
            "reward": _OF_THE_PAPER,
            "micro_batch_tokens": self.micro_batch_tokens,
        }
        return msgspec.convert(common | changes, RunSettings)

    def settings(self, trial: Trial) -> RunSettings:
        own = self.condition(trial.condition).settings
        return msgspec.structs.replace(own, seed=trial.seed, lr=trial.lr)


PRETRAINED = ExperimentPlan(
    # The office as the adapter learned it: in free wording, with names of many.
    environment="trainer.worlds.mixed:load_environment?of=gym,crud,office%3Fnames%3Dvaried%26wording%3Dfree",
    exams=HELD_OUT,
    limits=RolloutLimits(turns=8, task_tokens=1024),  # twice the turns that a task needs
    steps=16,
    pairs=16,
    lrs=(1e-4,),
    micro_batch_tokens=16_384,
    exam=50,
    seeds=3,
    only=("sft_grpo", "sage", "sage_outcome"),
)
"""For pretrained models, which start from an adapter; its model and adapter are still to be set."""


RETRIEVALS = ("query_ngram", "query_embedding", "skill_embedding")
"""Compared with retrieval by scenario, which `sage` uses."""


MEMORIES = {
    "workflows": "workflows",  # Agent Workflow Memory
    "workflows_by_rule": "workflows?writer=rule",
    "insights": "insights",  # ExpeL
    "playbook": "playbook",  # ACE
}
"""Baselines that remember text instead of skills. The one that remembers skills is `post_hoc`, after Voyager."""


_IN_CROWD = "_in_crowd"


def baseline_rows(plan: ExperimentPlan) -> tuple[str, ...]:
    """The rows without reinforcement learning: the base model and the supervised start."""
    rows = ("prompt_only", "sft", "sft_skills_off")
    return rows if plan.exams else (*rows, "sft" + _IN_CROWD)


def evaluated_rows(plan: ExperimentPlan, condition: str) -> tuple[str, ...]:
    """The rows that one evaluation of a condition writes: for SAGE also one with skills off, and in the office one
    with unfitting skills beside those that are found.
    """
    off = ("sage_skills_off",) if condition == "sage" else ()
    in_crowd = condition in ("sage", "sage_crowded", "sage_value") and not plan.exams
    return (condition, *off, *((condition + _IN_CROWD,) if in_crowd else ()))


def condition_of(row: str) -> str:
    """The condition whose evaluation writes the row.

    >>> condition_of("sage_value_in_crowd")
    'sage_value'
    """
    return "sage" if row == "sage_skills_off" else row.removesuffix(_IN_CROWD)


def search_trials(plan: ExperimentPlan) -> list[Trial]:
    """The trials that determine each condition's learning rate."""
    return [Trial(name, 0, lr) for name in plan.conditions for lr in plan.lrs]


def repeated_trials(plan: ExperimentPlan, lrs: dict[str, float]) -> list[Trial]:
    """The remaining seeds, seed by seed, of each condition with a chosen learning rate."""
    return [
        Trial(name, seed, lrs[name])
        for seed in range(1, plan.seeds)
        for name, condition in plan.conditions.items()
        if name in lrs and seed < condition.seeds
    ]


def conflicting_values(work: Path, plan: ExperimentPlan) -> str | None:
    """None if `work` is new or has this plan, for any conditions; otherwise its values that differ."""
    path = work / "plan.json"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)) + b"\n")
        return None
    whole = msgspec.to_builtins(ExperimentPlan())  # a value that older experiments lack is the default
    begun, now = whole | msgspec.json.decode(path.read_bytes()), msgspec.json.decode(msgspec.json.encode(plan))
    other = [f"{name}={begun.get(name)}" for name in now if name != "only" and begun.get(name) != now[name]]
    return ", ".join(other) or None
