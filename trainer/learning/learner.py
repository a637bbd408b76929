"""The optimizer steps of SAGE: complete trajectories in, updated LoRA weights out, on one device or on many.

A learning rate that suits one model ruins another one: an optimizer that divides gradients by their size moves
all weights by about as much, whatever the gradients say. The divergence of the policies tells how far a step
went, and those that take a policy too far from the one that sampled what they learn from are shortened.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from accelerate import Accelerator
from peft import PeftModel
from torch import Tensor
from torch.optim import AdamW
from transformers import PreTrainedModel

from app.base.errors import InvalidError
from app.base.run_settings import RunKind, RunSettings
from app.base.values import Json, Probe
from trainer.learning.adapter import LogprobModel, PublishedAdapter, lora_weights, make_probe, write_adapter
from trainer.learning.batch import Batch, MicroBatch, TrainingSample, divide, training_samples
from trainer.learning.distributed import ProcessGroup, gather_full, shard_like
from trainer.learning.model import (
    ACTIVATION_BYTES,
    activation_bytes,
    checkpoint_activations,
    checkpointed,
    save_atomically,
    within_memory,
)
from trainer.learning.sharded_model import shard_units
from trainer.sage.advantages import AdvantagedRollout
from trainer.sage.loss import policy_loss

_FIELD = "learning_rate"  # of a model's card
_PRETRAINED = 1e-4  # a step of ten times as much takes a pretrained model out of what it samples
_SUPERVISED = 1e-3  # of LoRA on demonstrations, which cannot run away from what they say
_TRIES = 8  # of shortening a step
_TOLERANCE = 1.1  # times the limit of its divergence
_MEASURED = 16  # trajectories of a step whose KL is measured; a KL penalty needs all
_NAME = "learner-{:05}.checkpoint"


def with_learning_rate(settings: RunSettings, card: Mapping[str, Json]) -> RunSettings:
    """The settings with a rate above 0. Raises InvalidError for a card whose rate is none.

    >>> [with_learning_rate(RunSettings(lr=lr), {"learning_rate": 0.002}).lr for lr in (0, 0.5)]
    [0.002, 0.5]
    >>> with_learning_rate(RunSettings(), {}).lr, with_learning_rate(RunSettings(kind=RunKind.SFT), {}).lr
    (0.0001, 0.001)
    """
    if settings.lr:
        return settings
    if settings.kind is RunKind.SFT:
        return msgspec.structs.replace(settings, lr=_SUPERVISED)
    rate = card.get(_FIELD, _PRETRAINED)
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise InvalidError(f"the card of the model has {_FIELD}: {rate!r}, which is no rate: mend it, or set lr")
    return msgspec.structs.replace(settings, lr=float(rate))


@torch.no_grad()
def shorten(
    weights: Mapping[str, Tensor], center: Mapping[str, Tensor], limit: float, divergence: Callable[[], float]
) -> float:
    """Move `weights` towards `center` until their `divergence()` from it is at most about `limit`. Returns it.

    Near the center it grows with the square of the distance. Where no try is near enough, the weights are those of
    the center.
    """
    for _ in range(_TRIES):
        found = divergence()
        if found <= limit * _TOLERANCE:
            return found
        part = (limit / found) ** 0.5
        for name, each in weights.items():
            each.copy_(center[name] + (each - center[name]) * part)
    for name, each in weights.items():
        each.copy_(center[name])
    return 0.0


class UpdateStats(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one update: loss, norm, clipping and KL of its last optimizer step, the rest from before its
    first.
    """

    loss: float
    grad_norm: float  # before clipping
    clip_fraction: float  # of the sampled tokens: those whose gradient was clipped
    ratio_mean: float  # p / p of the policy that sampled, as its engine reported it
    ratio_max: float
    kl_to_engine: float  # estimated KL from the engine that sampled: almost 0 without stale samples
    kl_to_start: float  # KL from the policy at the start of the run: half the mean square of log (p / p_ref)
    kl_of_step: float  # KL from the policy that sampled, after the step: what `max_kl` limits
    entropy: float  # of a sampled token, in nats: estimated by its -log p
    tokens: int  # sampled ones that were learned from
    read_tokens: int  # these and the context between them
    samples: int  # sequences of tokens


