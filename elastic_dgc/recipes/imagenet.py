"""ImageNet with ResNet-50: the job on which DGC was reported to fail at epoch 38."""

from __future__ import annotations

from elastic_dgc.compression.config import CompressionConfig
from elastic_dgc.recipes.recipe import Recipe
from elastic_dgc.step.config import OptimizerConfig, ScheduleConfig
from elastic_dgc.tasks.image_config import ImageConfig
from elastic_dgc.trainer.config import RunConfig


def imagenet_resnet50() -> Recipe:
    """ResNet-50 on ImageNet: 8 virtual workers of batch 32, 90 epochs. `task.data` must be given.

    The set-up of PaddlePaddle/models#3145 (8 GPUs, 90 epochs; 76.3 % top-1 without compression, NaN with it), with
    the usual schedule for batch 256 of He et al. and Goyal et al. (2017): lr 0.1, divided by 10 after 30, 60 and 80
    epochs, momentum 0.9, weight decay 1e-4; random resized crops of 224 and flips, evaluation at 256/224. Density as
    in Lin et al. (ICLR 2018), section 3.3: 25, 6.25, 1.5625, 0.4 % for an epoch each, then 0.1 %. Runs on as many of
    8 GPUs as the cluster can place, with the same result.
    """
    return Recipe(
        task=ImageConfig(
            model="resnet50",
            classes=1000,
            crop="resized",
            flip=True,
            image_size=224,
            resize_eval=256,
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
        ),
        run=RunConfig(
            workers="1:8",
            virtual_workers=8,
            batch=256,
            epochs=90,
            loader_threads=4,
            checkpoint_every_s=600,
            optimizer=OptimizerConfig(lr=0.1, momentum=0.9, weight_decay=1e-4),
            schedule=ScheduleConfig(kind="step", milestones=(30, 60, 80), gamma=0.1),
            compression=CompressionConfig(density=0.001, warmup=(0.25, 0.0625, 0.015625, 0.004), warmup_epochs=1),
        ),
    )
