"""Loading a policy's base model, and the one forward pass that every loss is made of.

Attention is over packed rows: samples lie end to end in one row without padding, and none attends to another. A
sample may leave out its first tokens where the one before it in the row begins with them, too: it attends to
those. The rollouts of a group have one prompt, so it is encoded once. On CUDA one variable-length kernel
computes all samples of a row; elsewhere they are computed one by one.

The output layer gives exact logits, and logprobs of given tokens without ever holding all logits: those of
2,000 tokens over 49,152 words are 400 MB, and a loss over them keeps two or three such tensors.

Only the frozen base may be bfloat16: LoRA weights, their gradients and the optimizer are float32 in every case.
"""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise, zip_longest
from pathlib import Path
from types import MethodType
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
)
from transformers.configuration_utils import PretrainedConfig
from transformers.integrations.liger import apply_liger_kernel
from transformers.utils.import_utils import is_liger_kernel_available

from app.base.errors import ModelError, StorageError, first_line
from app.base.files import publish
from app.engine.memory import trained_needs
from app.model_server.device import check_memory, has_own_memory, report_exhaustion, resolve_dtype
from trainer.learning.batch import Batch, Sample, pad

_LOSSES = {"cross_entropy": False, "fused_linear_cross_entropy": False}  # ours scores sampled tokens only
_CHUNK_BYTES = {"cpu": 32 << 20}  # of logits at a time
_CHUNK_BYTES_OF_OTHERS = 256 << 20
_CHANGED = "_logits_are_changed"  # an attribute of models
PACKED = "packed"
_PROBE = "probe"  # in the place of a packing
_KERNEL_DTYPES = (torch.bfloat16, torch.float16)
_KERNEL_HEAD = 256  # numbers in a head at most, and a multiple of 8
ACTIVATION_BYTES = 5 << 28  # of a pass on a CPU, which gains nothing from longer ones
_LENGTHS = (32, 96)  # tokens of the passes that are measured


def use_liger(model: PreTrainedModel, device: torch.device) -> None:
    """Patch the model with liger's kernels, before any adapter is attached, if they are installed and `device` is
    CUDA. They change the speed, not the numbers.
    """
    if device.type == "cuda" and is_liger_kernel_available():
        apply_liger_kernel(model, dict(_LOSSES))


class ExactLogits(torch.autograd.Function):
    """hidden (N, D) times weight (V, D), both bfloat16: logits (N, V) in float32, never rounded to bfloat16.

    bfloat16 has 8 significant bits: a rounded logit of 20 may be off by 0.06, and so would its logprob.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return _exact_logits(hidden, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return gradients[0].to(weight.dtype) @ weight, None


class TokenLogprobs(torch.autograd.Function):
    """hidden (N, D), a frozen weight (V, D) and ids (N,): log p of each id, (N,) float32.

    The logits of a few rows at a time. The gradient of a logprob is known once its logits are, up to the factor
    that comes from the loss, so it is computed at once, (N, D), and nothing over the vocabulary is kept.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
        logprobs = torch.empty(len(ids), device=hidden.device)
        directions = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        exact = weight if hidden.is_cuda else weight.float()
        for start in range(0, len(ids), rows := _rows_of_chunk(weight)):
            chunk = slice(start, start + rows)
            logits = _exact_logits(hidden[chunk], exact)
            chosen = ids[chunk, None]
            highest = logits.amax(-1, keepdim=True)
            likeliness = logits.gather(-1, chosen) - highest
            exponentials = logits.sub_(highest).exp_()  # in place: fresh memory costs more than the sums
            total = exponentials.sum(-1, keepdim=True)
            logprobs[chunk] = (likeliness - total.log())[:, 0]
            if directions is not None:  # of log p: the id's weights minus the mean of all by their probability
                excess = exponentials.div_(total).scatter_add_(-1, chosen, -torch.ones_like(total))
                directions[chunk] = -(excess.to(weight.dtype) @ weight)
        if directions is not None:
            ctx.save_for_backward(directions)
        return logprobs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (directions,) = ctx.saved_tensors
        return (gradients[0][:, None] * directions).to(directions.dtype), None, None


