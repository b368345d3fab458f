"""DDP in the style of torchvision's reference scripts, with Deep Gradient Compression: param groups, warm-up of the
learning rate, mixed precision, accumulation, a checkpoint of every rank's own state, resuming at any number of ranks.

    torchrun --nproc-per-node 2 jobs/ddp_reference.py --output runs/digits
    torchrun --nproc-per-node 3 jobs/ddp_reference.py --output runs/digits --resume runs/digits/epoch-2 --epochs 6
"""

import argparse
import contextlib
import hashlib
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from elastic_dgc.data.digits import digits_path
from elastic_dgc.ddp import DGC, DGCState, attach
from elastic_dgc.exchange.collectives import need_backend
from elastic_dgc.models.digits import DigitsNet


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank and pass")
    parser.add_argument("--accumulate", type=int, default=1, help="passes per step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--lr-warmup-epochs", type=int, default=1)
    parser.add_argument("--density", type=float, default=0.01)
    parser.add_argument("--clip", type=float, help="clip the gradient norm, before compression")
    parser.add_argument("--amp", action="store_true", help="autocast with a GradScaler")
    parser.add_argument("--output", help="folder for checkpoints, one folder in it per epoch")
    parser.add_argument("--resume", help="folder of an epoch")
    return parser.parse_args()


def digits(split: str) -> TensorDataset:
    table = pq.read_table(f"{digits_path()}/{split}-00000.parquet")
    images = np.stack([np.asarray(Image.open(io.BytesIO(image.as_py()))) for image in table["image"]])
    pixels = torch.from_numpy(images).float().unsqueeze(1) / 255
    return TensorDataset(pixels, torch.from_numpy(table["label"].to_numpy().copy()))


def set_weight_decay(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two param groups: norms and biases are not decayed."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def train_one_epoch(model, optimizer, loader, device, scaler, accumulate) -> float:
    model.train()
    total = 0.0
    for index, (images, labels) in enumerate(loader):
        last = (index + 1) % accumulate == 0 or index + 1 == len(loader)
        with contextlib.nullcontext() if last else model.no_sync():
            # on a CPU --amp only scales the loss: 16-bit convolutions are slow there
            with torch.autocast(device.type, torch.float16, enabled=scaler.is_enabled() and device.type == "cuda"):
                loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device)) / accumulate
            scaler.scale(loss).backward()
        if last:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        total += loss.item() * accumulate
    return total / len(loader)


@torch.inference_mode()
def evaluate(model, device) -> float:
    model.eval()
    images, labels = digits("test").tensors
    return (model.module(images.to(device)).argmax(1).cpu() == labels).float().mean().item()


def save(folder: Path, epoch: int, shared: dict, state: DGCState) -> None:
    """What all ranks have alike is rank 0's to save; the state of compression is every rank's own."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state.state_dict(), folder / f"dgc-{dist.get_rank()}.pt")
    if dist.get_rank() == 0:
        torch.save({**{name: one.state_dict() for name, one in shared.items()}, "epoch": epoch}, folder / "shared.pt")
    dist.barrier()


def load(folder: Path, shared: dict, state: DGCState) -> int:
    """The epoch to go on with. The list of all ranks' states is right at any number of ranks."""
    checkpoint = torch.load(folder / "shared.pt", map_location="cpu", weights_only=True)
    for name, one in shared.items():
        one.load_state_dict(checkpoint[name])
    count = torch.load(folder / "dgc-0.pt", weights_only=True)["world"]
    state.load_state_dict([torch.load(folder / f"dgc-{rank}.pt", weights_only=True) for rank in range(count)])
    return checkpoint["epoch"] + 1


def main(args: argparse.Namespace) -> None:
    cuda = torch.cuda.is_available()
    backend = "nccl" if cuda else "gloo"
    need_backend(backend, "cuda" if cuda else "cpu")
    dist.init_process_group(backend)
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if cuda else torch.device("cpu")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DDP(DigitsNet().to(device))
    optimizer = torch.optim.SGD(
        set_weight_decay(model, args.weight_decay), lr=args.lr, momentum=args.momentum, nesterov=True
    )
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp)
    warmup = lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=args.lr_warmup_epochs)
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs - args.lr_warmup_epochs))
    schedule = lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [args.lr_warmup_epochs])

    data = digits("train")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
    compression = DGC(density=args.density, warmup=(0.25, 0.0625), warmup_steps=len(loader), clip=args.clip)
    state = attach(model, optimizer, compression, scaler=scaler)

    shared = {"model": model.module, "optimizer": optimizer, "schedule": schedule, "scaler": scaler}
    first = load(Path(args.resume), shared, state) if args.resume else 0
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        loss = train_one_epoch(model, optimizer, loader, device, scaler, args.accumulate)
        schedule.step()
        if args.output:
            save(Path(args.output) / f"epoch-{epoch}", epoch, shared, state)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {evaluate(model, device):.2%}")
    if dist.get_rank() == 0:
        flat = torch.cat([p.detach().cpu().reshape(-1) for p in model.parameters()])
        print(state)
        print("digest", hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(arguments())
