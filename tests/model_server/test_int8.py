"""int8 weights: what they change, that all passes are those of one policy, and what they need of memory."""

import re
from pathlib import Path

import httpx
import pytest
import torch
from torch import nn

from app.base.errors import ModelError
from app.base.settings import EngineDtype
from app.engine.memory import WeightFormat, served_needs, weights_in
from app.engine.protocol import Sampling
from app.model_server.decoder import MB, Decoder, load_model
from app.model_server.device import moved_mass, resolve_dtype
from app.model_server.layers import (
    Int8Activations,
    Int8Embedding,
    Int8Linear,
    PackedInt8Linear,
    can_pack,
    quantize,
    quantize_layers,
)
from app.model_server.lora import AdapterSet
from app.model_server.scheduler import EngineMetrics, Scheduler
from tests.model_server.test_engine_scheduler import begin
from tests.support.engine_process import engine_process
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir
from trainer.engines.embedded import subprocess_engine

PROMPT = [number * 7 % 250 for number in range(70)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


def test_a_row_of_weights_is_rounded_to_255_steps_of_its_own() -> None:
    integers, scale = quantize(torch.tensor([[1.27, -0.5, 0.004], [0.0, 0.0, 0.0], [-100.0, 50.0, 25.3]]))
    assert integers.tolist() == [[127, -50, 0], [0, 0, 0], [-127, 64, 32]]
    assert scale[[0, 2]].tolist() == pytest.approx([0.01, 100 / 127])


@pytest.fixture(params=[Int8Linear, PackedInt8Linear])
def kind(request: pytest.FixtureRequest) -> type[Int8Linear]:
    if request.param is PackedInt8Linear and not can_pack():
        pytest.skip("fbgemm is for x86")
    found: type[Int8Linear] = request.param
    return found


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 17)])
def test_products_are_those_of_the_rounded_weights(shape: tuple[int, int], kind: type[Int8Linear]) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(33, 65), torch.randn(33), torch.randn(*shape, 65) * 5
    x[0, 0, 3] = 400  # an outlier leaves 7 bits too few levels for the rest
    integers, scale = quantize(weight)
    expected = nn.functional.linear(x, integers * scale[:, None], bias)
    found = kind(integers, scale, bias, Int8Activations())(x)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 400 / 63 / 126 * 65 / 2 * scale.max() * 127
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_a_token_is_computed_alike_whatever_is_beside_it(kind: type[Int8Linear]) -> None:
    torch.manual_seed(0)
    layer = kind(*quantize(torch.randn(31, 64)), None, Int8Activations())
    x = torch.randn(40, 1, 64)
    together = layer(x)
    assert all(torch.equal(layer(x[row : row + 1].clone())[0], together[row]) for row in range(40))


def test_values_that_are_not_finite_stay_in_their_row(kind: type[Int8Linear]) -> None:
    layer = kind(*quantize(torch.randn(8, 16)), None, Int8Activations())
    x = torch.randn(4, 1, 16)
    x[1, 0, 2], x[2, 0, 5] = float("nan"), float("inf")
    assert layer(x).isfinite().all(-1).flatten().tolist() == [True, False, False, True]


def test_the_largest_sums_do_not_overflow(kind: type[Int8Linear]) -> None:
    layer = kind(*quantize(torch.ones(8, 1536)), None, Int8Activations())
    assert layer(torch.full((1, 1, 1536), 3.0)).flatten().tolist() == pytest.approx([4608.0] * 8, rel=1e-6)


