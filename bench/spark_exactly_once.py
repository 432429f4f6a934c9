"""Checks that Spark writes each message exactly once: queries from topic to topic under random faults.

Each run copies its own topic in several micro-batches. Meanwhile executors, drivers and brokers are killed, at random
moments and at those between the staging of a micro-batch and its end at all brokers. The query is restarted from its
checkpoint until it has copied everything. Then counts and sums by key, and each message, are compared with the input.

`plain` does the same without transactions, and shows that the comparison can fail.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from copying_run import CopyLine, Plan
from copying_scenario import Scenario, faults_of
from process_tree import adopt_orphans
from query_faults import FAULTS
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import minimq

#: Number of runs by scenario.
RUNS = {"transactional": 200, "plain": 40}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*RUNS]))
@click.option("--runs", type=int, help="How many; each scenario has a number of its own.")
@click.option("--rows", default=20_000, show_default=True, help="Messages in each input.")
@click.option("--batches", default=10, show_default=True, help="Micro-batches that copy it.")
@click.option("--fault", "only", type=click.Choice([*FAULTS]), multiple=True, help="Only this one, or these.")
@click.option("--one", type=int, help="Only the run of this number, to look at it closely.")
@click.option("--seed", type=int, help="Repeats the choices of an earlier call, which printed it.")
@click.option("--plant", is_flag=True, help="Send a message again by hand, to see that it is found.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep data and logs in this directory.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    names: tuple[str, ...],
    runs: int | None,
    rows: int,
    batches: int,
    only: tuple[str, ...],
    one: int | None,
    seed: int | None,
    plant: bool,
    keep: Path | None,
    output: str,
) -> None:
    """Run the scenarios NAMES, or both. Exit status 1 when a copy made by transactions is not exact."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}", file=sys.stderr)
    adopt_orphans()
    scenarios: list[Scenario] = []
    # After Ctrl-C, the results so far are shown.
    with (
        suppress(KeyboardInterrupt),
        Progress(console=Console(stderr=True), refresh_per_second=1, transient=True) as progress,
    ):
        for name in names or tuple(RUNS):
            count = RUNS[name] if runs is None else runs
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))
            plan = Plan(
                rows=rows,
                batches=batches,
                transactional=name == "transactional",
                plant=plant,
                folder=folder,
                tell=teller(progress, name, count),
            )
            faults = faults_of(count, kinds_of(only, plan.transactional), random.Random(f"{seed} {name}"))
            scenarios.append(Scenario(name))
            try:
                scenarios[-1].carry_out(range(count) if one is None else [one], faults, f"{seed} {name}", plan)
            finally:
                if keep is None:
                    shutil.rmtree(folder, ignore_errors=True)
    if output == "json":
        print(json.dumps([asdict(scenario) for scenario in scenarios], indent=2))
    else:
        show(scenarios)
    sys.exit(1 if any(scenario.name == "transactional" and not scenario.is_exact for scenario in scenarios) else 0)


def kinds_of(only: Sequence[str], transactional: bool) -> list[str]:
    """Return the kinds of faults of a scenario."""
    chosen = only or tuple(FAULTS)
    return [kind for kind in chosen if transactional or not FAULTS[kind].needs_transactions]


def teller(progress: Progress, name: str, count: int) -> Callable[[CopyLine, str], None]:
    """Return a function that shows the progress of a scenario, and mistakes as soon as they are found."""
    task = progress.add_task(name, total=count)

    def tell(line: CopyLine, what: str) -> None:
        progress.update(task, completed=line.number + (not what), description=f"{name}: {what}")
        if what:
            return
        faults = ", then ".join(line.faults)
        if not progress.console.is_terminal:
            progress.console.print(f"run {line.number} ({faults}): {line.seconds:.0f} s", markup=False)
        for text in line.failures:
            progress.console.print(f"run {line.number} ({faults}): the query failed: {text[-600:]}", markup=False)
        if name == "transactional" and not line.is_exact:
            found = asdict(line.verdict)
            progress.console.print(
                f"run {line.number} ({faults}): {found}, left {line.left}", markup=False, style="red"
            )

    return tell


# ---- Tables -----------------------------------------------------------------------------------------


def show(scenarios: Sequence[Scenario]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(f"\nminimq in {Path(minimq.__file__).parent}; data in {tempfile.gettempdir()}")
    for scenario in scenarios:
        title = f"{scenario.name}; a run with two faults counts for both of them"
        table = Table("fault", "runs", "not in time", title=title)
        for column in ("restarts", "replayed", "decided before", "query failed", "seconds", "rows"):
            table.add_column(column, justify="right")
        for column in ("lost", "twice", "strange", "disordered", "wrong keys", "left", "exact"):
            table.add_column(column, justify="right")
        for kind in FAULTS:
            add_row(table, kind, [line for line in scenario.lines if kind in line.faults])
        table.add_section()
        add_row(table, "", scenario.lines)
        console.print(table)
        for text in scenario.damage:
            console.print(text, markup=False, style="red")


def add_row(table: Table, kind: str, lines: Sequence[CopyLine]) -> None:
    """Add a row with the totals of runs with the same fault."""
    if not lines:
        return
    verdicts = [line.verdict for line in lines]
    sums = (
        sum(line.restarts for line in lines),
        sum(line.replayed for line in lines),
        sum(line.finished for line in lines),
        sum(len(line.failures) for line in lines),
        round(sum(line.seconds for line in lines)),
        *(
            sum(getattr(verdict, name) for verdict in verdicts)
            for name in ("rows", "lost", "twice", "strange", "disordered", "wrong_keys")
        ),
        sum(line.left for line in lines),
    )
    missed = sum(line.missed.count(kind) if kind else len(line.missed) for line in lines)
    exact = sum(line.is_exact for line in lines)
    table.add_row(kind, str(len(lines)), str(missed), *(f"{number:,}" for number in sums), f"{exact} of {len(lines)}")


if __name__ == "__main__":
    main()
