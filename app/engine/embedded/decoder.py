"""Forward passes for the scheduler: prefill rows, or advance all rows by one token."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.utils import logging as transformers_logging

from app.engine.embedded.kv_cache import ATTENTION, RowCache, register_attention
from app.errors import ModelError, first_line

_PROBE = (1, 2, 3, 5, 8, 13)
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.3}


class Decoder:
    """Not thread-safe: owned by one thread."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        """Raises ModelError if the logits for this architecture differ from those of transformers."""
        self.model = model
        self.device, self.dtype = model.device, model.dtype
        expected, shapes = _reference_pass(model)
        if len(set(shapes)) != 1:
            raise _unsupported(model, "its layers have keys of different shapes")
        heads, width = shapes[0]
        self.cache = RowCache(
            layers=len(shapes), rows=rows, heads=heads, width=width, dtype=self.dtype, device=str(self.device)
        )
        register_attention()
        model.set_attn_implementation(ATTENTION)
        self._check(expected)

    @torch.inference_mode()
    def prefill(self, row: int, ids: Sequence[int], start: int) -> Tensor:
        """Run `ids` at positions `start`... of a row. Returns the logits after the last: (1, vocabulary)."""
        self.cache.select_row(row, start, len(ids))
        positions = torch.arange(start, start + len(ids), device=self.device)
        mask = None if start == 0 and len(ids) > 1 else self._mask(positions[None], start + len(ids))
        return self._forward(torch.tensor([ids], device=self.device), positions[None], mask)[:, -1]

    @torch.inference_mode()
    def prefill_rows(self, row: int, parts: Sequence[Sequence[int]], starts: Sequence[int]) -> Tensor:
        """Prefill neighboring rows, one per part, in one pass. Returns logits (parts, vocabulary).

        Shorter parts are padded at the end. Padding writes cache positions behind the row's own tokens, which are
        masked until they are overwritten.
        """
        if len(parts) == 1:
            return self.prefill(row, parts[0], starts[0])
        width = max(len(part) for part in parts)
        ids = torch.tensor([[*part, *[0] * (width - len(part))] for part in parts], device=self.device)
        positions = torch.tensor(starts, device=self.device)[:, None] + torch.arange(width, device=self.device)
        self.cache.select_rows(row, positions, max(starts) + width)
        lasts = sorted({len(part) - 1 for part in parts})
        mask = self._mask(positions, max(starts) + width)
        logits = self._forward(ids, positions, mask, keep=torch.tensor(lasts, device=self.device))
        return logits[range(len(parts)), [lasts.index(len(part) - 1) for part in parts]]

    @torch.inference_mode()
    def advance(self, tokens: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Run one token in each of the first n rows. Returns the logits after each: (n, vocabulary)."""
        length = max(positions) + 1
        position_ids = torch.tensor(positions, device=self.device)
        self.cache.select_rows(0, position_ids[:, None], length)
        mask = self._mask(position_ids[:, None], length)
        return self._forward(torch.tensor(tokens, device=self.device)[:, None], position_ids[:, None], mask)[:, -1]

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None, keep: Tensor | int = 1) -> Tensor:
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits.float()
        return logits

    def _mask(self, positions: Tensor, length: int) -> Tensor:
        """A causal mask. positions: (rows, tokens).

        Returns (rows, 1, tokens, length), added to scores.
        """
        later = torch.arange(length, device=self.device) > positions[:, None, :, None]
        return torch.zeros(later.shape, dtype=self.dtype, device=self.device).masked_fill_(later, float("-inf"))

    def _check(self, expected: Tensor) -> None:
        """Compare prefill, continuation, batches and single steps with expected: (tokens, vocabulary)."""
        got = [
            self.prefill(0, _PROBE[:3], 0),
            self.prefill(0, _PROBE[3:5], 3),
            self.advance(_PROBE[5:], [5]),
        ]
        indices = [2, 4, 5]
        if self.cache.rows > 1:
            got.append(self.prefill_rows(0, [_PROBE[3:5], _PROBE[:2]], [3, 0]))
            indices += [4, 1]
        distance = (torch.log_softmax(torch.cat(got), -1) - expected[indices]).abs().max().item()
        if not distance <= _TOLERANCE[self.dtype]:
            raise _unsupported(self.model, f"logprobs differ by {distance:.2g} from those of transformers")


def load_model(model_dir: Path, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """Raises ModelError if the weights cannot be read or do not fit the config, or attention is windowed."""
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
            dtype=dtype,
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
    model.to(torch.device(device))  # type: ignore[arg-type]  # its wrapper is annotated with a string literal
    model.eval()
    return model


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