def test_tied_weights_are_quantized_once() -> None:
    linear, embedding = nn.Linear(8, 20, bias=False), nn.Embedding(20, 8)
    linear.weight = embedding.weight
    model = nn.ModuleDict({"embedding": embedding, "head": linear, "norm": nn.LayerNorm(8).bfloat16()})
    quantize_layers(model)
    assert isinstance(model["embedding"], Int8Embedding)
    assert model["embedding"].weight is model["head"].weight
    assert {each.dtype for each in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_prompts_drafts_and_batches_have_the_logprobs_of_one_policy(tmp_path: Path, architecture: str) -> None:
    """That of transformers with the same integers and the adapter, which stays as it was."""
    model_dir = make_model_dir(tmp_path / "model", architecture, spread=0.1)
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    torch.set_num_threads(1)
    decoder = Decoder(load_model(model_dir, "cpu", torch.int8), 64)
    adapters, metrics = AdapterSet(decoder.model), EngineMetrics()
    adapters.install(1, adapters.read(adapter))
    scheduler = Scheduler(decoder, adapters, metrics, on_death=lambda: None, pass_seconds=[1.0] * 1200)
    scheduler.start()
    prompts = [[*PROMPT[: 20 + row], *[1, 2, 3, 4] * 5] for row in range(4)]
    waits = [begin(scheduler, prompt, 25, row % 2, row, temperature=0.0) for row, prompt in enumerate(prompts)]
    answers = [wait() for wait in waits]
    again = begin(scheduler, [*prompts[1], *answers[1].ids[:10]], 15, 1, temperature=0.0)()
    scheduler.stop()
    assert again.ids == answers[1].ids[10:]
    assert again.logprobs == pytest.approx(answers[1].logprobs[10:], abs=1e-3)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        adapters.routing.set([row % 2], torch.device("cpu"))
        whole = [*prompt, *answer.ids]
        table = list(range(10, 10 + len(whole)))
        decoder.prefill([table], [prompt], [0])
        steps = range(len(prompt) - 1, len(whole) - 1)
        logits = torch.cat([decoder.advance([table], [whole[at]], [at]) for at in steps])
        logprobs = torch.log_softmax(logits, -1)
        found = [float(logprobs[step, token]) for step, token in enumerate(answer.ids)]
        assert answer.logprobs == pytest.approx(found, abs=1e-3)


def test_int8_moves_a_little_of_the_probability_and_is_not_float32(model_dir: Path) -> None:
    table = list(range(1, 20))
    logprobs = [
        torch.log_softmax(Decoder(load_model(model_dir, "cpu", dtype), 1).prefill([table], [PROMPT], [0]), -1)
        for dtype in (torch.float32, torch.int8)
    ]
    assert 1e-4 < moved_mass(*logprobs) < 0.25


def test_a_model_that_eight_bits_change_too_much_is_refused(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path, spread=6.0)
    with pytest.raises(ModelError, match=re.escape("serve it with SAGE_ENGINE_DTYPE=float32 (--dtype float32)")):
        load_model(model_dir, "cpu", torch.int8)


def test_int8_is_for_cpus(model_dir: Path) -> None:
    assert resolve_dtype("int8", "cpu", model_dir) == torch.int8
    with pytest.raises(ModelError, match="SAGE_ENGINE_DTYPE=int8"):
        resolve_dtype("int8", "cuda", model_dir)


def test_the_memory_needed_is_that_of_reading_the_weights_if_it_is_more(tmp_path: Path) -> None:
    model_dir = make_model_dir(tmp_path)
    count = weights_in(model_dir)
    large_cache = served_needs(model_dir, WeightFormat(bytes_per_weight=1, bytes_to_read=2), cache=999 * MB).host
    assert large_cache.total == count + (999 + 850) * MB
    many_bytes = served_needs(model_dir, WeightFormat(bytes_per_weight=1, bytes_to_read=1000), cache=MB).host
    assert many_bytes.total == 1000 * count + 850 * MB


def test_a_server_of_int8_loads_adapters_and_answers(model_dir: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model_dir, tmp_path / "adapter", 1)
    with (
        engine_process(model_dir, "--embeddings", "none", "--dtype", "int8") as url,
        httpx.Client(base_url=url, timeout=300) as http,
    ):
        http.post("/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": str(adapter)}).raise_for_status()
        body = {"model": "a", "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
        answer = http.post("/v1/completions", json=body).raise_for_status().json()
    assert answer["usage"]["completion_tokens"] == 5


async def test_the_trainers_engine_takes_int8(model_dir: Path) -> None:
    sampling, dtypes = Sampling(max_tokens=8, temperature=0), list[EngineDtype](["auto", "float32", "int8"])
    answers = []
    for dtype in dtypes:
        async with subprocess_engine(model_dir, "cpu", dtype=dtype, rows=4) as engine:
            answers.append(await engine.complete(PROMPT, model="base", sampling=sampling))
    assert answers[0].logprobs == answers[1].logprobs != answers[2].logprobs
