"""Number formats of training: which one the frozen base model is loaded in.

LoRA weights, their gradients and the optimizer are float32 in every case (`with_lora`); only the base may be
bfloat16.
"""

from pathlib import Path
from typing import Literal

import torch

from app.model_server.model_dtype import resolve_dtype

DtypeName = Literal["auto", "float32", "bfloat16"]


def base_dtype(name: DtypeName, device: torch.device, model_dir: Path) -> torch.dtype:
    """The format of the base model's weights. "auto" is bfloat16 on CUDA; elsewhere as for serving, where passes
    of many tokens at once are faster in it and the weights lose nothing.
    """
    if name == "auto" and device.type == "cuda":
        return torch.bfloat16
    return resolve_dtype(name, device.type, model_dir, rows="many")
