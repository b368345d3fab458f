"""From rounds to figures, and to the sentence that a user wants: what pays on this network."""

from __future__ import annotations

import statistics
from typing import Any

from elastic_dgc.bench import link
from elastic_dgc.bench.exchange import ExchangeBench
from elastic_dgc.bench.figures import Wanted, median_ratio, ms, table
from elastic_dgc.bench.modes import MODES, NONE
from elastic_dgc.bench.ours import PARTS

Round = dict[str, dict[str, Any]]
MOST_OVER_NONE, MOST_OVER_POWERSGD = 1.25, 0.8


def ratio(rounds: list[Round], above: str, below: str, clock: str = "step_s") -> tuple[float, list[float]] | None:
    """The median over rounds of the ratio of two modes' steps within a round, and its range; None if never both."""
    both = [(one[above][clock], one[below][clock]) for one in rounds if above in one and below in one]
    return median_ratio(both) if both else None


def summarise(bench: ExchangeBench, found: dict[str, Any]) -> dict[str, Any]:
    """What `run_worker` returned as figures: `modes`, `fastest`, `dgc` (the fastest of DGC's), `dgc_pays`, and its
    ratios."""
    rounds: list[Round] = found["rounds"]
    modes = {name: _mode(rounds, name) for name in bench.modes}
    exchanging = [name for name in bench.modes if name != NONE]
    speed = {name: modes[name]["step_ms"] for name in exchanging}
    dgc = [name for name in exchanging if MODES[name].compresses]
    others = [name for name in exchanging if not MODES[name].compresses]
    result = {**bench.model_dump(), **{key: found[key] for key in ("link", "cut", "machine")}, "modes": modes}
    result["rounds_measured"] = rounds
    result["fastest"] = min(exchanging, key=speed.__getitem__) if exchanging else None
    best = min(dgc, key=speed.__getitem__) if dgc else None
    rival = min(others, key=speed.__getitem__) if others else None
    result |= {"dgc": best, "rival": rival, "dgc_over_none": None, "dgc_over_powersgd1": None, "dgc_over_rival": None}
    if best is not None:
        for key, below in (("none", NONE), ("powersgd1", "powersgd1"), ("rival", rival)):
            value = ratio(rounds, best, below) if below is not None else None
            result[f"dgc_over_{key}"] = value[0] if value else None
    over = result["dgc_over_rival"]
    result["dgc_pays"] = None if over is None else over < 1
    result["wanted"] = [one.as_json() for one in wanted(result)]
    return result


def _mode(rounds: list[Round], name: str) -> dict[str, Any]:
    turns = [one[name] for one in rounds if name in one]
    beside = [one[name]["step_s"] - one[NONE]["step_s"] for one in rounds if name in one]
    over = ratio(rounds, name, NONE)
    over_cpu = ratio(rounds, name, NONE, "cpu_s")
    assert over is not None
    assert over_cpu is not None
    return {
        "step_ms": ms(statistics.median(one["step_s"] for one in turns)),
        "exchange_ms": ms(statistics.median(beside)),
        "over_none": over[0],
        "over_none_range": over[1],
        "cpu_ms": ms(statistics.median(one["cpu_s"] for one in turns)),
        "cpu_over_none": over_cpu[0],
        "bytes": round(statistics.median(one["bytes"] for one in turns)),
        "parts_ms": {
            part: ms(statistics.median(one["parts_s"][part] for one in turns)) for part in turns[0]["parts_s"]
        },
        "rounds": len(turns),
    }


def wanted(result: dict[str, Any]) -> list[Wanted]:
    """The limits that are promised for ResNet-50 on four workers: of the fastest of DGC's modes."""
    if result["model"] != "resnet50" or result["dgc"] is None:
        return []
    limits = (("dgc_over_none", MOST_OVER_NONE), ("dgc_over_powersgd1", MOST_OVER_POWERSGD))
    return [Wanted(name, result[name], limit) for name, limit in limits if result[name] is not None]


def report(result: dict[str, Any]) -> str:
    """The result for a reader; the last line says what pays."""
    on = result["machine"]
    rows = [
        (name, one["step_ms"], one["over_none"], one["exchange_ms"], one["cpu_ms"], one["bytes"],
         *(one["parts_ms"].get(part) for part in PARTS), one["rounds"])
        for name, one in result["modes"].items()
    ]  # fmt: skip
    head = ("mode", "step ms", "to none", "exchange ms", "cpu ms", "bytes sent", *PARTS, "rounds")
    lines = [
        f"{result['model']}, {result['workers']} workers on {result['nodes']} hosts, {result['batch']} images of "
        f"{result['size']}x{result['size']} each; medians of rounds of {result['steps']} steps; {on['cpu']}, "
        f"{on['cores']} cores, load {on['load']}, torch {on['torch']}",
        f"link: {link.text(result['link'])}",
        "",
        table(head, rows),
        "'exchange ms' is the step less the step without any exchange; 'cpu ms' is a worker's processor time; "
        "'bytes sent' is by worker and step (DDP's are computed); the columns behind it are our parts in ms.",
        *(f"cut: {text}" for text in result["cut"].values()),
        "",
        *(Wanted(one["name"], one["value"], one["limit"], one["at_most"]).line() for one in result["wanted"]),
        *pays(result),
    ]
    return "\n".join(lines)


def pays(result: dict[str, Any]) -> list[str]:
    """What is fastest here, and whether DGC pays, with both figures."""
    fastest, best, rival, modes = (result[key] for key in ("fastest", "dgc", "rival", "modes"))
    if fastest is None:
        return ["no mode that exchanges was measured"]
    lines = [f"fastest here: {fastest} ({MODES[fastest].says}), {modes[fastest]['step_ms']:g} ms a step"]
    if best is not None and rival is not None:
        verb = "pays" if result["dgc_pays"] else "does not pay"
        lines.append(
            f"DGC {verb} on this network: {best} takes {modes[best]['step_ms']:g} ms a step, the fastest other, "
            f"{rival}, {modes[rival]['step_ms']:g} ms (ratio within rounds {result['dgc_over_rival']:g})"
        )
    return lines
