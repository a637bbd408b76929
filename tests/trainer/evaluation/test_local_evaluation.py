"""Evaluation without a server: the real seed policy, a real adapter, real worlds."""

import json
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.base.errors import InvalidError, SettingError
from app.base.model_catalog import CATALOG, DEFAULT_MODEL, SEED
from app.base.settings import Settings
from app.base.values import Stop
from app.cli import main
from app.engine.client import HttpEngine
from app.releases.bundled_adapter import BUNDLED
from tests.support.engine_process import engine_process
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir
from trainer.commands import served_adapter
from trainer.engines.embedded import EnginePool
from trainer.environment import open_environment
from trainer.evaluation.local import LocalEvaluation, open_local_evaluation
from trainer.evaluation.metrics import measure
from trainer.rollouts.episode import open_stack

COMES_WITH_ONE = CATALOG[DEFAULT_MODEL]
EVALUATION = LocalEvaluation(environment="office", scenarios=2, split="train")


def settings(directory: Path) -> Settings:
    return Settings(model=SEED, data_dir=directory, engine_device="cpu", max_turns=6)


async def test_the_base_model_is_evaluated_with_and_without_a_library(tmp_path: Path) -> None:
    done: list[int] = []
    async with open_local_evaluation(EVALUATION, settings(tmp_path)) as evaluate:
        with_library = await evaluate(0, True, done.append)
        without = await evaluate(0, False, done.append)
    assert done == [0, 3, 3, 0, 3, 3]
    assert {each.scenario for each in with_library} == {each.scenario for each in without}
    assert measure(with_library).library_size is not None
    assert measure(without).library_size is None
    assert {each.offered for each in without} == {0}


async def test_an_adapter_is_found_by_its_hash_and_generates_the_answers(tmp_path: Path) -> None:
    here = settings(tmp_path)
    make_adapter(here.model_dir, tmp_path / "adapters" / "spoilt", seed=1)
    evaluation = msgspec.structs.replace(EVALUATION, adapter="spoilt", scenarios=1, chain=1)
    async with open_local_evaluation(evaluation, here) as evaluate:
        results = await evaluate(0, True, lambda _: None)
    assert len(results) == 1
    assert not results[0].success  # random weights


async def test_an_adapter_has_the_prompt_of_its_card_unless_one_is_set(tmp_path: Path) -> None:
    here = settings(tmp_path)
    adapter = make_adapter(here.model_dir, tmp_path / "adapter", seed=1)
    (adapter / "README.md").write_text("---\nprompt_profile: verse\n---\n")
    evaluation = msgspec.structs.replace(EVALUATION, adapter=str(adapter))
    with pytest.raises(SettingError, match="no prompt profile is named 'verse'"):
        async with open_local_evaluation(evaluation, here):
            pass
    async with open_local_evaluation(evaluation, msgspec.structs.replace(here, prompt_profile="compact")):
        pass


@pytest.mark.parametrize(
    ("given", "directory", "adapter"),
    [
        ("", COMES_WITH_ONE.directory, str(BUNDLED / COMES_WITH_ONE.name)),
        ("none", COMES_WITH_ONE.directory, ""),
        ("another", COMES_WITH_ONE.directory, "another"),
        ("", "a-model-without", ""),
    ],
)
def test_a_model_is_evaluated_with_the_adapter_that_comes_with_it(
    given: str, directory: str, adapter: str
) -> None:
    assert served_adapter(given, Path("models", directory)) == adapter


async def test_a_missing_adapter_is_named(tmp_path: Path) -> None:
    evaluation = msgspec.structs.replace(EVALUATION, adapter="gone")
    with pytest.raises(InvalidError, match=f"no adapter in gone or {tmp_path}/adapters/gone"):
        async with open_local_evaluation(evaluation, settings(tmp_path)):
            pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "set SAGE_KEY to an admin key"),
        (["--adapter", "gone"], "no adapter in gone"),
        (["--in-process", "--environment", "mars"], "sage.environments has no 'mars'"),
    ],
)
def test_the_command_says_what_is_missing(options: list[str], message: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["eval", *options], env={"SAGE_DATA_DIR": str(tmp_path), "KEY": ""})
    assert ended.exit_code != 0
    assert message in ended.output


@pytest.mark.parametrize("own", [True, False])
async def test_a_cache_smaller_than_the_context_ends_rollouts_as_full(tmp_path: Path, own: bool) -> None:
    """Of engines of its own, or of a model server."""
    model = make_model_dir(tmp_path / "model")
    config = json.loads((model / "config.json").read_text("utf-8"))
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1 << 20}), "utf-8")
    here = Settings(model=str(model), data_dir=tmp_path, engine_device="cpu", engine_kv_mb=1, train_processes=2)
    with ExitStack() as stack:
        if not own:
            url = stack.enter_context(engine_process(model, "--kv-mb", "1", "--embeddings", "none"))
            here = msgspec.structs.replace(here, rollout_engine_urls=url)
        await _fill_context(here)


async def _fill_context(here: Settings) -> None:
    evaluation = LocalEvaluation(environment="office", scenarios=1)
    async with open_stack(open_environment("office"), "scenario", here) as stack:
        assert isinstance(stack.engine, HttpEngine if here.rollout_engine_urls else EnginePool)
        assert 1000 < stack.agent.max_length < 1400
    async with open_local_evaluation(evaluation, here) as evaluate:
        results = await evaluate(1, False, lambda _: None)
    assert {result.stop for result in results} == {Stop.CONTEXT_FULL}
