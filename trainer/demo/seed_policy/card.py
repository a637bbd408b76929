"""The model card: what the seed policy is, how it was made, and what it can do. Pure."""

import json

import msgspec

from trainer.demo.seed_policy.pretrain import Record
from trainer.demo.seed_policy.recipe import Recipe
from trainer.evaluation.metrics_table import metrics_table
from trainer.evaluation.policy_metrics import PolicyMetrics

_TEXT = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
prompt_profile: compact
tags: [agent, code, practice-world]
---
# Seed policy

A {parameters:,}-parameter Qwen2, written down as a Llama of the same function so that AutoTokenizer and vLLM keep
its tokenizer. It works in the bundled practice world (`trainer/environments/office`) and knows nothing else: its
vocabulary is that world's words. It was taught from nothing on {demonstrations:,}
demonstrations of the scripted expert, all of which had passed every check of the verifier. It is the start that
reinforcement learning improves on, and what answers where no other model is named.

Made with `{command}` on {machine}, in {minutes:.0f} minutes of training.

Recipe: `{recipe}`

Held-out scenarios of the test templates, greedy decoding:

{figures}

Intervals are 95 %, by bootstrap over scenarios. TGC: tasks solved. SGC: scenarios with all three tasks solved.
"""


class Making(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy came about."""

    command: str
    training: Record
    demonstrations: int
    recipe: Recipe


def card(making: Making, with_library: PolicyMetrics, without: PolicyMetrics) -> str:
    facts = msgspec.structs.asdict(making) | {
        "parameters": making.training.parameters,
        "minutes": making.training.seconds / 60,
        "machine": making.training.machine,
        "recipe": json.dumps(msgspec.to_builtins(making.recipe)),
        "figures": metrics_table({"with its library": with_library, "without": without}),
    }
    return _TEXT.format(**facts)
