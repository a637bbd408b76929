"""LoRA adapters on a model: attached, trained, and published once, under the hash of their content.

What is published is checked, and probed: by logprobs of fixed tokens under an adapter and its base, model
servers prove what they serve.

Layers are two matrix products that accumulate in place; PEFT's own make six passes over the activations.

    y = x W' + b + s (x A') B'      W' is the transpose of W; only A and B are trained

Weights and files are PEFT's; only the computation of its layers is replaced. Saves about an eighth of an
update.
"""

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import MethodType
from typing import Any, cast

import msgspec
import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import Linear
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from app.base.errors import AdapterError, InvalidError, StorageError, first_line
from app.base.files import scratch_directory
from app.base.values import Json, Probe, ProbePoint
from app.engine.adapter_files import CONFIG, WEIGHTS, content_hash, inspect
from app.releases.adapter_store import place
from trainer.learning.batch import Batch, Sample, pad
from trainer.learning.distributed import gather_full
from trainer.learning.model import sampled_logits, sampled_logprobs

_PROMPT = 384  # tokens of the prompt at most, its last: every server has room for them
_ANSWER = 24  # greedy tokens of the adapter that follow it
_CANDIDATES = 64  # the last tokens, from which the points that differ most are chosen
_LIKELY = -7.0  # servers of lower precision are least exact for logprobs below this
_ANOTHER = "Start from one that was made for this model, or from none (start=base)"


class LogprobModel(nn.Module):
    """Where processes share the weights, every pass must go through this module, which gathers them."""

    def __init__(self, model: PeftModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, *, most_likely: bool = False) -> Tensor:
        """log p of each sampled token, (N,), in row-major order; or the most likely token in each one's place."""
        base = cast(PreTrainedModel, self.model.get_base_model())  # with the LoRA layers in it
        return sampled_logits(base, batch).argmax(-1) if most_likely else sampled_logprobs(base, batch)


@torch.no_grad()
def make_probe(policy: LogprobModel, prompt: Sequence[int], count: int = 8) -> Probe:
    """A probe of at most `count` points. An adapter that changes nothing gets as many, but they prove nothing.

    Where processes share the weights, all of them must make the probe together.
    """
    training = policy.training
    policy.eval()
    try:
        ids = _continue(policy, list(prompt)[-_PROMPT:])
        adapted = _logprobs(policy, ids)
        with policy.model.disable_adapter():
            base = _logprobs(policy, ids)
    finally:
        policy.train(training)
    first = len(ids) - len(base)
    points = [
        ProbePoint(first + index, ids[first + index], *pair)
        for index, pair in enumerate(zip(adapted, base, strict=True))
    ]
    chosen = sorted(points, key=_worth, reverse=True)[:count]
    return Probe(tuple(ids), tuple(sorted(chosen, key=lambda point: point.position)))


def _worth(point: ProbePoint) -> tuple[bool, float]:
    return max(point.logprob, point.base) > _LIKELY, abs(point.logprob - point.base)


def _continue(policy: LogprobModel, ids: list[int]) -> list[int]:
    """The tokens and the adapter's greedy continuation of them."""
    for _ in range(_ANSWER):
        placeholder = 0  # in the place of the token to be predicted
        (token,) = policy(_batch(policy, [*ids, placeholder], sampled=1), most_likely=True).tolist()
        ids = [*ids, token]
    return ids


def _logprobs(policy: LogprobModel, ids: list[int]) -> list[float]:
    """The logprobs of the last tokens; the very first token has none."""
    logprobs: Tensor = policy(_batch(policy, ids, sampled=min(_CANDIDATES, len(ids) - 1)))
    values: list[float] = logprobs.tolist()
    return values


def _batch(policy: LogprobModel, ids: Sequence[int], *, sampled: int) -> Batch:
    """One sample whose last tokens count as sampled."""
    marks = (False,) * (len(ids) - sampled) + (True,) * sampled
    return pad([Sample(tuple(ids), marks)], policy.model.device)


class PublishedAdapter(msgspec.Struct, frozen=True):
    """An adapter on disk, which never changes again."""

    hash: str  # the engine knows it by this name
    path: Path
    rank: int
    probe: Probe | None = None  # by which model servers prove that they serve it


class TrainingOutput(msgspec.Struct, frozen=True):
    """The result of a run before its gate."""

    adapter: PublishedAdapter
    data: dict[str, Json] = {}  # what it learned from, and why the rest was left out


def lora_weights(model: PeftModel) -> dict[str, Tensor]:
    """The adapter's weights in full, on the CPU; the base model's are not touched.

    Where processes share the model's weights, all of them must ask together.
    """
    return {name: gather_full(each) for name, each in model.named_parameters() if "lora_" in name}


