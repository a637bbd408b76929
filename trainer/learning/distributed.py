"""An update on one process, on many with a copy of the model each, or on many that share its weights (FSDP2)."""

from collections.abc import Collection, Sequence

import torch
from accelerate import Accelerator, DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


class ProcessGroup:
    """What several processes do together. Every call must be made by all of them."""

    def __init__(self, accelerator: Accelerator, shard: bool | None = None) -> None:
        self._accelerator = accelerator
        wanted = accelerator.distributed_type is DistributedType.FSDP if shard is None else shard
        self.sharded = wanted and accelerator.num_processes > 1
        self.count = accelerator.num_processes
        self.index = accelerator.process_index
        self.device = accelerator.device

    def place(self, module: nn.Module, layers: Collection[str]) -> nn.Module:
        """The module, its weights shared out if they are to be: layer by layer, by the names of their classes.

        Only one layer is whole at a time. What is in no layer, embeddings say, is whole while the module computes.
        """
        if self.sharded:
            for each in module.modules():
                if type(each).__name__ in layers:
                    fully_shard(each)
            fully_shard(module, reshard_after_forward=True)
        return module

    def backward(self, loss: Tensor) -> None:
        """Sharded gradients come out as means over processes, others stay here; `add_up` makes sums of both."""
        self._accelerator.backward(loss * self.count if self.sharded else loss)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes, in one message. A process without any takes part with zeros."""
        if self.sharded or self.count == 1:
            return
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        total = self._accelerator.reduce(torch.cat([each.flatten() for each in grads]), "sum")
        for parameter, part in zip(parameters, total.split([each.numel() for each in grads]), strict=True):
            parameter.grad = part.view_as(parameter)

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Scale gradients down to a norm of `limit`; gives the norm they had."""
        norm = self._accelerator.clip_grad_norm_(parameters, limit)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """What every process gave, in their order."""
        row = torch.tensor([values], dtype=torch.float64, device=self.device)
        gathered: list[list[float]] = self._accelerator.gather(row).tolist()
        return gathered

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()


def whole(tensor: Tensor) -> Tensor:
    """The tensor as one process would hold it, on the CPU. Of a sharded one every process must ask."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor laid out as `other` is."""
    if isinstance(other, DTensor):
        return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
    return tensor.to(other.device)