class Learner:
    """A policy, its optimizer and its update rule."""

    def __init__(
        self,
        model: PeftModel,
        settings: RunSettings,
        accelerator: Accelerator | None = None,
        *,
        shard: bool = False,
        read_weights: Callable[[PeftModel], None] | None = None,
    ) -> None:
        """Build the learner.

        `accelerator` joins several processes, and `shard` makes them share the weights. None: this one alone.
        `read_weights` fills a model that was built without weights, after it was sharded.
        """
        if not settings.lr:
            raise ValueError("with a rate of 0 nothing would be learned: see `with_learning_rate`")
        self.settings = settings
        self.model = model
        self._base = cast(PreTrainedModel, model.get_base_model())  # with the LoRA layers in it
        self.steps = 0
        self._token_bytes = 0  # of activations, once measured
        self._logprob_model = LogprobModel(model)
        self._logprob_model.train(settings.gradient_checkpointing)
        if settings.gradient_checkpointing:
            checkpoint_activations(self._base)
        self._processes = ProcessGroup(accelerator or model.device, shard=shard)
        self._processes.place(self._logprob_model, shard_units(model) if self._processes.sharded else ())
        if read_weights is not None:
            read_weights(model)
        self._trained = {name: each for name, each in self._logprob_model.named_parameters() if each.requires_grad}
        self._reference = {name: each.detach().clone() for name, each in self._trained.items()}
        self._optimizer = AdamW(
            self._trained.values(),
            lr=settings.lr,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=not self._processes.sharded,
        )

    def token_logprobs(self, batch: Batch) -> Tensor:
        """log p of each sampled token, (N,), in row-major order, under the current policy."""
        logprobs: Tensor = self._logprob_model(batch)
        return logprobs

    def update(self, rollouts: Sequence[AdvantagedRollout]) -> UpdateStats | None:
        """Take `settings.epochs` optimizer steps on one round of rollouts. None if they carry no learning signal.

        Every process needs the same rollouts. Raises InvalidError if a gradient is not finite; that step then
        leaves the weights unchanged. Raises ModelMemoryError if the device has no memory left.
        """
        samples = training_samples(rollouts)
        if not samples:
            return None
        limit = self.settings.max_kl
        kl: float | None = None
        with within_memory():
            batches = self._micro_batches(samples)
            self._set_reference(batches)
            divergence = partial(self._divergence, batches)
            center = self._sampling_weights() if limit else {}
            for _ in range(self.settings.epochs):
                loss, clipped, norm = self._step(batches)
                if limit:
                    kl = shorten(self._trained, center, limit, divergence)
            tokens, ratio, engine_kl, surprise, measured, reference_kl, highest = self._statistics(batches)
            kl = divergence() if kl is None else kl
        return UpdateStats(
            loss=loss,
            grad_norm=norm,
            clip_fraction=clipped / tokens,
            ratio_mean=ratio / tokens,
            ratio_max=highest,
            kl_to_engine=engine_kl / tokens,
            kl_to_start=reference_kl / measured,
            kl_of_step=kl,
            entropy=surprise / tokens,
            tokens=int(tokens),
            read_tokens=sum(len(each.sample.ids) for each in samples),
            samples=len(samples),
        )

    def _micro_batches(self, samples: Sequence[TrainingSample]) -> list[MicroBatch]:
        """This process's share. Processes that share the weights make the same number of passes, some of them
        idle.
        """
        device = self._processes.device
        tokens, on_cpu = self.settings.micro_batch_tokens, device.type == "cpu"
        if on_cpu:
            self._token_bytes = self._token_bytes or activation_bytes(self._logprob_model, device)
            tokens = min(tokens, ACTIVATION_BYTES // self._token_bytes)
        shares = divide(samples, tokens, self._processes.count, share=on_cpu)
        batches = [MicroBatch(each, device) for each in shares[self._processes.index]]
        if self._processes.sharded:
            passes = max(map(len, shares))
            batches += [MicroBatch(samples[:1], device, idle=True) for _ in range(passes - len(batches))]
        return batches

    @torch.no_grad()
    def _set_reference(self, batches: Sequence[MicroBatch]) -> None:
        """Set the logprobs under the reference, which are the weights at the start of the run."""
        share = max(1, _MEASURED // max(1, len(batches)))
        with self._reference_weights():
            for each in batches:
                each.reference = self.token_logprobs(each.refer(len(each) if self.settings.kl else share))

    def _step(self, batches: Sequence[MicroBatch]) -> tuple[float, float, float]:
        """One optimizer step: the loss, the number of clipped tokens, the norm of the gradient."""
        total = clipped = 0.0
        for each in batches:
            loss, clipped_tokens = self._loss(each)
            self._processes.backward(loss)
            total += loss.item()
            clipped += 0 if each.idle else clipped_tokens.item()
        trained = list(self._trained.values())
        self._processes.add_up(trained)
        norm = self._processes.clip(trained)
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            raise InvalidError(f"the gradient of step {self.steps + 1} is not finite: try a lower lr")
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        sums = self._processes.gather([total, clipped])
        return sum(each[0] for each in sums), sum(each[1] for each in sums), norm

    def _sampling_weights(self) -> dict[str, Tensor]:
        """The weights that sampled: those at the start of a run on served tasks, else those of now."""
        if self._samples_are_of_the_start:
            return self._reference
        return {name: each.detach().clone() for name, each in self._trained.items()}

    @property
    def _samples_are_of_the_start(self) -> bool:
        return self.settings.kind is RunKind.LOGGED

    @torch.no_grad()
    def _divergence(self, batches: Sequence[MicroBatch]) -> float:
        """KL from the policy that sampled, per token of the trajectories that are measured."""
        sums = [0.0, 0.0]
        for each in batches:
            own = each.divergence(
                self.token_logprobs(each.referred), from_reference=self._samples_are_of_the_start
            )
            sums = [total + (0 if each.idle else one) for total, one in zip(sums, own, strict=True)]
        gathered = self._processes.gather(sums)
        return sum(kl for _, kl in gathered) / sum(tokens for tokens, _ in gathered)

    def _loss(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        with self._within_memory(batch.batch):
            logprobs = self.token_logprobs(batch.batch)
        settings = self.settings
        if batch.current is None:
            batch.current = logprobs.detach()
        return policy_loss(
            logprobs,
            batch.terms(),
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            kl=settings.kl,
        )

    def _within_memory(self, batch: Batch) -> AbstractContextManager[None]:
        """Have the activations of a trajectory computed again that alone would keep too many: none is divided.

        Not where processes share the weights: all of them would have to gather these again.
        """
        kept = (int(batch.present.sum()) - sum(batch.shared)) * self._token_bytes
        fits = self._processes.sharded or kept <= ACTIVATION_BYTES
        return nullcontext() if fits else checkpointed(self._base)

    def _statistics(self, batches: Sequence[MicroBatch]) -> list[float]:
        """Sums over all processes, and the highest ratio last."""
        rows = [each.statistics() for each in batches if not each.idle] or [[0.0] * 7]
        own = [sum(column) for column in zip(*rows, strict=True)]
        gathered = self._processes.gather([*own[:-1], max(each[-1] for each in rows)])
        columns = list(zip(*gathered, strict=True))
        return [*(sum(column) for column in columns[:-1]), max(columns[-1])]

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        """Give the policy the reference weights, and its own back on exit."""
        current = {name: each.detach().clone() for name, each in self._trained.items()}
        self._set_weights(self._reference)
        try:
            yield
        finally:
            self._set_weights(current)

    @torch.no_grad()
    def _set_weights(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self._trained.items():
            parameter.copy_(weights[name])

    def publish(
        self, root: Path, probe_prompt: Sequence[int] = (), *, base: str | None = None
    ) -> PublishedAdapter:
        """Publish the current policy, as the function `publish` does."""
        weights, probe = self.weights_and_probe(probe_prompt)
        return msgspec.structs.replace(write_adapter(self.model, root, weights, base), probe=probe)

    def weights_and_probe(self, probe_prompt: Sequence[int] = ()) -> tuple[dict[str, Tensor], Probe | None]:
        """The adapter's weights and its probe. All processes that share the weights must call it together."""
        return lora_weights(self.model), make_probe(self._logprob_model, probe_prompt) if probe_prompt else None

    def save(self, path: Path) -> None:
        """Write everything that `restore` needs to continue exactly. The file is complete or absent."""
        state = self.state()
        if self._processes.index == 0:
            save_atomically(state, path)
        self._processes.wait()

    def state(self) -> dict[str, Any]:
        """Full tensors on the CPU, the same for any number of processes."""
        moments = {name: self._optimizer.state.get(each, {}) for name, each in self._trained.items()}
        return {
            "steps": self.steps,
            "weights": {name: gather_full(each) for name, each in self._trained.items()},
            "start": {name: gather_full(each) for name, each in self._reference.items()},
            "moments": {
                name: {key: gather_full(each) for key, each in own.items()} for name, own in moments.items()
            },
        }

    def restore(self, path: Path) -> None:
        """Load a checkpoint. Raises InvalidError for one of another adapter."""
        try:
            self.load_state(torch.load(path, map_location="cpu", weights_only=True))
        except ValueError as error:
            raise InvalidError(f"the checkpoint {path.name} {error}: remove it to start the run over") from error

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a `state`. Raises ValueError for one of another adapter."""
        shapes = {name: each.shape for name, each in self._trained.items()}
        if {name: each.shape for name, each in state["weights"].items()} != shapes:
            raise ValueError("is of another model or rank")
        self.steps = state["steps"]
        self._set_weights({name: shard_like(each, self._trained[name]) for name, each in state["weights"].items()})
        self._reference = {name: shard_like(each, self._trained[name]) for name, each in state["start"].items()}
        moments = {
            number: _moments_like(state["moments"][name], parameter)
            for number, (name, parameter) in enumerate(self._trained.items())
        }
        # the optimizer places its step count on the right device
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": moments})


def _moments_like(moments: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """Shard moments of the parameter's shape like the parameter; leave others unchanged."""
    return {
        key: shard_like(each, parameter) if each.shape == parameter.shape else each
        for key, each in moments.items()
    }


class Checkpoints:
    """The checkpoints in one run's directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def rounds(self) -> int:
        """How many rounds earlier attempts have completed."""
        last = self._last()
        return 0 if last is None else int(last.stem.partition("-")[2])

    def restore(self, learner: Learner) -> int:
        """Restore the learner to the last checkpoint. Returns the number of completed rounds."""
        if (last := self._last()) is not None:
            learner.restore(last)
        return self.rounds

    def save(self, learner: Learner, rounds: int) -> None:
        learner.save(self._directory / _NAME.format(rounds))
        (self._directory / _NAME.format(rounds - 1)).unlink(missing_ok=True)

    def _last(self) -> Path | None:
        return max(self._directory.glob(_NAME.replace("{:05}", "*")), default=None)
