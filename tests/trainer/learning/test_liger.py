"""Liger's kernels compute the same numbers, where they are installed."""

from pathlib import Path

import pytest
import torch

from tests.support.tiny_model import make_model_dir
from trainer.learning import model as model_module
from trainer.learning.model import load_model


@pytest.mark.gpu
def test_liger_changes_the_speed_and_not_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, gpu = make_model_dir(tmp_path, "llama"), torch.device("cuda")
    ids = torch.arange(40, device=gpu)[None]
    with torch.no_grad():
        with monkeypatch.context() as without:  # first: the kernels are put into the class of the model
            without.setattr(model_module, "is_liger_kernel_available", lambda: False)
            plain = load_model(path, gpu)(ids).logits
        torch.testing.assert_close(load_model(path, gpu)(ids).logits, plain, atol=1e-3, rtol=1e-3)
