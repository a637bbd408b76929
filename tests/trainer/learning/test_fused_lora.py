"""The fused LoRA layers compute what PEFT's own do, and leave layers alone in which PEFT does more."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from torch import Tensor, nn

from tests.support.tiny_model import make_model_dir
from trainer.learning.adapter import LoraLinear, fuse
from trainer.learning.model import load_model


def policy(path: Path, dtype: torch.dtype = torch.float32, **options: Any) -> PeftModel:
    config = LoraConfig(r=4, lora_alpha=12, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    torch.manual_seed(5)
    model = get_peft_model(load_model(path, torch.device("cpu"), dtype=dtype), config)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter, 0, 0.1)
    return model


def exact(path: Path, **options: Any) -> PeftModel:
    """In float64, so that compared values differ by rounding alone."""
    return policy(path, **options).double()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_model_dir(tmp_path_factory.mktemp("tiny"))


def gradients(model: PeftModel, seed: int = 2) -> tuple[Tensor, dict[str, Tensor]]:
    ids = torch.randint(0, 250, (2, 9), generator=torch.Generator().manual_seed(seed))
    logits = model(input_ids=ids).logits
    logits.log_softmax(-1)[..., 3].sum().backward()
    return logits.detach(), {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def test_logits_and_gradients_are_those_of_peft(path: Path) -> None:
    expected, by_peft = gradients(exact(path))
    found, by_us = gradients(fuse(exact(path)))
    torch.testing.assert_close(found, expected)
    assert by_us.keys() == by_peft.keys()
    assert sum("lora_A" in name for name in by_us) == 21  # 7 linear layers in each of 3
    for name, gradient in by_peft.items():
        torch.testing.assert_close(by_us[name], gradient, msg=name)


def test_beside_a_bfloat16_base_they_are_as_exact_as_those_of_peft(tmp_path: Path) -> None:
    """PEFT multiplies by the float32 adapter in float32, the fused layers in bfloat16; both outputs are bfloat16.

    Errors are relative to the same weights in float64: of the logits, and of all gradients together. Those of PEFT
    are below 2 %, those of the fused layers at most half as large again, in the mean over eight inputs: for one
    alone they depend on how the processor rounds.
    """
    path = make_model_dir(tmp_path, spread=0.1)
    exact_ones = [gradients(policy(path, torch.bfloat16).double(), seed) for seed in range(8)]
    assert {each.dtype for _, by_hand in exact_ones for each in by_hand.values()} == {torch.float64}

    def errors(fused: bool) -> Tensor:
        """(2): of the logits and of the gradients."""
        each_error = []
        for seed, (logits, by_hand) in enumerate(exact_ones):
            model = policy(path, torch.bfloat16)
            found_logits, found = gradients(fuse(model) if fused else model, seed)
            assert {each.dtype for each in found.values()} == {torch.float32}
            each_error.append([relative(found_logits, logits), relative(flat(found), flat(by_hand))])
        return torch.tensor(each_error).mean(0)

    of_peft, of_ours = errors(fused=False), errors(fused=True)
    assert of_peft.max() < 0.02
    assert (of_ours < 1.5 * of_peft).all()


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_is_that_of_finite_differences(bias: bool) -> None:
    torch.manual_seed(1)
    x, weight, a, b = (torch.randn(shape, dtype=torch.float64) for shape in ((5, 4), (3, 4), (2, 4), (3, 2)))
    shift = torch.randn(3, dtype=torch.float64) if bias else None

    def value(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        y: Tensor = LoraLinear.apply(x, weight, shift, a, b, 1.7)
        return y

    inputs = [each.requires_grad_() for each in (x, a, b)]
    assert torch.autograd.gradcheck(value, inputs)
    expected = x @ weight.t() + 1.7 * x @ a.t() @ b.t() + (shift if shift is not None else 0)
    torch.testing.assert_close(value(x, a, b), expected)


def test_disabled_adapters_give_the_base_model(path: Path) -> None:
    model = fuse(exact(path))
    ids = torch.arange(6)[None]
    base = load_model(path, torch.device("cpu")).double()
    with torch.no_grad(), model.disable_adapter():
        torch.testing.assert_close(model(input_ids=ids).logits, base(ids).logits)
    with torch.no_grad():
        assert (model(input_ids=ids).logits - base(ids).logits).abs().max() > 0.01


def test_a_layer_that_does_more_is_left_to_peft(path: Path) -> None:
    for options in ({"lora_dropout": 0.1}, {"use_dora": True}):
        model = fuse(exact(path, **options))
        layers = [module for module in model.modules() if isinstance(module, Linear)]
        assert not any("forward" in vars(layer) for layer in layers), options
    for dtype in (torch.float32, torch.bfloat16):
        layers = [each for each in fuse(policy(path, dtype)).modules() if isinstance(each, Linear)]
        assert all("forward" in vars(each) for each in layers), dtype
