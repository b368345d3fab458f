"""The image task: its settings, its loss and evaluation, and the identity that a resumed run must match."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from elastic_dgc.errors import DataError, UsageError
from elastic_dgc.models import export
from elastic_dgc.tasks.image import ImageClassification, ImageConfig


def write(folder: Path, split: str, images: int, classes: int = 3, shift: int = 0, corrupt: int | None = None) -> None:
    """A split of small RGB images whose labels go round."""
    rows = []
    for i in range(images):
        pixels = np.random.default_rng([i, shift]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        rows.append(stream.getvalue() if i != corrupt else b"no image")
    table = pa.table({"image": pa.array(rows, pa.binary()), "label": pa.array([i % classes for i in range(images)])})
    pq.write_table(table, folder / f"{split}-00000.parquet")


@pytest.fixture
def data(tmp_path: Path) -> str:
    write(tmp_path, "train", 12)
    write(tmp_path, "test", 6)
    return str(tmp_path)


def test_loss_is_the_mean_and_evaluation_the_sum(data: str) -> None:
    task = ImageClassification(ImageConfig(model="resnet20", data=data, label_smoothing=0.1, mean=(0.1, 0.2, 0.3)))
    model = task.model().eval()
    images, labels = task.train_data().load(np.arange(5), None)
    logits = model((images.float() / 255 - torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1)) / 0.25)
    loss, count = task.loss(model, (images, labels))
    assert count == 5
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, label_smoothing=0.1))
    sums = task.evaluate(model, (images, labels))
    assert sums["accuracy"] == sum(logits.argmax(1) == labels)
    assert sums["loss"] == pytest.approx(F.cross_entropy(logits, labels).item() * 5, rel=1e-5)
    one_by_one = [task.evaluate(model, (images[i : i + 1], labels[i : i + 1])) for i in range(5)]
    assert sum(part["loss"] for part in one_by_one) == pytest.approx(sums["loss"], rel=1e-5)
    assert images.dtype == torch.uint8  # the batch itself is left alone


def test_batch_without_images_adds_nothing_to_an_evaluation() -> None:
    task = ImageClassification()
    empty = torch.zeros(0, 1, 8, 8, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64)
    assert task.evaluate(nn.Linear(1, 1), empty) == {"accuracy": 0.0, "loss": 0.0}


def test_corrupt_images_make_the_count_smaller(tmp_path: Path) -> None:
    write(tmp_path, "train", 12, corrupt=2)
    write(tmp_path, "test", 6)
    config = ImageConfig(data=str(tmp_path), skip_corrupt=True)
    task = ImageClassification(config)
    batch = task.train_data().load(np.arange(4), 0)
    assert task.loss(task.model(), batch)[1] == 3
    assert task.identity() == ImageClassification(config.with_values(skip_corrupt=False)).identity()


def test_embedded_digits_are_the_default() -> None:
    task = ImageClassification()
    images, labels = task.test_data().load(np.arange(20), None)
    assert (images.shape, images.max()) == ((20, 1, 8, 8), 255)
    assert task.classes == 10
    mixed = ImageClassification(ImageConfig(data="digits", model="resnet20"))
    converted, _ = mixed.test_data().load(np.arange(20), None)
    assert torch.equal(converted, images.expand(20, 3, 8, 8))
    assert task.loss(task.model(), (images, labels))[0].requires_grad


def test_equal_seeds_give_equal_models() -> None:
    def weights() -> bytes:
        torch.manual_seed(5)
        return export.save_model(ImageClassification().model().state_dict())

    assert weights() == weights()


def test_opened_files_are_not_pickled(data: str) -> None:
    task = ImageClassification(ImageConfig(data=data, flip=True), seed=7)
    task.model()
    again = pickle.loads(pickle.dumps(task))
    assert set(vars(again)) == {"config", "seed", "name", "_warns"}
    rows = np.arange(12)
    assert torch.equal(again.train_data().load(rows, 1)[0], task.train_data().load(rows, 1)[0])
    other = ImageClassification(task.config, seed=8)
    assert not torch.equal(other.train_data().load(rows, 1)[0], task.train_data().load(rows, 1)[0])


def test_identity_holds_what_decides_the_result_and_no_paths(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, shift, images in zip(folders, (0, 0, 1), (12, 12, 15), strict=True):
        folder.mkdir()
        write(folder, "train", images, shift=shift)
        write(folder, "test", 6)
    for name, value in (("m1", 1.0), ("m2", 1.0), ("m3", 2.0)):
        (tmp_path / name).write_bytes(export.save_model({"w": torch.full((3,), value)}))

    def identity(**changes: object) -> str:
        base = {"data": str(folders[0]), "init_from": str(tmp_path / "m1"), "init_skip": ("head.*",)}
        return json.dumps(ImageClassification(ImageConfig(**{**base, **changes})).identity(), sort_keys=True)

    first = identity()
    assert str(tmp_path) not in first
    assert first == identity(data=str(folders[1]), init_from=str(tmp_path / "m2"), classes=3, channels=1)
    changes: list[dict[str, object]] = [
        {"data": str(folders[2])},
        {"init_from": str(tmp_path / "m3")},
        {"init_skip": ("head.weight",)},
        {"model": "resnet20"},
        {"classes": 4},
        {"channels": 3},
        {"crop": "pad"},
        {"crop": "pad", "pad": 2},
        {"flip": True},
        {"image_size": 9},
        {"mean": (0.4,)},
        {"std": (0.3,)},
        {"label_smoothing": 0.1},
        {"freeze": ("features.conv1.*",)},
    ]
    seen = [identity(**change) for change in changes]
    assert len({first, *seen}) == len(changes) + 1


def test_start_from_a_model_file_with_a_new_head(data: str, tmp_path: Path) -> None:
    source = ImageClassification().model()
    path = tmp_path / "digits.safetensors"
    path.write_bytes(export.save_model(source.state_dict()))
    with pytest.raises(UsageError, match=r"head.weight \(10, 96\) for \(3, 96\)"):
        ImageClassification(ImageConfig(data=data, init_from=str(path))).model()
    model = ImageClassification(ImageConfig(data=data, init_from=str(path), init_skip=("head.*",))).model()
    assert torch.equal(model.features.conv3.weight, source.features.conv3.weight)
    assert model.head.out_features == 3


def test_freezing_by_pattern() -> None:
    task = ImageClassification(ImageConfig(freeze=("features.*", "head.bias")))
    trained = [name for name, _ in task.model().named_parameters() if not task.frozen(name)]
    assert trained == ["head.weight"]
    with pytest.raises(UsageError, match=r"freeze = 'layer1.\*' matches no parameter of digits"):
        ImageClassification(ImageConfig(freeze=("layer1.*",))).model()
    with pytest.raises(UsageError, match="none is left to train"):
        ImageClassification(ImageConfig(freeze=("*",))).model()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "digit"}, "did you mean 'digits'"),
        ({"modle": "digits"}, "did you mean 'model'"),
        ({"mean": (0.1, 0.2)}, "mean has 2 values: one is needed, or one for each of 1 channels"),
        ({"std": (0.0,)}, "above 0"),
        ({"pad": 4}, "pad = 4 is for crop = 'pad'"),
        ({"crop": "resized"}, "needs size|image_size"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"init_skip": ("head.*",)}, "init_from, which is not given"),
        ({"model": "resnet18", "channels": 1}, "resnet18 of torchvision takes 3"),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ImageConfig(**values)
    assert "\n" not in str(caught.value)


def test_labels_and_sizes_that_do_not_fit_are_refused(data: str) -> None:
    with pytest.raises(DataError, match=r"train-00000.parquet, row 2 has the label 2"):
        ImageClassification(ImageConfig(data=data, classes=2)).model()
    with pytest.raises(UsageError, match=r"squeezenet1_1.*8x8 pixels.*image_size"):
        ImageClassification(ImageConfig(model="squeezenet1_1", data=data)).model()
