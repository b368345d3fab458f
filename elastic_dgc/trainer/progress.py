"""What the user sees while a run goes on: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from elastic_dgc.trainer.words import count

PLAIN_EVERY_S = 10.0


class Display:
    """Use as a context manager, in the main thread. Writes to stderr; results go to stdout elsewhere."""

    def __init__(self, quiet: bool = False) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._bar: Progress | None = None
        self._task: Any = None
        self._last_plain_s = float("-inf")
        self._last_place: tuple[int, int] | None = None  # view and attempt

    def __enter__(self) -> Display:
        if self._console.is_terminal and not self._quiet:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[figures]}"), TimeRemainingColumn(), console=self._console, transient=True,
            )  # fmt: skip
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str, level: int = logging.INFO) -> None:
        """One line that stays."""
        if self._quiet and level < logging.WARNING:
            return
        style = "yellow" if level >= logging.WARNING else None
        prefix = "warning: " if level == logging.WARNING else "error: " if level > logging.WARNING else ""
        (self._bar.console if self._bar is not None else self._console).print(prefix + text, style=style, markup=False)

    def show(self, progress: dict[str, Any]) -> None:
        """Where the run is now."""
        if progress.get("phase") != "training":
            return
        place = progress["view"], progress["attempt"]
        if place == self._last_place:  # nobody trains just now, and the figures are old
            return
        self._last_place = place
        parts = [
            f"loss {progress['loss']:.3f}",
            f"{progress['images_per_s']:.0f} images/s",
            count(progress["workers"], "worker"),
        ]
        if progress["upload_ratio"] > 1:
            parts.append(f"upload {progress['upload_ratio']:.0f}x less than dense")
        figures = ", ".join(parts)
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task("", total=progress["end"], figures="")
            description = f"epoch {progress['epoch']}/{progress['epochs']}"
            self._bar.update(self._task, completed=progress["attempt"], description=description, figures=figures)
        elif not self._quiet and time.monotonic() - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = time.monotonic()
            epoch = f"epoch {progress['epoch']}/{progress['epochs']}"
            self.say(f"step {progress['attempt']}/{progress['end']} ({epoch}): {figures}")
