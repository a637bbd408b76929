"""The memory of all processes of a run on a CPU, checked before the first of them starts."""

import torch

from app.engine.available_memory import memory_available
from app.engine.model_memory import MemoryNeed, check_fits, served_needs, trained_needs, usual_format
from app.run_settings import RunKind, RunSettings
from app.settings import Settings
from trainer.learning.activation_memory import ACTIVATION_BYTES
from trainer.learning.precision import base_dtype
from trainer.rollouts.stack import engine_count

_ROLLOUT_ADAPTERS = 2  # of the present step and the one before
_ADVICE = "lower SAGE_TRAIN_PROCESSES or SAGE_ENGINE_KV_MB, or set gradient_checkpointing"


def check_run_memory(
    settings: RunSettings, deployment: Settings, device: torch.device, *, runs: int = 1, advice: str = _ADVICE
) -> None:
    """Raises ModelMemoryError if the host has less than all processes of so many such runs need together.

    A GPU is checked by the process that uses it. Processes that hold parts of a model are not checked.
    """
    if device.type == "cpu" and not deployment.train_shard:
        need = run_need(settings, deployment, device)
        every = MemoryNeed(
            tuple((runs * size, use if runs == 1 else f"{runs} x {use}") for size, use in need.parts)
        )
        check_fits(deployment.model_dir, every, memory_available(), doing="training with ", advice=advice)


def run_need(settings: RunSettings, deployment: Settings, device: torch.device) -> MemoryNeed:
    """Of the processes that update, and of the engines that roll out."""
    path, rolls_out = deployment.model_dir, settings.kind in (RunKind.ROLLOUT, RunKind.PRACTICE)
    learner = trained_needs(
        path,
        base_dtype(deployment.train_dtype, device, path).itemsize,
        rank=settings.lora_rank,
        kept_tokens=0 if settings.gradient_checkpointing else settings.micro_batch_tokens,
        most_kept=ACTIVATION_BYTES,
    ).host
    engine = served_needs(
        path,
        usual_format(path, deployment.engine_dtype),
        cache=deployment.engine_kv_mb << 20,
        adapters=_ROLLOUT_ADAPTERS,
    ).host
    learners = 1 if settings.kind is RunKind.SFT else deployment.train_processes
    engines = engine_count(deployment) if rolls_out and not deployment.rollout_engine_urls else 0
    return MemoryNeed(
        (
            (learners * learner.total, f"{learners} x updates of {learner}"),
            (engines * engine.total, f"{engines} x rollouts of {engine}"),
        )
    )
