"""An exam without a server: the real seed policy, a real adapter, real worlds."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.cli import main
from app.errors import InvalidError
from app.settings import Settings
from tests.tiny_adapter import make_adapter
from trainer.evaluation.metrics import measure
from trainer.evaluation.session import HomeExam, take_seat

EXAM = HomeExam(environment="office", scenarios=2, split="train")


def settings(directory: Path) -> Settings:
    return Settings(data_dir=directory, engine_device="cpu", max_turns=6)


async def test_the_base_model_sits_with_and_without_a_library(tmp_path: Path) -> None:
    done: list[int] = []
    async with take_seat(EXAM, settings(tmp_path)) as seat:
        with_library = await seat.sit(0, library=True, report=done.append)
        without = await seat.sit(0, library=False, report=done.append)
    assert done == [0, 3, 3, 0, 3, 3]
    assert {each.scenario for each in with_library} == {each.scenario for each in without}
    assert measure(with_library).library_size is not None
    assert measure(without).library_size is None
    assert {each.offered for each in without} == {0}


async def test_an_adapter_is_found_by_its_hash_and_is_what_answers(tmp_path: Path) -> None:
    here = settings(tmp_path)
    make_adapter(here.model_dir, tmp_path / "adapters" / "spoilt", seed=1)
    exam = msgspec.structs.replace(EXAM, adapter="spoilt", scenarios=1, chain=1)
    async with take_seat(exam, here) as seat:
        results = await seat.sit(0, library=True, report=lambda _: None)
    assert len(results) == 1
    assert not results[0].success  # random weights


async def test_an_adapter_that_is_nowhere_is_named(tmp_path: Path) -> None:
    exam = msgspec.structs.replace(EXAM, adapter="gone")
    with pytest.raises(InvalidError, match=f"there is no adapter in gone or {tmp_path}/adapters/gone"):
        async with take_seat(exam, settings(tmp_path)):
            pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give --key, an admin key of the server"),
        (["--adapter", "gone"], "there is no adapter in gone"),
        (["--in-process", "--environment", "mars"], "no environment is called 'mars'"),
    ],
)
def test_the_command_says_what_is_missing(options: list[str], said: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["eval", *options], env={"SAGE_DATA_DIR": str(tmp_path), "KEY": ""})
    assert ended.exit_code != 0
    assert said in ended.output
