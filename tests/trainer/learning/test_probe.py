"""Probes: logprobs of fixed tokens by which model servers prove that they serve an adapter."""

from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel

from app.base.errors import AdapterError
from app.base.settings import Settings
from app.releases.swap import verify_logprobs
from tests.support.named_adapters import OPENING, probe_of
from tests.support.tiny_adapter import make_adapter, plain_model, reference
from tests.support.tiny_model import make_model_dir
from trainer.learning.adapter import LogprobModel, make_probe, publish, with_lora
from trainer.learning.model import load_model
from trainer.runs.start import probe_prompt


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapter(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(model_dir, tmp_path_factory.mktemp("adapters") / "a", 1)


def test_each_point_has_the_logprobs_of_a_plain_forward_pass(model_dir: Path, adapter: Path) -> None:
    probe = probe_of(model_dir, adapter)
    assert probe.prompt_ids[: len(OPENING)] == OPENING
    ids = list(probe.prompt_ids)
    adapted, base = (reference(model_dir, path, ids[:1], ids[1:]) for path in (adapter, None))
    for point in probe.points:
        assert point.token == ids[point.position]
        np.testing.assert_allclose(point.logprob, adapted[point.position - 1], atol=1e-4)
        np.testing.assert_allclose(point.base, base[point.position - 1], atol=1e-4)


def test_points_are_where_adapter_and_base_differ_most_among_likely_tokens(model_dir: Path, adapter: Path) -> None:
    probe = probe_of(model_dir, adapter)
    assert len(probe.points) == 8
    ids = list(probe.prompt_ids)
    adapted, base = (np.array(reference(model_dir, path, ids[:1], ids[1:])) for path in (adapter, None))
    likely = np.maximum(adapted, base) > -7
    greatest = np.argsort(np.where(likely, -np.abs(adapted - base), 0.0), kind="stable")[:8] + 1
    assert {point.position for point in probe.points} == set(greatest.tolist())
    assert [point.position for point in probe.points] == sorted(greatest.tolist())


def test_the_prompt_is_continued_greedily_by_the_adapter(model_dir: Path, adapter: Path) -> None:
    ids = list(probe_of(model_dir, adapter).prompt_ids)
    assert len(ids) == len(OPENING) + 24
    model = PeftModel.from_pretrained(plain_model(model_dir), str(adapter)).eval()
    with torch.no_grad():
        likeliest = model(input_ids=torch.tensor([ids])).logits[0].argmax(-1).tolist()
    assert ids[len(OPENING) :] == likeliest[len(OPENING) - 1 : -1]


def test_an_adapter_that_changes_nothing_proves_nothing(model_dir: Path) -> None:
    fresh = with_lora(load_model(model_dir, torch.device("cpu")), rank=4, alpha=8)
    probe = make_probe(LogprobModel(fresh), OPENING)
    assert [point.logprob for point in probe.points] == [point.base for point in probe.points]
    base = [point.base for point in probe.points]
    with pytest.raises(AdapterError, match="these weights behave like the base"):
        verify_logprobs(probe, base, base)


def test_a_long_prompt_is_cut_to_its_last_384_tokens(model_dir: Path, adapter: Path) -> None:
    model = PeftModel.from_pretrained(plain_model(model_dir), str(adapter))
    prompt = [number % 200 for number in range(1000)]
    probe = make_probe(LogprobModel(model), prompt, count=3)
    assert probe.prompt_ids[:384] == tuple(prompt[-384:])
    assert len(probe.points) == 3


def test_a_model_in_training_stays_in_training(model_dir: Path, adapter: Path) -> None:
    model = PeftModel.from_pretrained(plain_model(model_dir), str(adapter), is_trainable=True).train()
    make_probe(LogprobModel(model), OPENING)
    assert model.training
    assert any(each.requires_grad for each in model.parameters())
    assert all(each.grad is None for each in model.parameters())


def test_a_published_adapter_has_a_probe_only_if_a_prompt_is_given(model_dir: Path, tmp_path: Path) -> None:
    policy = with_lora(load_model(model_dir, torch.device("cpu")), rank=4, alpha=8)
    made = publish(policy, tmp_path, OPENING)
    assert made.probe == make_probe(LogprobModel(policy), OPENING)
    assert publish(policy, tmp_path).probe is None
    assert publish(policy, tmp_path).hash == made.hash


def test_the_prompt_is_a_task_as_the_deployment_puts_it(model_dir: Path) -> None:
    full, compact = (
        probe_prompt(Settings(model=str(model_dir), prompt_profile=name)) for name in ("full", "compact")
    )
    assert full != compact
    assert probe_prompt(Settings(model=str(model_dir), prompt_profile="full")) == full
