"""Bad input: one clear line that names the value and the mend, exit code 2 for usage and 1 for failure, and no Ray."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import torch
from PIL import Image

from elastic_dgc import RunConfig
from elastic_dgc.cli.fields import ALIASES, leaves, overridden
from elastic_dgc.cli.help import GROUPS, group_of
from elastic_dgc.cli.main import main
from elastic_dgc.errors import Stopped, UsageError
from elastic_dgc.recipes.registry import recipe
from elastic_dgc.tasks.image import ImageConfig
from elastic_dgc.trainer.elastic import ElasticTrainer


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here must be answered before Ray is started."""

    def init(*args: object, **options: object) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., str]:
    """Runs a command that must be refused with this exit code, and returns its one line on stderr."""

    def run(code: int, *words: str) -> str:
        if "--storage" not in words and words[0] == "train":
            words = ("train", "--storage", str(tmp_path / "runs"), *words[1:])
        with pytest.raises(SystemExit) as end:
            main(words)
        out, err = capsys.readouterr()
        assert end.value.code == code, err
        assert out == ""
        assert re.fullmatch(r"error: [^\n]+\n", err), err
        assert not (tmp_path / "runs").exists(), "nothing is left behind by a run that never was"
        return err

    return run


def write_split(folder: Path, split: str, labels: list[int], image: str = "image", size: int = 8) -> None:
    """A split of one-coloured images."""
    folder.mkdir(exist_ok=True)
    stream = io.BytesIO()
    Image.new("L", (size, size), 100).save(stream, "PNG")
    table = pa.table({image: pa.array([stream.getvalue()] * len(labels), pa.binary()), "label": pa.array(labels)})
    pq.write_table(table, folder / f"{split}-00000.parquet")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--recipe cifar-resnet20", ["cifar-resnet20", "did you mean 'cifar10-resnet20'"]),
        ("--model resnet21", ["resnet21", "did you mean 'resnet20'"]),
        ("--epoch 3", ["'--epoch'", "Did you mean", "--epochs", "see elastic-dgc train --help"]),
        ("--optimizer.lrate 3", ["--optimizer.lrate", "Did you mean", "--optimizer.lr"]),
        ("--batch", ["'--batch' requires an argument"]),
        ("digits", ["unexpected extra argument (digits)", "--help"]),
        ("--workers 0", ["workers = '0'", "at least 1"]),
        ("--workers 4:2", ["workers = '4:2'", "minimum 4 is above the maximum 2"]),
        ("--workers x", ["workers = 'x'", "such as 2", "such as 2:8"]),
        ("--workers 5", ["workers = '5'", "4 virtual workers", "raise virtual_workers or lower workers"]),
        ("--virtual-workers 1", ["workers = '2'", "1 virtual workers"]),
        ("--virtual-workers 0", ["virtual_workers = '0'", "greater than or equal to 1"]),
        ("--density 0", ["compression.density = '0'", "greater than 0"]),
        ("--density 2", ["compression.density = '2'", "must be less than or equal to 1"]),
        ("--density-warmup 0.5,1.5", ["compression.warmup = '0.5,1.5'", "at most 1, not 1.5"]),
        ("--density-warmup 0.5,b", ["compression.warmup = '0.5,b': must be a valid number each", "'b' is not"]),
        ("--mean a,b", ["mean = 'a,b': must be a valid number each", "separated by commas", "'a' is not"]),
        ("--model foo", ["'foo'", "digits, resnet20, resnet56, resnet110", "torchvision"]),
        ("--optimizer foo --lr 1", ["optimizer.name = 'foo'", "rmsprop, sgd"]),
        ("--audit /nodir/x.jsonl", ["audit = '/nodir/x.jsonl'", "no folder '/nodir'"]),
        ("--report /nodir/x.json", ["report = '/nodir/x.json'", "no folder '/nodir'"]),
        ("--report /tmp", ["report = '/tmp' is a folder"]),
        ("--address 127.0.0.1:1", ["no Ray cluster at '127.0.0.1:1'", "connection refused", "--address"]),
        ("--address ray://localhost:1", ["no Ray cluster at 'ray://localhost:1'", "connection refused"]),
        ("--precision bf16 --loss-scale 1024", ["loss_scale = 1024 is for precision = 'fp16'", "leave it out"]),
        ("--batch 65", ["batch = 65", "4 virtual workers", "64 and 68"]),
        ("--batch 2", ["batch = 2", "near is 4"]),
        ("--epochs many", ["epochs = 'many'", "valid integer"]),
        ("--lr 0", ["optimizer.lr = '0'", "greater than 0"]),
        ("--optimizer adamm", ["adamm", "did you mean 'adam"]),
        ("--optimizer adamw", ["adamw", "needs an --lr", "0.2 is for sgd"]),
        ("--optimizer lbfgs --lr 0.1", ["lbfgs", "needs a closure"]),
        ('--optimizer adamw --lr 0.1 --optimizer.options {"foo":1}', ["adamw", "foo"]),
        ("--optimizer adamw --lr 0.1 --optimizer.options {foo", ["optimizer.options = '{foo'", "JSON"]),
        ("--optimizer adamw --lr 0.1 --nesterov", ["nesterov", "sgd", "options"]),
        ("--schedule linea", ["schedule.kind = 'linea'", "'linear'"]),
        ("--exchange sparse", ["exchange = 'sparse'", "'dgc', 'dense' or 'dense-bf16'"]),
        ("--device tpu", ["device = 'tpu'", "'auto', 'cpu' or 'cuda'"]),
        ("--name a/b", ["name = 'a/b'", "letters, digits"]),
        ("--recipe cifar10-resnet20", ["data must be given", "resnet20", "Parquet"]),
        ("--model resnet20", ["data must be given", "resnet20", "'digits'"]),
        ("--crop none --pad 4", ["pad = 4", "crop = 'pad'"]),
        ("--freeze heat.*", ["freeze = 'heat.*'", "matches no parameter"]),
        ("--init-from /none.pt", ["/none.pt"]),
        ("--storage s4://bucket/runs", ["s4://bucket/runs", "s3://"]),
    ],
)
def test_wrong_usage(refused: Callable[..., str], words: str, said: list[str]) -> None:
    line = refused(2, "train", *words.split())
    assert [text for text in said if text not in line] == [], line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cuda_without_a_gpu(refused: Callable[..., str]) -> None:
    assert "no GPU that torch can use" in refused(2, "train", "--device", "cuda")


