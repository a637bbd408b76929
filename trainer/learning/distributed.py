"""One update on several processes: each with a copy of the model, or all sharing its weights (FSDP2)."""

from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grad_norm_


class ProcessGroup:
    """The collective operations of an update. Every call must be made by all processes."""

    def __init__(self, of: Accelerator | torch.device, *, shard: bool = False) -> None:
        """Of a device: this process alone. Accelerators of a process share the device of its first one."""
        accelerator = of if isinstance(of, Accelerator) else None
        self._accelerator = accelerator
        self.device = of.device if isinstance(of, Accelerator) else of
        self.count = 1 if accelerator is None else accelerator.num_processes
        self.index = 0 if accelerator is None else accelerator.process_index
        self.sharded = shard and self.count > 1

    def place(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        """Shard the module's weights over the processes, if they are to share them.

        Only the units in use are gathered, one or two at a time; weights in no unit are gathered during a whole
        pass.
        """
        if self.sharded:
            mesh = init_device_mesh(self.device.type, (self.count,))
            for each in units:
                fully_shard(each, mesh=mesh)
            fully_shard(module, mesh=mesh, reshard_after_forward=True)

    def backward(self, loss: Tensor) -> None:
        """Compute gradients: sharded ones are means over processes, others stay local; `add_up` sums both."""
        (loss * self.count if self.sharded else loss).backward()

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients of all processes, in one message. A process without any contributes zeros."""
        if self.sharded or self._accelerator is None:
            return
        grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
        total = self._accelerator.reduce(torch.cat([each.flatten() for each in grads]), "sum")
        for parameter, grad in zip(parameters, total.split([each.numel() for each in grads]), strict=True):
            parameter.grad = grad.view_as(parameter)

    def clip(self, parameters: Sequence[nn.Parameter], limit: float) -> float:
        """Scale gradients down to a norm of at most `limit`. Returns the norm before."""
        norm = clip_grad_norm_(parameters, limit)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of every process, by rank."""
        if self._accelerator is None:
            return [list(values)]
        row = torch.tensor([values], dtype=torch.float64, device=self.device)
        gathered: list[list[float]] = self._accelerator.gather(row).tolist()
        return gathered

    def wait(self) -> None:
        if self._accelerator is not None:
            self._accelerator.wait_for_everyone()


def gather_full(tensor: Tensor) -> Tensor:
    """A copy of the full tensor on the CPU. For a sharded one, a call that all processes must make."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu().clone()


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """A full tensor, which every process has, on the device and with the sharding of `other`. No communication."""
    if isinstance(other, DTensor):
        mesh = other.device_mesh
        return distribute_tensor(tensor.to(mesh.device_type), mesh, other.placements, src_data_rank=None)
    return tensor.to(other.device)
