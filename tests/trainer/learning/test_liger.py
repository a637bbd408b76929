"""Liger's kernels compute the same numbers, and are refused by name where they cannot run."""

from pathlib import Path

import pytest
import torch

from app.base.errors import InvalidError
from tests.support.tiny_model import make_model_dir
from trainer.learning.model import load_model


def test_liger_is_refused_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="NVIDIA GPU, not on cpu"):
        load_model(make_model_dir(tmp_path), torch.device("cpu"), liger=True)


@pytest.mark.gpu
def test_liger_changes_the_speed_and_not_the_numbers(tmp_path: Path) -> None:
    path, gpu = make_model_dir(tmp_path, "llama"), torch.device("cuda")
    ids = torch.arange(40, device=gpu)[None]
    with torch.no_grad():
        plain = load_model(path, gpu)(ids).logits
        torch.testing.assert_close(load_model(path, gpu, liger=True)(ids).logits, plain, atol=1e-3, rtol=1e-3)
