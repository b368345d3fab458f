"""What makes equal inputs give equal bits: threads, algorithms, TF32, autotuning."""

from __future__ import annotations

import os

import torch


def make_deterministic(threads: int, device: torch.device) -> None:
    """Set this process and the calling thread up for equal bits. Call it in the training thread, before any model.

    Threads count because a convolution's gradient is summed in as many parts as there are threads. On CUDA:
    deterministic algorithms, no TF32, no cuDNN autotuning (it picks by measured time).
    """
    torch.set_num_threads(threads)
    # The same switch as use_deterministic_algorithms, which would import torch's compiler first: seconds at a start.
    torch.set_deterministic_debug_mode("error")
    # A debugging aid that costs 5 % of a ResNet-20 step; setattr, because torch declares it in C only.
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
