"""The recipe of an adapter: its mix, its settings, and the files of demonstrations that follow from them."""

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from app.base.errors import InvalidError
from app.cli import main
from tests.support.small_adapter_build import small_model
from trainer.worlds.base_adapter.bootstrap import new_recipe
from trainer.worlds.base_adapter.training import plan_files
from trainer.worlds.recipes import (
    MIX,
    AdapterRecipe,
    MixPart,
    Recipe,
    check_recipe,
    claim_directory,
    divide_scenarios,
    with_settings,
)

RECIPE = AdapterRecipe(model="small", base="0")


def test_the_parts_of_a_mix_get_whole_scenarios_that_add_up() -> None:
    for total in (1, 7, 10, 99, 2000):
        assert sum(divide_scenarios(total, MIX)) == total
    assert divide_scenarios(2000, MIX) == [520, 240, 140, 380, 180, 140, 200, 120, 80]


def test_a_setting_is_read_as_its_type_and_the_mix_as_json() -> None:
    mix = '[{"name": "all", "share": 1, "environment": "office", "expert": "scripted"}]'
    changed = with_settings(RECIPE, ["lr=5e-4", "steps=7", f"mix={mix}"])
    part = MixPart(name="all", share=1.0, environment="office", expert="scripted")
    assert changed == msgspec.structs.replace(RECIPE, lr=5e-4, steps=7, mix=(part,))


@pytest.mark.parametrize(
    "given", ["lr", "speed=3", "base=1", "steps=0", "lr=fast", "lr=nan", "lr=0", "mix=[", "mix=[1]"]
)
def test_a_setting_that_does_not_fit_is_refused(given: str) -> None:
    with pytest.raises(InvalidError):
        with_settings(RECIPE, [given])


def test_a_mix_that_is_no_whole_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"add up to 0\.38"):
        check_recipe(msgspec.structs.replace(RECIPE, mix=MIX[:2]))
    half = MixPart(name="half", share=0.5, environment="office", expert="scripted")
    with pytest.raises(InvalidError, match="the same name"):
        check_recipe(msgspec.structs.replace(RECIPE, mix=(half, half)))


def test_exams_between_points_of_the_curve_are_refused() -> None:
    with pytest.raises(InvalidError, match="exam_every=30 is no multiple of report_every=25"):
        check_recipe(msgspec.structs.replace(RECIPE, exam_every=30))


def test_the_files_hold_all_scenarios_and_no_two_share_a_seed_of_their_environment(tmp_path: Path) -> None:
    for seed in (0, 1):
        files = plan_files(msgspec.structs.replace(RECIPE, seed=seed, scenarios=333), tmp_path, "train")
        assert sum(each.scenarios for each in files) == 333
        assert len({each.path for each in files}) == len(files)
        assert len({(each.part.environment, each.seed) for each in files}) == len(files)
    seeds = [
        {each.seed for each in plan_files(msgspec.structs.replace(RECIPE, seed=seed), tmp_path, "train")}
        for seed in (0, 1)
    ]
    assert not seeds[0] & seeds[1]


def test_a_recipe_comes_back_from_its_file_and_another_is_named(tmp_path: Path) -> None:
    claim_directory(tmp_path / "work", RECIPE)
    claim_directory(tmp_path / "work", RECIPE)
    with pytest.raises(InvalidError, match="begun with steps=500: use the same values"):
        claim_directory(tmp_path / "work", msgspec.structs.replace(RECIPE, steps=501))


@pytest.mark.parametrize("adapter_first", [True, False])
def test_the_seed_policy_and_an_adapter_do_not_share_a_directory(adapter_first: bool, tmp_path: Path) -> None:
    model, out, work = small_model(tmp_path / "model"), tmp_path / "out", tmp_path / "work"
    recipe = new_recipe(str(model), model)
    claim_directory(work, recipe if adapter_first else Recipe(seed=recipe.seed, steps=recipe.steps, lr=recipe.lr))
    options = () if adapter_first else ("--model", str(model))
    ended = CliRunner().invoke(main, ["bootstrap", str(out), "--work", str(work), *options])
    assert ended.exit_code == 1
    assert ended.output.startswith(f"Error: {work} was begun by a build of another kind")
    assert "name another directory with --work" in ended.output


def test_the_hash_of_the_base_tells_two_models_apart(tmp_path: Path) -> None:
    first = small_model(tmp_path / "first")
    before = new_recipe("small", first)
    (first / "config.json").write_text((first / "config.json").read_text().replace("8192", "4096"))
    assert new_recipe("small", first).base != before.base


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "lr=1"], "--set and --start are for an adapter"),
        (["--model", "smollm2-135m", "--drill-steps", "3"], "--drill-steps is for the seed policy"),
    ],
)
def test_an_option_of_the_other_kind_of_model_is_refused(options: list[str], message: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["bootstrap", str(tmp_path / "out"), *options])
    assert ended.exit_code == 2
    assert message in ended.output


def test_the_options_of_the_command_become_the_recipe_of_an_adapter(tmp_path: Path) -> None:
    model, work = small_model(tmp_path / "model"), tmp_path / "work"
    claim_directory(work, new_recipe(str(model), model))
    options = ("--seed", "9", "--scenarios", "8", "--steps", "7", "--tokens", "2048", "--set", "lr=0.5")
    ended = CliRunner().invoke(
        main, ["bootstrap", str(tmp_path / "out"), "--model", str(model), "--work", str(work), *options]
    )
    assert ended.exit_code == 1
    was = "seed=0, scenarios=1600, lr=0.001, steps=500, tokens=4096"
    assert ended.output.startswith(f"Error: {work} was begun with {was}: use the same values")
