"""Evaluation without a server: the real seed policy, a real adapter, real worlds."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.cli import main
from app.errors import InvalidError
from app.model_catalog import SEED
from app.settings import Settings
from tests.tiny_adapter import make_adapter
from trainer.evaluation.local_session import LocalEvaluation, open_local_evaluation
from trainer.evaluation.policy_metrics import measure

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
