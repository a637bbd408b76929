"""The optimizer steps of SAGE: whole trajectories in, better LoRA weights out, on one device or on many."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import PreTrainedModel

from app.errors import InvalidError
from app.run_settings import RunSettings
from trainer.learning.batch import Batch
from trainer.learning.distributed import ProcessGroup, like, whole
from trainer.learning.lora import PublishedAdapter, publish
from trainer.learning.micro_batch import MicroBatch
from trainer.learning.model import sampled_logprobs, save_atomically
from trainer.learning.training_samples import TrainingSample, divide, training_samples
from trainer.sage.advantages import AdvantagedRollout
from trainer.sage.loss import policy_loss

_WATCHED = 8  # trajectories of a step whose distance from the start is measured, where no penalty needs it of all


class UpdateStats(msgspec.Struct, frozen=True, kw_only=True):
    """What one update did: loss, norm and clip of its last optimizer step, the others from before the first."""

    loss: float
    grad_norm: float  # before clipping
    clip_fraction: float  # of the sampled tokens: what the clip kept from learning
    ratio_mean: float  # p / p of the policy that sampled, as its engine reported it
    ratio_max: float
    kl_to_engine: float  # estimated divergence of the engine that sampled: almost 0 where nothing is stale
    kl_to_start: float  # estimated divergence from where the run began
    tokens: int  # sampled ones that were learned from
    read_tokens: int  # these and what stood between them
    samples: int


class Scorer(nn.Module):
    """The policy as one module with one forward pass, so that wrappers for many devices hook on to it."""

    def __init__(self, model: PeftModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        """log p of each sampled token, (N,), in row-major order."""
        base = cast(PreTrainedModel, self.model.get_base_model())  # with the LoRA layers in it
        return sampled_logprobs(base, batch)


class Learner:
    """A policy, its optimizer and the rules of its updates."""

    def __init__(
        self,
        model: PeftModel,
        settings: RunSettings,
        accelerator: Accelerator | None = None,
        *,
        shard: bool | None = None,
    ) -> None:
        """`shard` decides whether processes share the weights; None leaves it to how `accelerate` was launched."""
        self.settings = settings
        self.model = model
        self.steps = 0
        scorer = Scorer(model).train(settings.gradient_checkpointing)
        if settings.gradient_checkpointing:
            _keep_less(model)
        self._processes = ProcessGroup(accelerator or Accelerator(cpu=model.device.type == "cpu"), shard)
        layers = cast(PreTrainedModel, model.get_base_model())._no_split_modules or ()
        self._scorer = self._processes.place(scorer, layers)
        self._trained = {name: each for name, each in self._scorer.named_parameters() if each.requires_grad}
        self._start = {name: each.detach().clone() for name, each in self._trained.items()}
        self._optimizer = AdamW(
            self._trained.values(),
            lr=settings.lr,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=not self._processes.sharded,
        )

    def scores(self, batch: Batch) -> Tensor:
        """log p of each sampled token, (N,), in row-major order, under the policy as it is."""
        logprobs: Tensor = self._scorer(batch)
        return logprobs

    def update(self, advantaged: Sequence[AdvantagedRollout]) -> UpdateStats | None:
        """`settings.epochs` optimizer steps on what one round of rollouts taught. None if it taught nothing.

        Every process is given the same rollouts. Raises InvalidError where a gradient is not finite; the weights
        are then as before that step.
        """
        items = training_samples(advantaged)
        if not items:
            return None
        parts = self._parts(items)
        self._refer(parts)
        for _ in range(self.settings.epochs):
            loss, clipped, norm = self._step(parts)
        tokens, ratio, from_engine, watched, from_start, highest = self._figures(parts)
        return UpdateStats(
            loss=loss,
            grad_norm=norm,
            clip_fraction=clipped / tokens,
            ratio_mean=ratio / tokens,
            ratio_max=highest,
            kl_to_engine=from_engine / tokens,
            kl_to_start=from_start / watched,
            tokens=int(tokens),
            read_tokens=sum(len(item.sample.ids) for item in items),
            samples=len(items),
        )

    def _parts(self, items: Sequence[TrainingSample]) -> list[MicroBatch]:
        """This process's. Those that share the weights make as many passes as each other, some of them idle."""
        shares = divide(items, self.settings.micro_batch_tokens, self._processes.count)
        parts = [MicroBatch(each, self._processes.device) for each in shares[self._processes.index]]
        if self._processes.sharded:
            passes = max(map(len, shares))
            parts += [MicroBatch(items[:1], self._processes.device, idle=True) for _ in range(passes - len(parts))]
        return parts

    @torch.no_grad()
    def _refer(self, parts: Sequence[MicroBatch]) -> None:
        """Ask the weights that the run began with."""
        every = max(1, _WATCHED // max(1, len(parts)))
        with self._at_start():
            for part in parts:
                part.reference = self.scores(part.watch(len(part) if self.settings.kl else every))

    def _step(self, parts: Sequence[MicroBatch]) -> tuple[float, float, float]:
        """One optimizer step: the loss, how many tokens were clipped, the norm of the gradient."""
        total = clipped = 0.0
        for part in parts:
            loss, stopped = self._loss(part)
            self._processes.backward(loss)
            total += loss.item()
            clipped += 0 if part.idle else stopped.item()
        trained = list(self._trained.values())
        self._processes.add_up(trained)
        norm = self._processes.clip(trained, self.settings.grad_clip)
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise InvalidError(f"the gradient of step {self.steps + 1} is not finite: try a lower lr")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        everywhere = self._processes.gather([total, clipped])
        return sum(each[0] for each in everywhere), sum(each[1] for each in everywhere), norm

    def _loss(self, part: MicroBatch) -> tuple[Tensor, Tensor]:
        logprobs = self.scores(part.batch)
        settings = self.settings
        if part.start is None:
            part.start = logprobs.detach()
        return policy_loss(
            logprobs,
            part.terms(settings.max_weight),
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            kl=settings.kl,
        )

    def _figures(self, parts: Sequence[MicroBatch]) -> list[float]:
        """Of all processes: sums, and the highest ratio last."""
        found = [part.figures() for part in parts if not part.idle] or [[0.0] * 6]
        own = [sum(column) for column in zip(*found, strict=True)]
        everywhere = self._processes.gather([*own[:-1], max(each[-1] for each in found)])
        columns = list(zip(*everywhere, strict=True))
        return [*(sum(column) for column in columns[:-1]), max(columns[-1])]

    @contextmanager
    def _at_start(self) -> Iterator[None]:
        """The weights as they were when the run began."""
        present = {name: each.detach().clone() for name, each in self._trained.items()}
        self._put(self._start)
        try:
            yield
        finally:
            self._put(present)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(weights[name])

    def publish(self, root: Path, opening: Sequence[int] = ()) -> PublishedAdapter:
        """The policy as it is, as `publish` writes it."""
        return publish(self.model, root, opening)

    def save(self, path: Path) -> None:
        """Everything that `restore` needs to go on as if nothing had happened. Whole on the disk or not at all."""
        state = self.state()
        if self._processes.index == 0:
            save_atomically(state, path)
        self._processes.wait()

    def state(self) -> dict[str, Any]:
        moments = {name: self._optimizer.state.get(each, {}) for name, each in self._trained.items()}
        return {
            "steps": self.steps,
            "weights": {name: whole(each) for name, each in self._trained.items()},
            "start": {name: whole(each) for name, each in self._start.items()},
            "moments": {name: {key: whole(each) for key, each in own.items()} for name, own in moments.items()},
        }

    def restore(self, path: Path) -> None:
        """Raises InvalidError for a checkpoint of another adapter."""
        state = torch.load(path, map_location="cpu", weights_only=True)
        shapes = {name: each.shape for name, each in self._trained.items()}
        if {name: each.shape for name, each in state["weights"].items()} != shapes:
            raise InvalidError(f"the checkpoint {path.name} is of another model or rank: remove it to begin anew")
        self.steps = state["steps"]
        self._put({name: like(each, self._trained[name]) for name, each in state["weights"].items()})
        self._start = {name: like(each, self._trained[name]) for name, each in state["start"].items()}
        self._optimizer.load_state_dict(  # it knows on which device the count of its steps has to be
            self._optimizer.state_dict()
            | {
                "state": {
                    number: _laid_out(state["moments"][name], parameter)
                    for number, (name, parameter) in enumerate(self._trained.items())
                }
            }
        )


def _laid_out(moments: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """As the parameter is, where one value belongs to each of its own."""
    return {key: like(each, parameter) if each.shape == parameter.shape else each for key, each in moments.items()}


def _keep_less(model: PeftModel) -> None:
    """Gradient checkpointing: activations inside a layer are computed again instead of kept."""
    base = cast(PreTrainedModel, model.get_base_model())
    base.activation_checkpointing_enable()
    base.disable_input_require_grads()  # which the first layer then computes for nothing
