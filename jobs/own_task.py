"""A task of your own, that has nothing to do with images: a GRU learns to add numbers, digit by digit.

    python jobs/own_task.py

The model reads two numbers from the last digit to the first and says a digit of their sum at each position, so what
it has to find out is when to carry. On two workers, at 1 % density, it does so in a minute or two.
"""

import numpy as np
from torch import Tensor, nn

from elastic_dgc import CompressionConfig, ElasticTrainer, OptimizerConfig, Task

DIGITS = 8
Batch = tuple[Tensor, Tensor]


class Sums:
    """A map-style data set, as torch knows it. Sample i is a pure function of i: the digits of two random numbers,
    int64[DIGITS + 1, 2], and those of their sum, int64[DIGITS + 1]; the last digit comes first."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        a, b = np.random.default_rng(self.first + index).integers(10**DIGITS, size=2)
        powers = 10 ** np.arange(DIGITS + 1)
        return np.stack([a // powers % 10, b // powers % 10], axis=1), (a + b) // powers % 10


class Adder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, numbers: Tensor) -> Tensor:
        """int64[n, digits, 2] -> logits float32[n, digits, 10]. Addition commutes, so the embeddings may be summed."""
        hidden, _ = self.gru(self.embed(numbers).sum(2))
        return self.head(hidden)


class Addition(Task):
    name = "addition"

    def model(self) -> nn.Module:
        return Adder()

    def train_data(self) -> Sums:
        return Sums(0, 4096)

    def test_data(self) -> Sums:
        return Sums(4096, 1024)

    def optimizer(self) -> OptimizerConfig:
        return OptimizerConfig(name="adamw", lr=0.01)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        """The mean, and over how many it was taken: digits, not samples."""
        numbers, digits = batch
        return nn.functional.cross_entropy(model(numbers).flatten(0, 1), digits.flatten()), digits.numel()

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums over the samples: a sum is right if all of its digits are."""
        numbers, digits = batch
        return {"accuracy": (model(numbers).argmax(2) == digits).all(1).sum().item()}


if __name__ == "__main__":
    compression = CompressionConfig(density=0.01, warmup=(0.1,))
    result = ElasticTrainer(Addition(), workers=2, epochs=5, batch=64, compression=compression).fit()
    ratio = result.report["upload_ratio"]
    print(f"{result.accuracy:.1%} of the sums are right, {ratio:.0f} times fewer bytes were sent")