def prepare_output_layer(model: PreTrainedModel) -> None:
    """Make a plain output layer compute exact logits, and `token_logprobs`. Others are left as they are."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear and head.bias is None:
        head.forward = MethodType(_forward, head)


@torch.no_grad()
def mark_changed_logits(model: PreTrainedModel) -> None:
    """Find out by a pass whether the model scales or caps its logits after the output layer, as Granite does."""
    plain: list[Tensor] = []
    hook = model.get_output_embeddings().register_forward_hook(lambda *call: plain.append(call[-1]))
    logits = model(input_ids=torch.tensor([[0, 1]], device=model.device), use_cache=False).logits
    hook.remove()
    setattr(model, _CHANGED, not torch.equal(plain[-1].float(), logits.float()))


def changes_logits(model: PreTrainedModel) -> bool:
    """Whether its logits are not those of the output layer. Only the whole model computes them then."""
    return bool(getattr(model, _CHANGED, False))


def token_logprobs(head: nn.Module, hidden: Tensor, ids: Tensor) -> Tensor:
    """log p of each id, (N,) float32, after the hidden states (N, D). Logits are all kept unless the layer was
    prepared and is frozen.
    """
    prepared = getattr(head.forward, "__func__", None) is _forward
    if prepared and not any(each.requires_grad for each in head.parameters()):
        logprobs: Tensor = head(hidden, ids)  # by its call, which gathers weights that processes share
        return logprobs
    return -cross_entropy(head(hidden).float(), ids, reduction="none")


def _forward(head: nn.Linear, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
    weight = head.weight
    if ids is not None:
        logprobs: Tensor = TokenLogprobs.apply(hidden, weight, ids)
        return logprobs
    if weight.dtype is not torch.bfloat16:
        return linear(hidden, weight)
    logits: Tensor = ExactLogits.apply(hidden.flatten(0, -2), weight)
    return logits.view(*hidden.shape[:-1], -1)


def _exact_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """(N, V) float32. On a CPU `weight` may be a float32 copy of bfloat16 weights."""
    if hidden.is_cuda and weight.dtype is torch.bfloat16:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    with _bfloat16_products() if hidden.dtype is torch.bfloat16 else nullcontext():
        return linear(hidden.float(), weight.float())


@contextmanager
def _bfloat16_products() -> Iterator[None]:
    """Products of float32 matrices by a CPU's bfloat16 units, if it has any, with float32 sums.

    Three times as fast, and nothing is lost where the numbers are bfloat16's.
    """
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]  # set at import
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


def _rows_of_chunk(weight: Tensor) -> int:
    limit = _CHUNK_BYTES.get(weight.device.type, _CHUNK_BYTES_OF_OTHERS)
    return max(1, limit // (4 * weight.shape[0]))


class Packing(NamedTuple):
    """Where the B samples of a packed row begin and end, and which tokens of it they attend to."""

    lengths: Sequence[int]  # (B,) without shared tokens
    offsets: Tensor  # (B + 1,) int32 on the model's device: where each sample begins, then the row's length
    longest: int
    key_lengths: Sequence[int]  # (B,) with shared tokens
    keys: Tensor | None = None  # (sum of key_lengths,) places in the row; None: each sample's own

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device, shared: Sequence[int] = ()) -> Self:
        """The first shared[i] tokens of sample i are those of sample i - 1 and left out.

        >>> Packing.of([2, 3], torch.device("cpu")).offsets.tolist()
        [0, 2, 5]
        >>> found = Packing.of([4, 3], torch.device("cpu"), [0, 2])
        >>> found.lengths, found.keys.tolist()
        ([4, 1], [0, 1, 2, 3, 0, 1, 4])
        """
        own = [length - left_out for length, left_out in zip_longest(lengths, shared, fillvalue=0)]
        ends = torch.tensor([0, *own]).cumsum(0)
        keys = _keys(ends.tolist(), shared).to(device) if any(shared) else None
        return cls(own, ends.to(device, torch.int32), max(own), lengths, keys)


def _keys(ends: Sequence[int], shared: Sequence[int]) -> Tensor:
    """The places of each sample's tokens, shared ones included, end to end."""
    places = [torch.arange(ends[0], ends[1])]
    for left_out, (start, end) in zip(shared[1:], pairwise(ends[1:]), strict=True):
        places.append(torch.cat([places[-1][:left_out], torch.arange(start, end)]))
    return torch.cat(places)


def register() -> None:
    """Make models loaded with `attn_implementation=PACKED` use `attend`. Safe to repeat."""
    AttentionInterface.register(PACKED, attend)


class _ReachedError(Exception):
    """The probe has reached the attention."""


@torch.no_grad()
def passes_packing(model: PreTrainedModel) -> bool:
    """Whether its layers hand the packing to the attention. Those of some models do not: samples would mix."""
    try:
        model(input_ids=torch.tensor([[0, 1]], device=model.device), packing=_PROBE, use_cache=False)
    except _ReachedError:
        return True
    except TypeError:
        return False
    return False


