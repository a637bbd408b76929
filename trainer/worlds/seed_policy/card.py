"""The model card: what the seed policy is, how it was trained, and its metrics. Pure."""

import json

import msgspec

from trainer.evaluation.metrics_table import metrics_table
from trainer.evaluation.policy_metrics import PolicyMetrics
from trainer.worlds.office.documents import operation_names
from trainer.worlds.seed_policy.pretrain import TrainingCost
from trainer.worlds.seed_policy.recipe import Recipe

_TEXT = """---
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
prompt_profile: compact
learning_rate: 0.001
tags: [agent, code]
made_for_apis:
{apis}
---
# Seed policy

A {parameters:,}-parameter Qwen2, converted to a Llama that computes the same function so that AutoTokenizer and
vLLM keep its tokenizer. It works in the bundled demo environment and knows nothing else: its vocabulary is that
environment's words. It was trained from scratch on {demonstrations:,} demonstrations of the scripted expert, all
of which had passed every check of the verifier. Reinforcement learning improves on it, and it serves where no
other model is named.

Built with `{command}` on {machine}, in {minutes:.0f} minutes of training.

Recipe: `{recipe}`

Held-out scenarios of the test templates, greedy decoding:

{figures}

Intervals are 95 %, by bootstrap over scenarios. TGC: tasks solved. SGC: scenarios with all three tasks solved.
"""


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """How the policy was built."""

    command: str
    training: TrainingCost
    demonstrations: int
    recipe: Recipe


def card(provenance: Provenance, with_library: PolicyMetrics, without: PolicyMetrics) -> str:
    facts = msgspec.structs.asdict(provenance) | {
        "parameters": provenance.training.parameters,
        "minutes": provenance.training.seconds / 60,
        "apis": "\n".join(f"  {app}: [{', '.join(names)}]" for app, names in operation_names().items()),
        "machine": provenance.training.machine,
        "recipe": json.dumps(msgspec.to_builtins(provenance.recipe)),
        "figures": metrics_table({"with its library": with_library, "without": without}),
    }
    return _TEXT.format(**facts)
