"""An ordinary DDP script: a small network on handwritten digits.

torchrun --nproc-per-node 2 jobs/ddp_plain.py
"""

import io

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from elastic_dgc.data.digits import digits_path

EPOCHS = 20


def digits(split: str) -> TensorDataset:
    table = pq.read_table(f"{digits_path()}/{split}-00000.parquet")
    images = np.stack([np.asarray(Image.open(io.BytesIO(image.as_py()))) for image in table["image"]])
    return TensorDataset(torch.from_numpy(images).float() / 255, torch.from_numpy(table["label"].to_numpy().copy()))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 288), nn.ReLU(), nn.Linear(288, 288), nn.ReLU(), nn.Linear(288, 10)]
    model = DDP(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    data = digits("train")
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        schedule.step()
    images, labels = digits("test").tensors
    if dist.get_rank() == 0:
        print(f"test accuracy {(model(images).argmax(1) == labels).float().mean():.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
