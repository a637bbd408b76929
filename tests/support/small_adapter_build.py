"""The build of an adapter for a random model of a few thousand weights, in seconds."""

import json
from pathlib import Path

import msgspec

from app.base.model_catalog import SEED
from app.base.settings import Settings
from tests.support.tiny_model import make_model_dir
from trainer.worlds.base_adapter.bootstrap import AdapterPlan, new_recipe
from trainer.worlds.recipes import AdapterRecipe, MixPart, with_settings

CONTEXT = 8192  # tokens: a byte each
MIX = (
    MixPart(name="gym", share=0.5, environment="gym", expert="gym?mistake=0.5"),
    MixPart(
        name="office",
        share=0.5,
        environment="office?names=varied&wording=free",
        expert="scripted?inline=0.5&withheld=1",
    ),
)


def small_model(path: Path) -> Path:
    """Weights as in `make_model_dir`, with room for a demonstration."""
    make_model_dir(path, "llama")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return path


def small_recipe(model: Path) -> AdapterRecipe:
    sizes = {"scenarios": 2, "held_out_scenarios": 2, "steps": 4, "tokens": 16_384, "rank": 2, "alpha": 4}
    sizes |= {"report_every": 2, "exam_every": 2, "exam_scenarios": 1, "warmup": 1}
    recipe = with_settings(new_recipe(str(model), model), [f"{name}={value}" for name, value in sizes.items()])
    return msgspec.structs.replace(recipe, mix=MIX)


def small_plan(directory: Path, model: Path, processes: int = 1) -> AdapterPlan:
    return AdapterPlan(
        work=directory / "work",
        out=directory / "out",
        model_dir=model,
        recipe=small_recipe(model),
        test_scenarios=1,
        processes=processes,
        device="cpu",
        command="sage bootstrap --model small out",
        commit="0123abc",
        settings=Settings(model=SEED, data_dir=directory, max_turns=1, max_turn_tokens=8),
        exams={"gym, unseen domains": "gym?held_out=domains"},  # each starts two model servers
    )