def publish(
    model: PeftModel, root: Path, probe_prompt: Sequence[int] = (), *, base: str | None = None
) -> PublishedAdapter:
    """Write the adapter to `root`/<hash> and probe it; without a prompt it gets no probe. `base` is the name of
    the base model on model servers, which can then load the adapter by its name alone.

    Raises InvalidError if a weight is not finite, StorageError if the files cannot be written.
    """
    written = write_adapter(model, root, lora_weights(model), base)
    if not probe_prompt:
        return written
    return msgspec.structs.replace(written, probe=make_probe(LogprobModel(model), probe_prompt))


def write_adapter(
    model: PeftModel, root: Path, weights: dict[str, Tensor], base: str | None = None
) -> PublishedAdapter:
    """Write the model's adapter with these `lora_weights` to `root`/<hash>, complete or not at all. The same
    weights and base give the same directory. Raises as `publish` does.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with scratch_directory(root) as partial:
            model.save_pretrained(str(partial), state_dict=weights)
            config = _portable_config(partial, base)
            check_adapter(partial)
            name = content_hash(partial)
            contents = partial / name
            contents.mkdir()
            for file in (CONFIG, WEIGHTS):
                (partial / file).rename(contents / file)
            place(contents, root / name)
            return PublishedAdapter(name, root / name, config["r"])
    except (OSError, SafetensorError) as error:
        raise StorageError(f"the adapter could not be written to {root}: {first_line(error)}") from error


def check_adapter(path: Path) -> dict[str, Tensor]:
    """The adapter's weights. Raises InvalidError if it must not be served."""
    if not (path / CONFIG).is_file() or not (path / WEIGHTS).is_file():
        raise InvalidError(f"no adapter at {path}: it needs {CONFIG} and {WEIGHTS}")
    try:
        inspect(path)
        return load_file(path / WEIGHTS)
    except (AdapterError, SafetensorError, OSError) as error:
        raise InvalidError(first_line(error)) from error


def _portable_config(path: Path, base: str | None) -> dict[str, int]:
    """The configuration without machine-dependent values, so that equal adapters are equal files."""
    config = json.loads((path / CONFIG).read_text())
    config["base_model_name_or_path"] = base
    config["target_modules"] = sorted(config["target_modules"])
    (path / CONFIG).write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    return dict(config)


