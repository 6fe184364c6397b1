"""BytePS's module of `DistributedDataParallel`, from which its scripts import."""

from hpcps.torch.data_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel"]
