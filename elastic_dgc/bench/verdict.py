"""From rounds to figures, and to the sentence that a user wants: what pays on this network."""

from __future__ import annotations

import statistics
from typing import Any

from elastic_dgc.bench import link
from elastic_dgc.bench.exchange import ExchangeBench
from elastic_dgc.bench.figures import FEWEST_ROUNDS, Wanted, counted, median_ratio, ms, table, with_range
from elastic_dgc.bench.modes import MODES, NONE
from elastic_dgc.bench.ours import PARTS

Round = dict[str, dict[str, Any]]
MOST_OVER_NONE, MOST_OVER_POWERSGD = 1.25, 0.8


def _both(rounds: list[Round], above: str, below: str) -> list[Round]:
    return [one for one in rounds if above in one and below in one]


def ratio(rounds: list[Round], above: str, below: str, clock: str = "step_s") -> tuple[float, list[float]] | None:
    """The median over rounds of the ratio of two modes' steps within a round, and its range; None if never both."""
    both = [(one[above][clock], one[below][clock]) for one in _both(rounds, above, below)]
    return median_ratio(both) if both else None


def summarise(bench: ExchangeBench, found: dict[str, Any]) -> dict[str, Any]:
    """What `run_worker` returned as figures, with its `workers`: `modes`, `fastest`, `dgc` (the fastest of DGC's), its
    ratios, and `dgc_pays`: None where nobody exchanges, or rounds do not tell. `wanted` only where there is a limit."""
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
    result |= {"workers": found["workers"], "dgc": best, "rival": rival}
    for key, below in (("none", NONE), ("powersgd1", "powersgd1"), ("rival", rival)):
        value = ratio(rounds, best, below) if best is not None and below is not None else None
        result[f"dgc_over_{key}"], result[f"dgc_over_{key}_range"] = value or (None, None)
    result["rival_rounds"] = 0 if best is None or rival is None else len(_both(rounds, best, rival))
    result["dgc_pays"] = _pays(result)
    limits = [one.as_json() for one in wanted(result)]
    return {**result, "wanted": limits} if limits else result


def _pays(result: dict[str, Any]) -> bool | None:
    ends = result["dgc_over_rival_range"]
    if ends is None or result["workers"] == 1 or result["rival_rounds"] < FEWEST_ROUNDS or ends[0] <= 1 <= ends[1]:
        return None
    return bool(ends[1] < 1)


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
        "exchange_ms_range": [ms(min(beside)), ms(max(beside))],
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
    if result["model"] != "resnet50" or result["dgc"] is None or result["workers"] == 1:
        return []
    limits = (("dgc_over_none", MOST_OVER_NONE), ("dgc_over_powersgd1", MOST_OVER_POWERSGD))
    return [Wanted(name, result[name], limit) for name, limit in limits if result[name] is not None]


def report(result: dict[str, Any]) -> str:
    """The result for a reader; the last line says what pays."""
    on = result["machine"]
    rows = [
        (name, one["step_ms"], with_range(one["over_none"], one["over_none_range"]),
         with_range(one["exchange_ms"], one["exchange_ms_range"]), one["cpu_ms"], one["bytes"],
         *(one["parts_ms"].get(part) for part in PARTS), one["rounds"])
        for name, one in result["modes"].items()
    ]  # fmt: skip
    head = ("mode", "step ms", "to none", "exchange ms", "cpu ms", "bytes sent", *PARTS, "rounds")
    lines = [
        f"{result['model']}, {counted(result['workers'], 'worker')} on {counted(result['nodes'], 'host')}, "
        f"{counted(result['batch'], 'image')} of {result['size']}x{result['size']} each; medians of "
        f"{counted(result['rounds'], 'round')} of {counted(result['steps'], 'step')}; {on['cpu']}, "
        f"{counted(on['cores'], 'core')}, load {on['load']}, torch {on['torch']}",
        f"link: {link.text(result['link'])}",
        "",
        table(head, rows),
        "'to none' and 'exchange ms' are the step against, and less, the step without any exchange: medians, and in "
        "brackets the range, of ratios and differences within a round, not quotients and differences of the medians in "
        "the columns; ~0: less than the noise. 'cpu ms' is a worker's processor time; "
        "'bytes sent' is by worker and step (DDP's are computed); the columns behind it are our parts in ms.",
        *(f"cut: {text}" for text in result["cut"].values()),
        "",
        *(Wanted(one["name"], one["value"], one["limit"], one["at_most"]).line() for one in result.get("wanted", [])),
        *pays(result),
    ]
    return "\n".join(lines)


def pays(result: dict[str, Any]) -> list[str]:
    """What is fastest here, and whether DGC pays, with both figures."""
    fastest, best, rival, modes = (result[key] for key in ("fastest", "dgc", "rival", "modes"))
    if fastest is None:
        return ["no mode that exchanges was measured"]
    if result["workers"] == 1:
        return ["one worker exchanges with nobody: what pays on a network is told by two or more"]
    lines = [f"fastest here by medians: {fastest} ({MODES[fastest].says}), {modes[fastest]['step_ms']:g} ms a step"]
    if best is not None and rival is not None:
        told, ends, number = result["dgc_pays"], result["dgc_over_rival_range"], result["rival_rounds"]
        verdict = "DGC pays on this network" if told else "DGC does not pay on this network"
        if told is None:
            verdict = "whether DGC pays on this network cannot be told"
        within = "" if ends is None else f"{with_range(result['dgc_over_rival'], ends)} in "
        few, wide = f"it takes {FEWEST_ROUNDS} rounds", "the range includes 1: more rounds may tell"
        why = "" if told is not None else f"; {few if number < FEWEST_ROUNDS else wide}"
        lines.append(
            f"{verdict}: {best} takes {modes[best]['step_ms']:g} ms a step, the fastest other, {rival}, "
            f"{modes[rival]['step_ms']:g} ms; ratio within rounds {within}{counted(number, 'round')}{why}"
        )
    return lines