def can_pack(model_class: object) -> bool:
    """Whether rows can be packed: not where a layer carries state from token to token, across sample borders, nor
    where attention has more than torch's own computes, such as sinks, or a cap of its scores.
    """
    is_plain = all(getattr(model_class, name, False) for name in ("_supports_attention_backend", "_supports_sdpa"))
    return is_plain and not getattr(model_class, "_is_stateful", True)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Causal attention within each sample, with the signature that transformers calls.

    query (1, H, T, D), key and value (1, H or fewer, T, D) to (1, T, H, D). `packing` covers the T tokens, without
    shared ones on CUDA; without it every row is one sample, and may be padded on the right. The masks of
    transformers are not needed.
    Raises NotImplementedError for features that only the model's own attention has.
    """
    if attention_mask is not None or options.get("softcap") is not None or not getattr(module, "is_causal", True):
        raise NotImplementedError("packed rows are for plain causal attention")
    if options.get("packing") is _PROBE:
        raise _ReachedError
    packing: Packing | None = options.get("packing")
    scale, window = options.get("scaling"), options.get("sliding_window")
    if packing is not None and query.is_cuda and fits_kernel(query):
        return attend_at_once(query, key, value, packing, scale, window), None
    if packing is None:
        return _attend_one(query, key, value, scale, window).transpose(1, 2), None
    lengths, key_lengths = list(packing.lengths), list(packing.key_lengths)
    if packing.keys is not None:
        key, value = key.index_select(2, packing.keys), value.index_select(2, packing.keys)
    samples = zip(query.split(lengths, 2), key.split(key_lengths, 2), value.split(key_lengths, 2), strict=True)
    return torch.cat([_attend_one(*each, scale, window) for each in samples], 2).transpose(1, 2), None


def fits_kernel(query: Tensor) -> bool:
    """Whether the variable-length kernel takes these numbers: 16 bits each, in heads of a supported size."""
    return query.dtype in _KERNEL_DTYPES and query.shape[-1] <= _KERNEL_HEAD and query.shape[-1] % 8 == 0


def attend_at_once(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, scale: float | None, window: int | None
) -> Tensor:
    """`attend` by one kernel for all samples of the row. CUDA, and tensors that `fits_kernel` accepts."""
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))  # (T, H, D)
    places = packing.offsets, packing.offsets, packing.longest, packing.longest
    attended = varlen_attn(q, k, v, *places, scale=scale, window_size=reach(window), enable_gqa=True)
    return cast(Tensor, attended)[None]


def reach(window: int | None) -> tuple[int, int]:
    """How many tokens before and after itself a token attends to; -1 is no limit. A window includes the token.

    >>> reach(None), reach(4)
    ((-1, 0), (3, 0))
    """
    return (-1 if window is None else window - 1, 0)


def _attend_one(query: Tensor, key: Tensor, value: Tensor, scale: float | None, window: int | None) -> Tensor:
    """The queries are of the last tokens that there are keys for."""
    mask = _mask(query.shape[2], key.shape[2], window, query.device)
    return scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )


def _mask(queries: int, keys: int, window: int | None, device: torch.device) -> Tensor | None:
    """(queries, keys) bool: a token sees itself and the window - 1 tokens before it. None for plain causal."""
    if queries == keys and (window is None or keys <= window):
        return None
    positions = torch.arange(keys, device=device)
    distance = positions[keys - queries :, None] - positions[None, :]
    return (distance >= 0) & (distance < (window or keys))


DtypeName = Literal["auto", "float32", "bfloat16"]


def base_dtype(name: DtypeName, device: torch.device, model_dir: Path) -> torch.dtype:
    """The format of the base model's weights. "auto" is bfloat16 on CUDA; elsewhere as for serving, where passes
    of many tokens at once are faster in it and the weights lose nothing.
    """
    if name == "auto" and device.type == "cuda":
        return torch.bfloat16
    return resolve_dtype(name, device.type, model_dir, rows="many")


def pick_device(name: str = "auto") -> torch.device:
    """The device called `name`; "auto" is a GPU if there is one."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def describe(device: torch.device) -> str:
    """What computes, as the records of a training say it."""
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"the {device.type} device of a {platform.machine()} machine"
    return f"{torch.get_num_threads()} threads of a {platform.machine()} processor"


