"""What SAGE_MODEL may be: `seed`, a model of the catalogue, one that was pulled, or a directory."""

from pathlib import Path

import pytest

from app.base.errors import ModelError
from app.base.model_catalog import CATALOG, find_model, pulled
from app.base.settings import Settings

SMOL = CATALOG["smollm2-135m"]


def test_a_name_is_the_directory_that_was_pulled_for_its_hash(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "smollm2-135m-b179c9523d0e"
    directory.mkdir(parents=True)
    (tmp_path / "models" / "smollm2-135m-000000000000").mkdir()
    assert Settings(model="smollm2-135m", data_dir=tmp_path).model_dir == directory


def test_a_name_in_the_list_of_models_is_accepted(tmp_path: Path) -> None:
    directory = tmp_path / "models" / SMOL.directory
    directory.mkdir(parents=True)
    assert find_model(directory.name, tmp_path) == directory
    for name in ("", ".", "..", "../models"):
        assert pulled(name, tmp_path) == []


@pytest.mark.parametrize("name", ["smollm2-135m", "Qwen/Qwen3-0.6B", "nothing"])
def test_a_model_that_is_not_here_says_how_to_get_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "models" / f".{SMOL.directory}.partial").mkdir(parents=True)
    with pytest.raises(ModelError, match=f"run `sage models pull {name}`"):
        _ = Settings(model=name, data_dir=tmp_path).model_dir


def test_a_model_of_the_hub_is_found_by_its_id(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "Qwen--Qwen3-0.6B-0123456789ab"
    directory.mkdir(parents=True)
    assert find_model("Qwen/Qwen3-0.6B", tmp_path) == directory
    (tmp_path / "models" / "Qwen--Qwen3-0.6B-ba9876543210").mkdir()
    with pytest.raises(ModelError, match=r"several versions \(Qwen--Qwen3-0.6B-0123456789ab, Qwen--.*: name one"):
        find_model("Qwen/Qwen3-0.6B", tmp_path)
    assert find_model(directory.name, tmp_path) == directory


def test_a_directory_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "model").mkdir(parents=True)
    assert find_model("own/model", tmp_path) == Path("own/model")
    assert find_model(str(tmp_path / "none"), tmp_path) == tmp_path / "none"  # its reader says what it lacks
    assert (find_model("seed", tmp_path) / "config.json").is_file()


@pytest.mark.parametrize("name", ["./model.gguf", "model.gguf", "/nonexist/model.gguf"])
def test_a_gguf_file_says_how_it_is_converted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=f"run `sage models pull {name}`"):
        find_model(name, tmp_path)


def test_every_model_of_the_catalogue_can_be_had_in_two_ways() -> None:
    for name, model in CATALOG.items():
        assert model.name == name
        assert len(model.sha256) == 64
        assert model.hub.count("/") == 1
        assert model.wheels
