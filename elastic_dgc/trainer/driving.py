"""From the driver's side: Ray Train in a thread, the display and the signals in the main one."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from elastic_dgc.errors import ElasticDGCError
from elastic_dgc.log import logger
from elastic_dgc.trainer import cluster
from elastic_dgc.trainer.backend import MeshConfig
from elastic_dgc.trainer.controller import AnnounceController, end_fit
from elastic_dgc.trainer.job import Job
from elastic_dgc.trainer.losses import Losses
from elastic_dgc.trainer.monitor import News, start_monitor
from elastic_dgc.trainer.progress import Display
from elastic_dgc.trainer.travel import packed
from elastic_dgc.trainer.worker import train_worker

POLL_S = 0.3
SILENCE_S = 15.0  # without news for so long, say what the cluster lacks
REPEAT_S = 30.0
END_S = 30.0  # for Ray to wind up after the outcome is known


def drive_run(job: Job, display: Display) -> dict[str, Any]:
    """Run a job to its outcome: {'state': 'finished' | 'stopped' | 'failed', ...}.

    Called in the thread that is to show progress; if it is the main one, Ctrl-C and SIGTERM ask the workers to save
    and stop, and a second one raises KeyboardInterrupt at once.
    """
    monitor = start_monitor(job.driver)
    trainer = _trainer(job)
    ended: dict[str, Any] = {}

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:  # noqa: BLE001 - carried to the main thread, which raises it
            ended["error"] = error

    thread = threading.Thread(target=fit, name="ray train", daemon=True)
    patience_s = 0.0  # Ray Train is given time to wind up only where the run has come to an end
    try:
        with _signals(monitor, display):
            thread.start()
            outcome = _watch(job, monitor, thread, display)
        patience_s = END_S
    finally:
        if not end_fit(monitor, thread, patience_s):
            display.say("Ray Train does not wind up: its processes end with this one")
    if outcome is not None:
        return outcome
    if "error" in ended:
        error = ended["error"]
        logger().debug("Ray Train ended the run", exc_info=error)
        raise ElasticDGCError(f"Ray Train ended the run: {_first_line(error)}; see Ray's logs") from None
    raise ElasticDGCError("Ray Train ended the run without a result: see the logs of Ray; the same command goes on")


def _trainer(job: Job) -> DataParallelTrainer:
    config = job.config
    elastic = config.max_workers > config.min_workers
    if elastic:  # for 20 s after a node is lost Ray still counts on it; do not try its size for a minute
        os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "20")
    most = min(config.max_workers, max(config.min_workers, config.virtual_workers))
    scaling = ScalingConfig(
        num_workers=(config.min_workers, most) if elastic and most > config.min_workers else config.min_workers,
        use_gpu=job.device == "cuda",
        resources_per_worker=cluster.resources_per_worker(config, job.device),
        elastic_resize_monitor_interval_s=config.resize_every_s,
    )
    announce: list[Any] = [AnnounceController(job.driver)]
    run_config: Any = RunConfig(
        name=job.driver.replace(" ", "-"),
        storage_path=tempfile.mkdtemp(prefix="elastic_dgc-ray-"),
        failure_config=FailureConfig(max_failures=-1, controller_failure_limit=-1),
        callbacks=announce,
    )
    return DataParallelTrainer(
        train_worker,
        train_loop_config=packed(job),
        backend_config=MeshConfig(job.run_url, job.run, job.driver, config.max_restarts),
        scaling_config=scaling,
        # Ray's own storage stays empty: state is kept by ours, which needs no barrier over all workers
        run_config=run_config,
    )


def _watch(job: Job, monitor: Any, thread: threading.Thread, display: Display) -> dict[str, Any] | None:
    """Show what happens until there is an outcome, or Ray Train ends without one. Raises `ElasticDGCError` where the
    cluster could not place the workers in time."""
    seen, pushes, losses = 0, -1, Losses()
    last_news = last_said = time.monotonic()
    while True:
        running = thread.is_alive()
        try:
            news: News = ray.get(monitor.poll.remote(seen), timeout=60)
        except RayError as error:
            text = f"Ray does not answer any more: {_first_line(error)}; the same command goes on"
            raise ElasticDGCError(text) from None
        seen += len(news.events)
        lost = losses.follow(news.progress, news.losses)
        if lost is not None:
            display.say(lost, logging.WARNING)
        for event in news.events:
            display.say(event["text"], event["level"])
        display.show(news.progress)
        if news.outcome is not None:
            return news.outcome
        if not running:
            return None
        now = time.monotonic()
        if news.pushes != pushes:
            pushes, last_news = news.pushes, now
        elif now - last_news > SILENCE_S and now - last_said > REPEAT_S:
            last_said = now
            lacking = cluster.missing(job.config, job.device)
            if lacking is not None:
                left = job.config.resource_wait_s - (now - last_news)
                display.say(f"waiting for up to {max(left, 0):.0f} s more: {lacking}")
            if now - last_news > job.config.resource_wait_s:
                silent = f"no news from the workers for {now - last_news:.0f} s: see Ray's logs"
                raise ElasticDGCError(lacking or silent)
        time.sleep(POLL_S)


@contextmanager
def _signals(monitor: Any, display: Display) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop gracefully the first time. Only the main thread may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = 0

    def handler(number: int, frame: Any) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt
        display.say("stopping at the next step, the state is saved; once more to stop at once")
        monitor.stop.remote()

    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
