"""CIFAR-10 with a residual network of 20 layers."""

from __future__ import annotations

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.recipes.recipe import Recipe
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.tasks.image_config import ImageConfig
from elastic_dgc.trainer.config import RunConfig


def cifar10_resnet20() -> Recipe:
    """ResNet-20 on CIFAR-10: 8 virtual workers, batch 256, 20 epochs. `task.data` must be given.

    Network, padded crop, flip, momentum 0.9 and weight decay 1e-4 are those of He et al. (CVPR 2016), section 4.2. They
    train 164 epochs of batch 128 with lr 0.1 in steps; this is a short schedule: lr 0.4 for batch 256, one epoch of
    linear warm-up, cosine to zero. Density as in Lin et al. (ICLR 2018), section 3.3: 25, 6.25, 1.5625, 0.4 % for an
    epoch each, then 0.1 %.
    """
    return Recipe(
        task=ImageConfig(
            model="resnet20",
            classes=10,
            crop="pad",
            pad=4,
            flip=True,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
        ),
        run=RunConfig(
            workers="2",
            virtual_workers=8,
            batch=256,
            epochs=20,
            optimizer=OptimizerConfig(lr=0.4, momentum=0.9, weight_decay=1e-4),
            schedule=ScheduleConfig(kind="cosine", warmup_epochs=1),
            compression=CompressionConfig(density=0.001, warmup=(0.25, 0.0625, 0.015625, 0.004), warmup_epochs=1),
        ),
    )
