"""A GGUF file becomes a model directory that computes the same, from the same bytes to the same bytes."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from app.base.errors import GgufError
from app.engine.tokenizer import ChatTokenizer, Message
from app.machine.gguf import Origin, convert, to_bfloat16
from tests.support.tiny_gguf import write_gguf

ORIGIN = Origin(title="Tiny", licence="apache-2.0", source="tiny.gguf", sha256="0" * 64, prompt_profile="compact")
IDS = torch.tensor([[1, 2, 3, 5, 8, 13]])


def converted(gguf: Path, target: Path) -> Path:
    return convert(gguf, target, ORIGIN, lambda *_: None)


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_the_weights_are_those_of_the_model_rounded_to_bfloat16(architecture: str, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model", architecture=architecture)
    found = load_file(converted(gguf, tmp_path / "out") / "model.safetensors")
    expected = load_file(tmp_path / "model" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor.bfloat16()), name


@pytest.mark.parametrize(
    ("architecture", "kind"), [("qwen2", Kind.Q8_0), ("qwen2", Kind.Q4_1), ("llama", Kind.F16)]
)
def test_a_converted_model_computes_what_transformers_reads_from_the_file(
    architecture: str, kind: Kind, tmp_path: Path
) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model", architecture=architecture, kind=kind)
    own = AutoModelForCausalLM.from_pretrained(converted(gguf, tmp_path / "out"), dtype=torch.float32)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=gguf.name, dtype=torch.float32)
    with torch.no_grad():
        mine, other = own(IDS).logits.log_softmax(-1), theirs(IDS).logits.log_softmax(-1)
    assert (mine.exp() - other.exp()).abs().max() < 0.02  # bfloat16 against the exact numbers
    assert (mine.argmax(-1) == other.argmax(-1)).all()


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    one, other = (hashes(converted(gguf, tmp_path / name)) for name in ("one", "other"))
    assert one == other
    assert set(one) == {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_tokenizer_template_and_profile_come_with_it(tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    found, expected = ChatTokenizer.load(converted(gguf, tmp_path / "out")), ChatTokenizer.load(tmp_path / "model")
    chat = [Message("user", "naïve 🙂 def\n\tx"), Message("assistant", "yes")]
    text = expected.render(chat, generate=True)
    assert found.render(chat, generate=True) == text
    assert found.encode(text) == expected.encode(text)
    assert found.stop_ids == expected.stop_ids
    assert found.card["prompt_profile"] == "compact"


def test_bfloat16_is_rounded_to_the_nearest_and_then_to_the_even() -> None:
    numbers = torch.tensor([1.0, -3.14159, 1.00390625, 1.01171875, 65504.0, 1e-30, 0.0, -0.0])
    assert to_bfloat16(numbers.numpy()).tolist() == numbers.bfloat16().view(torch.uint16).tolist()


def test_nothing_is_left_of_a_conversion_that_fails_at_the_last_tensor(tmp_path: Path) -> None:
    last = np.full(64, np.nan, np.float32)
    gguf = write_gguf(tmp_path / "tiny.gguf", tmp_path / "model", tensors={"output_norm.weight": last})
    with pytest.raises(GgufError, match="not finite"):
        converted(gguf, tmp_path / "models" / "out")
    assert list((tmp_path / "models").iterdir()) == []


def hashes(path: Path) -> dict[str, str]:
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in path.iterdir()}