def test_a_storage_that_is_a_file(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    line = refused(1, "train", "--storage", str(tmp_path / "file"))
    assert f"{tmp_path}/file" in line
    assert "not a directory" in line
    assert "--storage" in line


def test_data_that_is_not_there(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "no such folder" in refused(1, "train", "--data", str(tmp_path / "none"))
    (tmp_path / "empty").mkdir()
    assert "no train-*.parquet; there is nothing" in refused(1, "train", "--data", str(tmp_path / "empty"))
    write_split(tmp_path / "half", "train", [0, 1])
    assert "no test-*.parquet" in refused(1, "train", "--data", str(tmp_path / "half"))


def test_a_label_out_of_range(refused: Callable[..., str], tmp_path: Path) -> None:
    write_split(tmp_path / "data", "train", [0, 1, 2, 5, 4, 3])
    write_split(tmp_path / "data", "test", [0, 1])
    line = refused(1, "train", "--data", str(tmp_path / "data"), "--classes", "3")
    assert "train-00000.parquet, row 3 has the label 5, labels must be 0..2" in line
    assert "raise the number of classes" in line
    write_split(tmp_path / "data", "test", [0, 6])
    assert "test-00000.parquet, row 1 has the label 6" in refused(1, "train", "--data", str(tmp_path / "data"))
    write_split(tmp_path / "data", "train", [0, 1, 2, 999])
    line = refused(1, "train", "--data", str(tmp_path / "data"))
    assert "train-00000.parquet, row 3 has the label 999, but in the split 'train' 996 of the labels" in line
    assert "or, if it is right, say so by classes = 1000" in line


def test_all_corrupt_images_are_listed_before_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_split(tmp_path, split, [0, 1])
    for extra, code, last in ([], 0, "test: 2 images, none of them corrupt"), (["x", None], 1, "of them corrupt"):
        if extra:
            table = pa.table({"image": pa.array([b"x", None], pa.binary()), "label": [0, 1]})
            pq.write_table(table, tmp_path / "train-00001.parquet")
        with pytest.raises(SystemExit) as end:
            main(["check-data", str(tmp_path), "--threads", "2"])
        out, err = capsys.readouterr()
        assert end.value.code == code
        assert out.splitlines()[-1].endswith(last)
    assert "train-00001.parquet, row 0: it is no image" in out
    assert "train-00001.parquet, row 1: it has no bytes" in out
    assert "train: 4 images, 2 of them corrupt" in out
    assert re.fullmatch(r"error: [^\n]+: 2 images are corrupt: mend or remove [^\n]+\n", err)


def test_a_missing_column(refused: Callable[..., str], tmp_path: Path) -> None:
    write_split(tmp_path / "data", "train", [0, 1], image="picture")
    line = refused(1, "train", "--data", str(tmp_path / "data"))
    assert "train-00000.parquet has no column 'image', its columns are picture, label" in line


def test_images_that_the_model_cannot_take(refused: Callable[..., str], tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_split(tmp_path / "data", split, [0, 1], size=2)
    line = refused(2, "train", "--model", "alexnet", "--data", str(tmp_path / "data"))
    assert "cannot take images of 2x2 pixels" in line
    assert "set image_size to 63 or more" in line


def test_a_file_that_is_no_audit(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\xff\x00 no audit")
    assert "does not start with its header" in refused(1, "audit", str(tmp_path / "file"))
    assert "does not exist" in refused(2, "audit", str(tmp_path / "none"))


def test_unusable_optimizers_are_not_offered_and_nothing_is_offered_twice(refused: Callable[..., str]) -> None:
    offered = refused(2, "train", "--optimizer", "foo").split("known: ")[1].strip().split(", ")
    assert len(set(offered)) == len(offered)
    assert not {"lbfgs", "sparseadam", "muon", "rprop"} & set(offered)


def test_unknown_command(refused: Callable[..., str]) -> None:
    assert "No such command 'trian'" in refused(2, "trian")


def test_a_choice_of_numbers_is_taken_as_it_is_typed() -> None:
    changed = overridden(recipe("digits"), {"channels": "3", "model": "resnet20"})
    assert changed.task.channels == 3


def test_unknown_fields_in_python_are_answered_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"^RunConfig has no field 'epoch', did you mean 'epochs'\?$"):
        RunConfig(**{"epoch": 3})


def test_a_stop_that_was_asked_for_is_no_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: ElasticTrainer) -> None:
        raise Stopped("stopped after attempt 7, state saved in /runs: the same command goes on")

    monkeypatch.setattr(ElasticTrainer, "fit", stopped)
    with pytest.raises(SystemExit) as end:
        main(["train"])
    assert end.value.code == 130
    assert capsys.readouterr().err == "stopped after attempt 7, state saved in /runs: the same command goes on\n"


def test_ctrl_c_before_there_are_workers_is_a_line_that_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: ElasticTrainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ElasticTrainer, "_fit", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["train"])
    assert end.value.code == 130
    said = "stopped at once; the same command goes on from the last checkpoint, if there is one\n"
    assert capsys.readouterr().err.lstrip() == said


def test_help_needs_neither_torch_nor_ray() -> None:
    code = (
        "import sys\nfrom elastic_dgc.cli.main import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        "print('loaded:', *({'torch', 'torchvision', 'ray', 'pyarrow', 'pandas', 'numpy'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "--epochs N" in printed
    assert printed.splitlines()[-1] == "loaded:"


def test_the_list_of_commands_is_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    text = capsys.readouterr().out
    assert "..." not in text.partition("Commands:")[2]
    assert "exactly once per epoch." in " ".join(text.split())


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (["--version"], "version 0."), ([], "train"), (["--help"], "audit"):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 0
        assert said in capsys.readouterr().out


def test_help_lists_every_field_once_by_group_with_the_values_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--recipe", "imagenet-resnet50", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    places = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert places == sorted(places)
    for name, _, description in [*leaves(ImageConfig), *leaves(RunConfig)]:
        option = ALIASES.get(name, "--" + name.replace("_", "-")).split("/")[0]
        assert description, f"{name} has no description"
        assert len(re.findall(rf"^  {re.escape(option)}[ ,\n]", text, re.MULTILINE)) == 1, option
    assert [group_of(name) for name in ("epochs", "pad", "schedule.gamma", "keep", "quiet")] == [
        "Common", "Images and model", "Optimizer and schedule", "Workers and limits", "Ray and output",
    ]  # fmt: skip
    assert re.search(r"--epochs N .*?\[90\]", text, re.DOTALL)
    assert re.search(r"--schedule.milestones A,B,... .*?\[30,60,80\]", text, re.DOTALL)
