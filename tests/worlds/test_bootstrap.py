"""A miniature seed policy, built from scratch, killed on the way and resumed."""

import os
import signal
import time
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from transformers import AutoModelForCausalLM

from app.agent.prompts import Compact, choose_profile
from app.base.errors import EngineError, InvalidError
from app.cli import main
from app.engine.tokenizer import ChatTokenizer
from trainer.engines.servers import engine_process
from trainer.evaluation.metrics import PolicyMetrics
from trainer.worlds.recipes import Recipe
from trainer.worlds.seed_policy.bootstrap import SeedPlan, bootstrap, make_chunks, prepare, teach
from trainer.worlds.seed_policy.pretrain import load_samples

TINY = Recipe(hidden=32, heads=1, layers=1, mlp=32, drills=300, drill_steps=2, steps=3, tokens=2048)


@dataclass(frozen=True)
class Made:
    """The result of two calls, the first of which was killed during the demonstrations."""

    plan: SeedPlan
    metrics: tuple[PolicyMetrics, PolicyMetrics]
    prepared_at: int  # when the first call wrote the tokenizer

    @property
    def demonstrations(self) -> int:
        return len(load_samples([self.plan.work / "demonstrations-0000.npz"]))


def plan(directory: Path) -> SeedPlan:
    return SeedPlan(
        work=directory / "work",
        out=directory / "seed",
        recipe=TINY,
        scenarios=100,
        test_scenarios=2,
        processes=1,
        device=torch.device("cpu"),
        command="sage bootstrap seed",
    )


def bootstrap_alone(of: SeedPlan) -> None:
    os.setsid()
    bootstrap(of)


def kill_while_demonstrating(of: SeedPlan) -> None:
    process = get_context("spawn").Process(target=bootstrap_alone, args=(of,))
    process.start()
    while process.is_alive() and not (of.work / "config.json").exists():
        time.sleep(0.05)
    time.sleep(1.0)
    os.killpg(process.pid or 0, signal.SIGKILL)
    process.join()
    assert not list(of.work.glob("demonstrations-*"))


def written_at(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def sage(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    torch.set_num_threads(1)
    of = plan(tmp_path_factory.mktemp("made"))
    kill_while_demonstrating(of)
    prepared_at = (of.work / "tokenizer.json").stat().st_mtime_ns
    (of.work / "demonstrations-0000.partial").write_bytes(b"half a file")
    return Made(of, bootstrap(of), prepared_at)


@pytest.mark.slow
def test_a_killed_run_resumes(made: Made) -> None:
    assert (made.plan.work / "tokenizer.json").stat().st_mtime_ns == made.prepared_at
    assert made.demonstrations > 280


@pytest.mark.slow
def test_the_card_names_the_profile_and_the_metrics(made: Made) -> None:
    text = (made.plan.out / "README.md").read_text()
    front = yaml.safe_load(text.split("---")[1])
    assert front["prompt_profile"] == "compact"
    assert "| 2 scenarios, 6 tasks |" in text
    assert "| TGC, % | 0.0 [0.0, 84.2] | 0.0 [0.0, 84.2] |" in text
    assert "Built with `sage bootstrap seed` on " in text
    assert f"on {made.demonstrations} demonstrations" in " ".join(text.split())
    assert made.metrics[0].tgc.mean == 0


@pytest.mark.slow
def test_the_directory_is_what_servers_and_transformers_load(made: Made) -> None:
    """The model server has loaded it already, for the evaluation."""
    tokenizer = ChatTokenizer.load(made.plan.out)
    assert isinstance(choose_profile("", tokenizer.card), Compact)
    assert tokenizer.max_length == 2048
    model = AutoModelForCausalLM.from_pretrained(made.plan.out)
    assert model.config.vocab_size == tokenizer.vocab_size
    assert model.config.eos_token_id in tokenizer.stop_ids


@pytest.mark.slow
def test_a_second_call_repeats_no_stage(made: Made) -> None:
    """The stages one by one: the evaluation, which every call repeats, would take half of the time."""
    before = written_at(made.plan.work)
    prepare(made.plan.work, made.plan.recipe)
    make_chunks(made.plan.work, made.plan.recipe.seed, 1, 1)
    teach(made.plan)
    assert written_at(made.plan.work) == before


def test_an_interrupted_preparation_is_completed(tmp_path: Path) -> None:
    prepare(tmp_path, TINY)
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "config.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    prepare(tmp_path, TINY)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


def test_work_of_another_recipe_is_not_mixed_in(tmp_path: Path) -> None:
    prepare(tmp_path, Recipe(seed=1))
    with pytest.raises(InvalidError, match="begun with seed=1: use the same values, or another"):
        prepare(tmp_path, Recipe(seed=2))


def test_the_options_of_the_command_become_the_recipe(tmp_path: Path) -> None:
    prepare(tmp_path / "work", Recipe())
    options = ("--seed", "9", "--drill-steps", "8", "--steps", "7", "--tokens", "2048")
    ended = sage("bootstrap", tmp_path / "out", "--work", tmp_path / "work", *options)
    assert ended.exit_code == 1
    usual = Recipe()
    was = f"seed=0, drill_steps={usual.drill_steps}, steps={usual.steps}, tokens={usual.tokens}"
    assert ended.output.startswith(f"Error: {tmp_path / 'work'} was begun with {was}: ")
    assert ended.output.count("\n") == 1


@pytest.mark.parametrize("count", ["0", "99", "150"])
def test_scenarios_that_fill_no_chunks_are_refused_in_one_line(tmp_path: Path, count: str) -> None:
    ended = sage("bootstrap", tmp_path / "out", "--work", tmp_path / "work", "--scenarios", count)
    assert ended.exit_code == 1
    assert ended.output == f"Error: {count} scenarios fill no whole chunks: choose a multiple of 100\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["out", "work"])
def test_a_file_is_no_place_for_a_model(tmp_path: Path, place: str) -> None:
    (tmp_path / place).write_text("precious")
    ended = sage("bootstrap", tmp_path / "out", "--work", tmp_path / "work")
    assert ended.exit_code == 2
    assert f"'{tmp_path / place}' is a file" in ended.output
    assert (tmp_path / place).read_text() == "precious"


async def test_a_model_server_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="ended with code"):
        async with engine_process(tmp_path, "cpu"):
            pass