class LoraLinear(torch.autograd.Function):
    """x (N, I), weight (O, I), bias (O,), a (R, I), b (O, R) to y (N, O), with gradients for x, a and b.

    x, weight and bias share a format, and y has it. a and b may be float32 with a bfloat16 base: products are
    then computed in bfloat16, as under autocast, while the gradients of a and b are returned in the format of a
    and b.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        ctx.scale, ctx.lora_dtype = scale, a.dtype
        a, b = a.to(x.dtype), b.to(x.dtype)
        low = x @ a.t()
        y = torch.addmm(bias, x, weight.t()) if bias is not None else x @ weight.t()
        y.addmm_(low, b.t(), alpha=scale)
        ctx.save_for_backward(x, weight, a, b, low)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        x, weight, a, b, low = ctx.saved_tensors
        grad_low = (gradient @ b).mul_(ctx.scale)
        grad_x = torch.addmm(gradient @ weight, grad_low, a) if ctx.needs_input_grad[0] else None
        grad_a, grad_b = (grad_low.t() @ x).to(ctx.lora_dtype), (gradient.t() @ low).to(ctx.lora_dtype)
        return grad_x, None, None, grad_a, grad_b.mul_(ctx.scale), None


def fuse(model: PeftModel) -> PeftModel:
    """Replace the computation of every plain LoRA layer: a linear base, one adapter, no dropout and no variant."""
    for module in model.modules():
        if isinstance(module, Linear) and _is_plain(module):
            module.forward = MethodType(_forward, module)  # type: ignore[method-assign]
    return model


def _forward(layer: Any, x: Tensor) -> Tensor:
    if layer.disable_adapters or layer.merged or torch.is_autocast_enabled(x.device.type):
        return Linear.forward(layer, x)
    (name,) = layer.active_adapters
    base, a, b = layer.base_layer, layer.lora_A[name].weight, layer.lora_B[name].weight
    flat = x.reshape(-1, x.shape[-1])
    y: Tensor = LoraLinear.apply(flat, base.weight, base.bias, a, b, layer.scaling[name])
    return y.view(*x.shape[:-1], -1)


def _is_plain(layer: Any) -> bool:
    if len(layer.active_adapters) != 1:
        return False
    (name,) = layer.active_adapters
    return (
        type(layer.base_layer) is nn.Linear
        and isinstance(layer.lora_dropout[name], nn.Identity)
        and layer.lora_A[name].bias is None
        and layer.lora_B[name].bias is None
        and name not in layer.lora_variant
    )


def with_lora(
    model: PreTrainedModel, rank: int, alpha: int | None = None, start: Path | None = None, *, seed: int = 0
) -> PeftModel:
    """The model with an adapter on all linear layers, in float32: a new one that changes nothing yet, or a copy of
    `start`, which keeps its own rank. The same seed gives the same new adapter. `alpha` is twice the rank if
    it is not given.

    Raises InvalidError if `start` cannot be read, is not finite, or does not fit the model.
    """
    policy = attach_lora(model, rank, alpha, start)
    weights = initial_weights(policy, start, seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    return policy


def attach_lora(
    model: PreTrainedModel, rank: int, alpha: int | None = None, start: Path | None = None
) -> PeftModel:
    """The model with LoRA layers whose weights are still to be set to `initial_weights`.

    On the device "meta" the layers are created there as well. Raises InvalidError as `with_lora` does.
    """
    if start is None:
        scale = 2 * rank if alpha is None else alpha
        config = LoraConfig(r=rank, lora_alpha=scale, target_modules="all-linear", task_type="CAUSAL_LM")
        return _wrapped(model, config)
    check_adapter(start)
    config = PeftConfig.from_pretrained(str(start))
    config.inference_mode = False
    config.lora_dropout = 0.0  # the logprobs of an update are those of the policy, and a resumed run repeats them
    config.base_model_name_or_path = None  # the name on model servers, which PEFT would look up on the Hub
    try:
        return _wrapped(model, config)
    except ValueError as error:
        reason = first_line(error)
        raise InvalidError(f"the adapter at {start} is for another base model: {reason}. {_ANOTHER}") from error


def _wrapped(model: PreTrainedModel, config: PeftConfig) -> PeftModel:
    with warnings.catch_warnings():
        message = ".is_gradient_checkpointing. is deprecated"  # PEFT 0.21 still asks for it by that name
        warnings.filterwarnings("ignore", message, FutureWarning)
        policy = get_peft_model(model, config, low_cpu_mem_usage=model.device.type == "meta")
    return fuse(policy)


def initial_weights(policy: PeftModel, start: Path | None, seed: int) -> dict[str, Tensor]:
    """The weights that training begins with, float32 on the CPU, by the names of the policy's parameters."""
    return _drawn(policy, seed) if start is None else _copied(policy, start)


def _drawn(policy: PeftModel, seed: int) -> dict[str, Tensor]:
    """A from PEFT's distribution, B zero.

    The draws are those of PEFT's own constructors, in their order. Made here, they do not depend on the number
    format of the base, or on whether this process holds any of it.
    """
    weights: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for name, layer in policy.named_modules():
            if isinstance(layer, Linear):
                (adapter,) = layer.active_adapters
                rank = layer.r[adapter]
                rows, columns = cast(nn.Linear, layer.get_base_layer()).weight.shape
                a, b = nn.Linear(columns, rank, bias=False), nn.Linear(rank, rows, bias=False)
                nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
                weights[f"{name}.lora_A.{adapter}.weight"] = a.weight.detach()
                weights[f"{name}.lora_B.{adapter}.weight"] = torch.zeros_like(b.weight)
    return weights


def _copied(policy: PeftModel, start: Path) -> dict[str, Tensor]:
    theirs = check_adapter(start)
    shapes = {name: tuple(each.shape) for name, each in theirs.items()}
    needed = {name: tuple(each.shape) for name, each in get_peft_model_state_dict(policy).items()}
    misfits = [name for name in needed.keys() | shapes.keys() if needed.get(name) != shapes.get(name)]
    if misfits:
        name = min(misfits)
        raise InvalidError(
            f"the adapter at {start} is for another base model: of {name} it has {shapes.get(name, 'nothing')},"
            f" this model needs {needed.get(name, 'nothing')}. {_ANOTHER}"
        )
    return {name: theirs[key] for key, name in _file_keys(policy).items()}


def _file_keys(policy: PeftModel) -> dict[str, str]:
    """The policy's LoRA parameters by the keys that PEFT writes them under."""
    names = [name for name, _ in policy.named_parameters() if "lora_" in name]
    numbered = {name: torch.tensor(number) for number, name in enumerate(names)}
    return {key: names[int(each)] for key, each in get_peft_model_state_dict(policy, state_dict=numbered).items()}
