"""Requests and models that the embedded engine refuses, with vLLM's status codes and error body."""

import json
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file

from app.base.errors import ModelError
from app.engine.tokenizer import ChatTokenizer
from app.model_server.decoder import Decoder, load_model
from tests.support.engine_process import engine_command, engine_process
from tests.support.every_row import every_row
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def http(model_dir: Path) -> Iterator[httpx.Client]:
    with engine_process(model_dir, "--max-loras", "1") as url, httpx.Client(base_url=url, timeout=300) as http:
        yield http


BAD_REQUESTS: list[tuple[dict[str, Any], int, str]] = [
    ({"prompt": [1, 259]}, 400, "out of vocabulary"),
    ({"prompt": [-1]}, 400, "out of vocabulary"),
    ({"prompt": []}, 400, "at least one token"),
    ({"prompt": "x" * 600}, 400, "maximum context length is 512"),
    ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
    ({"max_tokens": 511}, 400, "maximum context length is 512"),
    ({"temperature": -0.1}, 400, "temperature must be"),
    ({"top_p": 0.9}, 400, "top_p=0.9 is not supported"),
    ({"n": 2}, 400, "n=2 is not supported"),
    ({"stop_token_ids": [300]}, 400, "stop_token_ids must lie"),
    ({"temperature": "hot"}, 400, "Expected `float | null`, got `str` - at `$.temperature`"),
    ({"temprature": 1}, 400, "unknown field `temprature`"),
    ({"model": "other"}, 404, "The model `other` does not exist."),
]


def test_a_bad_completion_request_is_refused_with_its_reason(http: httpx.Client) -> None:
    with every_row() as row:
        for change, status, words in BAD_REQUESTS:
            with row(change, status, words):
                reply = http.post("/v1/completions", json={"prompt": [1, 2], **change})
                error = reply.json()["error"]
                assert (reply.status_code, error["code"]) == (status, status)
                assert words in error["message"]


def test_a_body_that_is_not_json_is_refused(http: httpx.Client) -> None:
    assert http.post("/v1/completions", content=b"{").status_code == 400


def _load(http: httpx.Client, path: Path, name: str = "x") -> httpx.Response:
    return http.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)})


def _change(path: Path, **changes: object) -> None:
    config = path / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **changes}))


def test_an_adapter_that_does_not_fit_is_refused_and_never_listed(
    http: httpx.Client, model_dir: Path, tmp_path: Path
) -> None:
    good = make_adapter(model_dir, tmp_path / "good", 1)
    cases = {
        "nan": (make_adapter(model_dir, tmp_path / "nan", 1, fill=float("nan")), "not finite"),
        "other": (
            make_adapter(make_model_dir(tmp_path / "llama", "llama"), tmp_path / "other", 1),
            "does not fit model.layers.0",
        ),
    }
    for name, field, value, words in (
        ("dora", "use_dora", True, "sets use_dora"),
        ("type", "peft_type", "IA3", "only LORA"),
        ("more", "target_modules", ["q_proj", "k_proj"], "lacks weights of 3 layers"),
    ):
        cases[name] = (make_adapter(model_dir, tmp_path / name, 1), words)
        _change(cases[name][0], **{field: value})
    cut = make_adapter(model_dir, tmp_path / "cut", 1) / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    cases["cut"] = (cut.parent, "cannot be read")
    half = make_adapter(model_dir, tmp_path / "half", 1) / "adapter_model.safetensors"
    weights = load_file(half)
    save_file({key: tensor for key, tensor in weights.items() if "layers.1.mlp.up_proj.lora_B" not in key}, half)
    cases["half"] = (half.parent, "only one of lora_A and lora_B")
    for name, (path, words) in cases.items():
        reply = _load(http, path)
        assert (name, reply.status_code) == (name, 400)
        assert words in reply.json()["error"]["message"]
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["base", "all-MiniLM-L6-v2"]
    assert _load(http, good).status_code == 200


def test_names_and_paths_of_adapters_are_checked(http: httpx.Client, model_dir: Path, tmp_path: Path) -> None:
    good = make_adapter(model_dir, tmp_path / "good", 1)
    http.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
    assert _load(http, tmp_path / "nowhere").status_code == 404
    assert _load(http, good).status_code == 200
    assert "already been loaded" in _load(http, good).json()["error"]["message"]
    assert "--max-loras" in _load(http, good, "y").json()["error"]["message"]
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "x"}).status_code == 200
    assert http.post("/v1/unload_lora_adapter", json={"lora_name": "x"}).status_code == 404
    assert _load(http, good, "base").status_code == 400


def _start(*options: str) -> tuple[int, str]:
    done = subprocess.run(engine_command(*options), capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_directory_that_lacks_a_file_ends_the_start_with_one_line(tmp_path: Path, name: str) -> None:
    (make_model_dir(tmp_path) / name).unlink()
    code, error = _start("--model", str(tmp_path), "--port", "0")
    assert code != 0
    assert error.startswith(f"Error: {tmp_path} has no {name}.")
    assert "\n" not in error


def _without_one(weights: dict[str, torch.Tensor]) -> None:
    del weights["model.layers.1.mlp.up_proj.weight"]


def _of_another_shape(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"] = torch.ones(65)


def _not_a_number(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"][3] = float("nan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_one, "they lack model.layers.1.mlp.up_proj.weight (1 in all)"),
        (_of_another_shape, "they have another shape of model.norm.weight (1 in all)"),
        (_not_a_number, "differ from those of transformers by nan"),
    ],
)
def test_weights_that_are_not_the_models_are_refused(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    file = make_model_dir(tmp_path) / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError, match=re.escape(words)):
        Decoder(load_model(tmp_path, "cpu", torch.float32), 64)


@pytest.mark.parametrize("length", [0, 5, 1000])
def test_truncated_weights_are_refused(tmp_path: Path, length: int) -> None:
    file = make_model_dir(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(ModelError, match="Copy the model directory again"):
        load_model(tmp_path, "cpu", torch.float32)


def test_weights_that_lack_a_byte_end_the_start_with_one_line(tmp_path: Path) -> None:
    file = make_model_dir(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    code, error = _start("--model", str(tmp_path), "--port", "0")
    assert code != 0
    progress, _, error = error.partition("\n")
    assert progress == f"loading {tmp_path}, 1 MB"
    assert error.startswith(f"Error: the model in {tmp_path} cannot be loaded: ")
    assert "\n" not in error


@pytest.mark.parametrize("text", ['{"model_type": ', "[]", "\xff"])
def test_a_config_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (make_model_dir(tmp_path) / "config.json").write_text(text, "latin-1")
    with pytest.raises(ModelError, match=r"config\.json"):
        ChatTokenizer.load(tmp_path)


def test_a_model_of_an_unknown_type_ends_the_start_with_one_line(tmp_path: Path) -> None:
    config = make_model_dir(tmp_path) / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "none such"}))
    code, error = _start("--model", str(tmp_path), "--port", "0")
    assert code != 0
    progress, _, error = error.partition("\n")
    assert progress == f"loading {tmp_path}, 1 MB"
    assert error.startswith(f"Error: the model in {tmp_path} cannot be loaded: ")
    assert "\n" not in error


def test_an_occupied_port_ends_the_start_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, error = _start("--model", str(tmp_path), "--port", port)
    assert code != 0
    assert error.startswith(f"Error: cannot listen on 127.0.0.1:{port}")
    assert "\n" not in error
