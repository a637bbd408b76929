"""The card of a pretrained model's adapter: its data, training, figures and origin. Pure."""

from collections.abc import Sequence

import msgspec

from trainer.evaluation.metrics_table import metrics_table
from trainer.evaluation.policy_metrics import PolicyMetrics
from trainer.worlds.base_adapter.adapter_recipe import AdapterRecipe
from trainer.worlds.base_adapter.learning_curve import CurvePoint

_TEXT = """---
base_model: {model}
license: apache-2.0
library_name: peft
prompt_profile: {profile}
tags: [agent, code, lora]
---
# Adapter for {model}

LoRA of rank {rank} on all linear layers, in bfloat16, content hash `{hash}`. It learned from {examples:,} examples
({tokens:,} tokens, {learned:,} of them answers) of {demonstrations:,} demonstrations of experts. Each was executed
and judged right. The scenarios below are of other splits.

Built with `{command}` at commit {commit}, by {processes} processes in {cost}.

{start}Recipe: `{recipe}`

## Data

{data}

## Learning curve

{curve}

## Evaluation

Held-out scenarios, greedy decoding; `base` is the model without the adapter. Intervals are 95 %, by bootstrap over
scenarios, and exact where all or none were solved. TGC: tasks solved. SGC: scenarios with all tasks solved.

{figures}
"""

_CURVE = ["step", "examples", "tokens", "learned", "CPU minutes", "loss", "held-out loss", "TGC on validation, %"]
_START = """It went on from the adapter `{hash}`, the directory after `--start`: without it, the command does not
make this adapter again.

"""


class AdapterOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """How the adapter was built."""

    command: str
    commit: str
    processes: int
    hash: str
    demonstrations: dict[str, int]  # by part of the mix
    dropped: dict[str, int]  # demonstrations that the model cannot read, by reason
    recipe: AdapterRecipe


def adapter_card(
    origin: AdapterOrigin, curve: Sequence[CurvePoint], figures: dict[str, dict[str, PolicyMetrics]]
) -> str:
    """`figures` are columns of metrics by the title of their exam."""
    recipe, last = origin.recipe, curve[-1]
    return _TEXT.format(
        model=recipe.model,
        profile=recipe.profile,
        rank=recipe.rank,
        hash=origin.hash,
        demonstrations=sum(origin.demonstrations.values()),
        examples=last.examples,
        tokens=last.tokens,
        learned=last.learned_tokens,
        command=origin.command,
        commit=origin.commit,
        processes=origin.processes,
        cost=f"{last.cpu_minutes:.0f} CPU minutes of training" + (last.device and f", each on {last.device}"),
        start=_START.format(hash=recipe.start) if recipe.start else "",
        recipe=msgspec.json.encode(recipe).decode(),
        data=_data(origin),
        curve=_curve(curve),
        figures="\n\n".join(f"### {title}\n\n{metrics_table(each)}" for title, each in figures.items()),
    )


def _data(origin: AdapterOrigin) -> str:
    rows = [
        f"| {part.name} | {part.environment} | `{part.expert}` | {part.share:.0%} "
        f"| {origin.demonstrations.get(part.name, 0):,} |"
        for part in origin.recipe.mix
    ]
    dropped = [f"\nLeft out {count:,}: {reason}." for reason, count in origin.dropped.items()]
    head = "| part | environment | expert | share of scenarios | demonstrations |"
    return "\n".join([head, "|---|---|---|---|---|", *rows, *dropped])


def _curve(curve: Sequence[CurvePoint]) -> str:
    """Without the last column where no exam was run on the way."""
    rows = [
        [
            f"{each.step}",
            f"{each.examples:,}",
            f"{each.tokens:,}",
            f"{each.learned_tokens:,}",
            f"{each.cpu_minutes:.1f}",
            f"{each.loss:.4f}",
            f"{each.held_out_loss:.4f}",
            _tgc(each),
        ]
        for each in curve
    ]
    shown = len(_CURVE) if any(each.exams for each in curve) else len(_CURVE) - 1
    return "\n".join(f"| {' | '.join(row[:shown])} |" for row in [_CURVE, ["---"] * len(_CURVE), *rows])


def _tgc(point: CurvePoint) -> str:
    shares = [
        f"{title} {each.tgc.mean:.0f} [{each.tgc.low:.0f}, {each.tgc.high:.0f}]"
        for title, each in point.exams.items()
    ]
    return ", ".join(shares)