def load_model(path: Path, device: torch.device, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A causal language model, with attention over packed rows where its layers allow it.

    Raises ModelError if the directory contains none, ModelMemoryError if host or device have no room for it.
    """
    needs = trained_needs(path, dtype.itemsize, gpu=has_own_memory(device))
    check_memory(path, needs, device, "choose a smaller model, or train it on another machine")
    register()
    try:
        with report_exhaustion(f"while the model in {path} was loaded", "stop other programs on this device"):
            config = AutoConfig.from_pretrained(path)
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation=attention_of(config), device_map=device
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = first_line(error)
        raise ModelError(f"the model in {path} cannot be loaded for training: {reason}") from error
    if model.config._attn_implementation == PACKED and not passes_packing(model):
        model.set_attn_implementation("eager")
    use_liger(model, device)
    prepare_output_layer(model)
    with within_memory():
        mark_changed_logits(model)
    return model


def within_memory() -> AbstractContextManager[None]:
    """Of an update: raises ModelMemoryError if its device has no memory left."""
    return report_exhaustion("in an update", "lower micro_batch_tokens, or set gradient_checkpointing")


def attention_of(config: PretrainedConfig) -> str | None:
    """The attention implementation to train with. None is the default of transformers."""
    return PACKED if can_pack(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)) else None


def sampled_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """log p of each sampled token, shape (N,), float32, in row-major order of `batch.sampled`.

    One forward pass over whole trajectories, packed end to end in one row where the model can, so that padding
    costs nothing. The vocabulary projection, the widest layer of a small model, is applied only where a token was
    sampled.
    """
    ids = batch.ids[batch.sampled]
    if changes_logits(model):
        return -cross_entropy(sampled_logits(model, batch), ids, reduction="none")
    return token_logprobs(model.get_output_embeddings(), _hidden(model, batch), ids)


def sampled_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The logits (N, V), float32, that predict each sampled token."""
    if changes_logits(model):
        inputs, predicts = _inputs(model, batch)
        columns = predicts.any(0).nonzero()[:, 0]
        logits = model(**inputs, logits_to_keep=columns).logits[predicts[:, columns]]
    else:
        logits = model.get_output_embeddings()(_hidden(model, batch))
    return cast(Tensor, logits.float())


def _hidden(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The hidden states (N, D) that predict the sampled tokens."""
    inputs, predicts = _inputs(model, batch)
    return cast(Tensor, model.get_decoder()(**inputs).last_hidden_state[predicts])


def _inputs(model: PreTrainedModel, batch: Batch) -> tuple[dict[str, Any], Tensor]:
    """What the model is called with, and which of its places, (rows, tokens) bool, predict a sampled token."""
    return (_packed if model.config._attn_implementation == PACKED else _padded)(batch)


def _packed(batch: Batch) -> tuple[dict[str, Any], Tensor]:
    device = batch.ids.device
    shared = batch.shared if device.type == "cpu" else (0,) * len(batch.shared)  # kernels have no shared keys
    positions = torch.arange(batch.ids.shape[1], device=device).expand_as(batch.ids)
    encoded = batch.present & (positions >= torch.tensor(shared, device=device)[:, None])
    inputs = {
        "input_ids": batch.ids[encoded][None],
        "position_ids": positions[encoded][None],
        "packing": Packing.of(batch.present.sum(1).tolist(), device, shared),
        "use_cache": False,
    }
    # The first encoded token of a sample was not sampled: no sample gains one of the next.
    return inputs, batch.sampled[encoded].roll(-1)[None]


def _padded(batch: Batch) -> tuple[dict[str, Any], Tensor]:
    inputs = {"input_ids": batch.ids, "attention_mask": batch.present.long(), "use_cache": False}
    return inputs, batch.sampled.roll(-1, dims=1)


def save_atomically(state: object, path: Path) -> None:
    """Write a checkpoint: after a crash, also of the machine, the file has its old content or its new one.

    Raises StorageError if the write fails.
    """
    temporary = path.with_suffix(".partial")
    try:
        torch.save(state, temporary)
        publish(temporary, path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        temporary.unlink(missing_ok=True)
        raise StorageError(f"the checkpoint {path} could not be written: {error}") from error


def activation_bytes(logprobs: Callable[[Batch], Tensor], device: torch.device) -> int:
    """Bytes for each token, measured: what a longer pass of `logprobs` keeps beyond a shorter one, at least 1.

    Where processes share the weights, all of them must call it together.
    """
    short, long = (_kept_bytes(logprobs, device, length) for length in _LENGTHS)
    return max(1, (long - short) // (_LENGTHS[1] - _LENGTHS[0]))


def checkpoint_activations(base: PreTrainedModel) -> None:
    """Recompute the activations inside a layer in the backward pass instead of keeping them."""
    base.activation_checkpointing_enable()
    base.disable_input_require_grads()  # it would make the first layer compute a gradient that nothing needs


@contextmanager
def checkpointed(base: PreTrainedModel) -> Iterator[None]:
    """`checkpoint_activations` for the passes in this block, unless all do so."""
    if base.is_activation_checkpointing:
        yield
        return
    trains = base.training  # else layers keep everything
    checkpoint_activations(base)
    base.train()
    try:
        yield
    finally:
        base.train(trains)
        base.activation_checkpointing_disable()


def _kept_bytes(logprobs: Callable[[Batch], Tensor], device: torch.device, length: int) -> int:
    kept: dict[int, int] = {}  # several saved tensors may be views of the same memory

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    batch = pad([Sample((0,) * length, (False,) * (length - 1) + (True,))], device)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = logprobs(batch)
    del found
    return sum(kept.values())
