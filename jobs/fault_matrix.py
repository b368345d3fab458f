"""The fault matrix: the protocol of views, in virtual time, with every fault at every point; and random schedules.

    python jobs/fault_matrix.py                            # all of it, three minutes of two cores
    python jobs/fault_matrix.py --only NAME                # one scenario of the matrix, with what was said and done
    python jobs/fault_matrix.py --seed 7 --random 1        # one random schedule

Real gradients, real state machines; clock, network and machines are simulated. Every scenario is held against the
undisturbed run, bit for bit, by all oracles. The tables have a row for each fault and a column for each point at which
it struck: scenarios as they were to be, of all. The exit code is 1 where one is not.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter

import click

from elastic_dgc.simulation import campaign
from elastic_dgc.simulation.scenario import EXPECTED, Scenario, Verdict, judge
from elastic_dgc.simulation.tables import tables
from elastic_dgc.simulation.world import World


def command_for(name: str) -> str:
    """What plays this scenario again."""
    if name.startswith(campaign.RANDOM):
        return f"python jobs/fault_matrix.py --seed {name.removeprefix(campaign.RANDOM)} --random 1"
    return f"python jobs/fault_matrix.py --only {name}"


def tell(scenario: Scenario) -> Verdict:
    """Play one, and print all there is to see of it."""
    world = World(scenario.setting, scenario.faults, scenario.seed)
    found = judge(scenario, world, world.run())
    setting = scenario.setting
    click.echo(f"{scenario.name}: to be {scenario.expected} ({EXPECTED[scenario.expected]})")
    click.echo(f"workers on {', '.join(setting.nodes)}; {setting.recipe}")
    for fault in scenario.faults:
        click.echo(f"fault: {fault}{'' if fault not in world.strikes.waiting else ' (did not happen)'}")
    for at_s, level, text in world.said:
        click.echo(f"{at_s:10.3f} s  {level:7}  {text}")
    for one in world.platform.workers:
        click.echo(f"{one.address} on {one.node}: {one.ended}{f', {one.error}' if one.error is not None else ''}")
    return found


@click.command(help=__doc__)
@click.option("--only", help="One scenario, by its name.")
@click.option("--seed", default=0, show_default=True, help="Of the first random schedule.")
@click.option("--random", "schedules", type=click.IntRange(0), help="So many random schedules, alone; by default 300.")
@click.option("--processes", type=click.IntRange(1), help="By default as many as there are cores.")
@click.option("--markdown", is_flag=True, help="The tables as markdown.")
def main(only: str | None, seed: int, schedules: int | None, processes: int | None, markdown: bool) -> None:
    if only is not None:
        wanted = [only]
    elif schedules is not None:
        wanted = [f"{campaign.RANDOM}{seed + n}" for n in range(schedules)]
    else:
        wanted = campaign.names(seed, 300)
    began = time.monotonic()
    try:
        if len(wanted) == 1:
            verdicts = [tell(campaign.scenario_named(wanted[0]))]
        else:
            verdicts = list(campaign.run(wanted, processes or os.cpu_count() or 1))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    order = {name: n for n, name in enumerate(wanted)}
    verdicts.sort(key=lambda one: order[one.name])
    if len(wanted) > 1:
        click.echo(tables(verdicts, markdown))
        kinds = Counter((one.expected, one.exact) for one in verdicts)
        told = ", ".join(
            f"{count} {expected}{'' if exact else ', not exact'}" for (expected, exact), count in kinds.items()
        )
        click.echo(
            f"\n{len(verdicts)} scenarios ({told}), {sum(one.fired for one in verdicts)} faults, "
            f"{sum(one.views for one in verdicts)} views, {time.monotonic() - began:.0f} s; "
            f"random schedules from seed {seed}"
        )
    bad = [one for one in verdicts if one.wrong]
    for one in bad:
        click.echo(f"\nnot as it was to be: {command_for(one.name)}", err=True)
        for text in one.wrong:
            click.echo(f"    {text}", err=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
