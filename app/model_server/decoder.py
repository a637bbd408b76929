"""Forward passes for the scheduler: prefill rows, or advance all rows by some tokens."""

import math
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.configuration_utils import PretrainedConfig
from transformers.utils import logging as transformers_logging

from app.base.errors import ModelError, first_line
from app.engine.memory import served_needs
from app.model_server.device import (
    INT8_TOLERANCE,
    TOLERANCE,
    check_memory,
    has_own_memory,
    moved_mass,
    report_exhaustion,
    saved_dtype,
)
from app.model_server.kv_cache import ATTENTION, BLOCK, PagedCache, register_attention
from app.model_server.layers import (
    HalfLinear,
    PackedInt8Linear,
    fuse_layers,
    is_quantized,
    quantize_layers,
    weight_format,
)

MB = 2**20
Tables = Sequence[Sequence[int]]  # the blocks of each row
_TIMED_POSITIONS = 512
_TIMED_DOUBLINGS = 5  # up to 32 rows
_TIMINGS = 3  # the first ones warm up
_PROBE = (1, 2, 3, 5, 8, 13)
_LESS_MEMORY = "stop other programs, or lower SAGE_ENGINE_KV_MB (--kv-mb)"


class Decoder:
    """Not thread-safe: owned by one thread."""

    def __init__(self, model: PreTrainedModel, kv_mb: int) -> None:
        """Raises ModelError if the logits for this architecture differ from those of transformers, or `kv_mb`
        holds next to nothing, ModelMemoryError if the device has no room for it.
        """
        with report_exhaustion("while the KV cache was made", _LESS_MEMORY):
            self._build(model, kv_mb)

    def _build(self, model: PreTrainedModel, kv_mb: int) -> None:
        self.model = model
        self.device, self.dtype = model.device, model.dtype
        self.max_length = _exact_length(model.config)
        expected, shapes = _reference_pass(model)
        if len(set(shapes)) != 1:
            raise _unsupported(model, "its layers have keys of different shapes")
        heads, width = shapes[0]
        self.cache = PagedCache(
            layers=len(shapes),
            heads=heads,
            width=width,
            dtype=self.dtype,
            device=self.device,
            max_bytes=kv_mb * MB,
        )
        self.quantized = is_quantized(model)
        register_attention()
        model.set_attn_implementation(ATTENTION)
        fuse_layers(model)
        try:
            self._check(expected)
        except TypeError as error:  # its layers do not pass on what the attention needs
            raise _unsupported(model, first_line(error)) from error

    @property
    def weight_bytes(self) -> int:
        """Of parameters and buffers, without adapters."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        held = {  # tied layers share their memory; oneDNN does not tell where it keeps its own
            id(tensor) if tensor.is_mkldnn else tensor.data_ptr(): tensor.nbytes for tensor in tensors
        }
        kinds = HalfLinear | PackedInt8Linear
        packed = (part.packed_bytes for part in self.model.modules() if isinstance(part, kinds))
        return sum(held.values()) + sum(packed)

    @torch.inference_mode()
    def prefill(self, tables: Tables, parts: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Run each row's part of a prompt from a start. Returns the logits after each: (rows, vocabulary)."""
        lengths = [len(part) for part in parts]
        lasts = sorted({length - 1 for length in lengths})
        logits = self._forward(tables, parts, starts, keep=torch.tensor(lasts, device=self.device))
        return logits[range(len(parts)), [lasts.index(length - 1) for length in lengths]]

    @torch.inference_mode()
    def advance(self, tables: Tables, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Run one token in each row. Returns the logits after each: (rows, vocabulary).

        Rows may share a table: keys and values of all are written before any reads them, so a row sees those of
        the same sequence at earlier positions.
        """
        return self._forward(tables, [[token] for token in tokens], positions, keep=1)[:, 0]

    def pass_seconds(self) -> list[float]:
        """Measured times of `advance` over 1, 2, 3... rows of some length, interpolated.

        On a CPU in seconds of this thread, which other work of the machine changes little.
        """
        clock = time.thread_time if self.device.type == "cpu" else time.perf_counter
        table = [1] * -(-_TIMED_POSITIONS // BLOCK)
        rows = [2**power for power in range(_TIMED_DOUBLINGS + 1)]
        seconds = [math.inf] * len(rows)
        for _ in range(_TIMINGS):
            for index, count in enumerate(rows):
                start = clock()
                self.advance([table] * count, [1] * count, [_TIMED_POSITIONS - 1] * count).sum().item()
                seconds[index] = min(seconds[index], clock() - start)
        return np.interp(range(1, rows[-1] + 1), rows, np.maximum.accumulate(seconds)).tolist()

    def _forward(
        self, tables: Tables, parts: Sequence[Sequence[int]], starts: Sequence[int], keep: Tensor | int
    ) -> Tensor:
        positions = self.cache.select(tables, starts, [len(part) for part in parts])
        width = positions.shape[1]
        output = self.model(
            input_ids=torch.tensor([[*part, *[0] * (width - len(part))] for part in parts], device=self.device),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
            paged_cache=self.cache,
        )
        logits: Tensor = output.logits.float()
        return logits

    def _check(self, expected: Tensor) -> None:
        """Compare prefill, continuation, batches and single steps with expected: (tokens, vocabulary)."""
        one, other = [[1], [2]]
        got = [
            self.prefill([one], [_PROBE[:3]], [0]),
            self.prefill([one], [_PROBE[3:5]], [3]),
            self.advance([one], _PROBE[5:], [5]),
            self.prefill([other, one], [_PROBE[:2], _PROBE[3:5]], [0, 3]),
            self.advance([other, other], _PROBE[2:4], [2, 3]),
        ]
        indices = [2, 4, 5, 1, 4, 2, 3]
        moved = moved_mass(torch.log_softmax(torch.cat(got), -1), expected[indices])
        if not moved <= TOLERANCE[torch.int8 if self.quantized else self.dtype]:
            raise _unsupported(
                self.model,
                f"its distributions differ from those of transformers by {moved:.2g} of the probability",
            )


def load_model(
    model_dir: Path, device: str, dtype: torch.dtype, *, kv_mb: int = 0, adapters: int = 0
) -> PreTrainedModel:
    """A model, to be served with `kv_mb` of cache and at most so many adapters. int8 is made of what was read.

    Raises ModelError if the weights cannot be read or do not fit the config, a layer has windowed attention,
    or int8 moves the distributions too far, and ModelMemoryError if host or device have no room for all of it.
    """
    read = saved_dtype(model_dir) if dtype == torch.int8 else dtype
    needs = served_needs(
        model_dir,
        weight_format(model_dir, torch.device(device), dtype),
        cache=kv_mb * MB,
        adapters=adapters,
        gpu=has_own_memory(torch.device(device)),
    )
    check_memory(model_dir, needs, torch.device(device))
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # problems of the weights are reported below, in one line
    try:
        config = AutoConfig.from_pretrained(model_dir)
        kinds = set(getattr(config.get_text_config(), "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"}:
            raise ModelError(
                f"{model_dir} has {', '.join(sorted(kinds))} layers: serve it with vLLM (ENGINE_URLS)."
            )
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # its annotation lacks the loading info
            model_dir,
            config=config,
            dtype=read,
            attn_implementation="eager",
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"the model in {model_dir} cannot be loaded: {first_line(error)}. Copy the model directory again."
        ) from error
    model: PreTrainedModel = loaded[0]
    _check_weights(model_dir, loaded[1])
    with report_exhaustion(f"while the model in {model_dir} was moved to {device}", _LESS_MEMORY):
        model.to(torch.device(device))  # type: ignore[arg-type]  # its wrapper is annotated with a string literal
    model.eval()
    if dtype == torch.int8:
        _quantize(model)
    return model


def _exact_length(config: PretrainedConfig) -> int:
    """The longest sequence for which this engine computes what transformers does.

    Windows are not computed, so no token may leave one; layers with windows of their own are refused. Positions of
    the type longrope are turned otherwise in a pass that holds a longer sequence: so would be those of its
    neighbors, and of keys that are cached.
    """
    text: Any = config.get_text_config()
    lengths: list[int] = [text.max_position_embeddings]
    if not getattr(text, "layer_types", None) and getattr(text, "sliding_window", None):
        lengths.append(text.sliding_window)
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        lengths.append(rope["original_max_position_embeddings"])
    return min(lengths)


def _quantize(model: PreTrainedModel) -> None:
    expected, _ = _reference_pass(model)
    quantize_layers(model)
    got, _ = _reference_pass(model)
    moved = moved_mass(got, expected)
    if not moved <= INT8_TOLERANCE:
        raise ModelError(
            f"int8 weights move {moved:.2g} of the probability of a {type(model).__name__}'s next tokens: serve "
            "it with SAGE_ENGINE_DTYPE=float32 (--dtype float32)."
        )


def _check_weights(model_dir: Path, loading: Mapping[str, Collection[Any]]) -> None:
    """transformers would fill missing or mismatched weights with random numbers."""
    for kind, words in (("missing", "lack"), ("mismatched", "have another shape of")):
        if others := sorted(str(key) if isinstance(key, str) else key[0] for key in loading[f"{kind}_keys"]):
            raise ModelError(
                f"the weights in {model_dir} do not match its config.json: they {words} {others[0]} "
                f"({len(others)} in all). Copy the model directory again."
            )


@torch.inference_mode()
def _reference_pass(model: PreTrainedModel) -> tuple[Tensor, list[tuple[int, int]]]:
    """transformers' own forward pass: logprobs (tokens, vocabulary), and heads and width of each layer's keys."""
    cache = DynamicCache(config=model.config)
    output = model(input_ids=torch.tensor([_PROBE], device=model.device), past_key_values=cache, use_cache=True)
    keys = [layer.keys for layer in cache.layers if isinstance(layer, DynamicLayer) and layer.keys is not None]
    shapes = [(key.shape[1], key.shape[3]) for key in keys]
    return torch.log_softmax(output.logits[0].float(), -1), shapes


def _unsupported(model: PreTrainedModel, reason: str) -> ModelError:
    return ModelError(
        f"the embedded engine cannot serve a {type(model).__name__}: {reason}. "
        "Serve it with vLLM and set ENGINE_URLS."
    )
