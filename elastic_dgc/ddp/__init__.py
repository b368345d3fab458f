"""Deep Gradient Compression for plain PyTorch DDP, as a communication hook. Needs neither Ray nor the trainer."""

from elastic_dgc.ddp.attachment import attach
from elastic_dgc.ddp.config import DGC
from elastic_dgc.ddp.state import DGCState

__all__ = ["DGC", "DGCState", "attach"]
