"""What the command line prints: sentences, tables and progress bars."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from atomsep.cli.printable import printable
from atomsep.experiments.progress import Listener
from atomsep.experiments.registry import EXPERIMENTS

if TYPE_CHECKING:
    from atomsep.experiments.runs import RunKey
    from atomsep.experiments.sweeps.choices import Search
    from atomsep.experiments.sweeps.ledger import Event

HIGH, LOW = 1.0, 1e-3
"""Beyond these shares one of the two gradients has hardly any influence."""

SPEAK_EVERY = 30.0
"""Seconds between two lines where there is no terminal to draw a bar on."""


class SafeConsole(Console):
    """A console on which text from outside cannot control the terminal; see `printable`."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Text as the console prints it."""
        return super().render_str(printable(text), **options)

    def say(self, sentence: str) -> None:
        """Print a sentence, without line breaks of the console's own."""
        self.print(sentence, soft_wrap=True)


def make_console(*, stderr: bool = False, quiet: bool = False) -> SafeConsole:
    """The console for everything that the command line prints, without markup and colours."""
    return SafeConsole(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)


def shows_charges(console: SafeConsole) -> bool:
    """Whether a console has colours enough to tell charges apart: not in a pipe, nor in 16."""
    return console.color_system in ("256", "truecolor") and not console.no_color


def counted(number: int, thing: str) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "seed"), counted(2, "seed")
        ('1 seed', '2 seeds')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def rounded(number: float) -> str:
    """A number to two digits.

    Example:
        >>> rounded(0.0214), rounded(389.7), rounded(1034.0)
        ('0.021', '390', '1,000')
    """
    return f"{float(f'{number:.2g}'):,g}"


class _Display(Progress):
    """A bar while a `with` block runs, or a line now and then where there is no terminal.

    Where the output goes to a file or another program, it goes to the standard error.
    """

    def __init__(self, console: SafeConsole, *columns: ProgressColumn | str) -> None:
        on = console if console.is_terminal or console.quiet else make_console(stderr=True)
        super().__init__(*columns, console=on, disable=not on.is_terminal)
        self.say, self.spoken = console.say, time.monotonic()

    def say_now_and_then(self, sentence: str) -> None:
        """Print a line if nobody sees the bar and the last line was long ago."""
        if not self.console.is_terminal and time.monotonic() - self.spoken >= SPEAK_EVERY:
            self.spoken = time.monotonic()
            self.console.print(sentence, soft_wrap=True)


class TrainingDisplay(_Display, Listener):
    """Shows one run: a bar with the loss's parts, throughput and time left, and the metrics."""

    def __init__(self, console: SafeConsole) -> None:
        losses = TextColumn("{task.fields[losses]}", markup=False)
        share, rate = "{task.percentage:>3.0f} %", "{task.fields[rate]}"
        super().__init__(console, BarColumn(20), share, TimeRemainingColumn(), "left", losses, rate)
        self.bar = self.add_task("", total=None, losses="starting", rate="")
        self.share, self.hinted, self.weighted, self.usual = "", False, True, False

    def decoded(self, done: int, total: int) -> None:
        """Move the bar while images are decoded."""
        self.update(self.bar, total=total, completed=done, losses="decoding images")
        self.say_now_and_then(f"{done} of {total} images are decoded")

    def started(self, key: RunKey, done: int, total: int) -> None:
        """Draw the bar."""
        sentence = f"Training {key.experiment} with {key.method}, seed {key.seed}"
        if done:
            sentence += f", from its checkpoint: {done} of {total} steps are done"
        self.say(sentence)
        self.weighted = key.settings.weight != 0
        known = EXPERIMENTS.get(key.experiment)
        own = None if known is None else known.weights.get(key.method)
        self.usual = known is not None and known.large_share and key.settings.weight == own
        self.update(self.bar, total=total, completed=done, losses="")

    def few_evaluations(self, number: int, wanted: int) -> None:
        """Print what the result will be the mean of."""
        self.say(
            f"The result is the mean of only {counted(number, 'evaluation')}: this run has "
            f"fewer than average_last={wanted}"
            if number > 1
            else f"The result is that of the only evaluation, although average_last={wanted}"
        )

    def strength(self, shares: Mapping[str, float], step: int) -> None:
        """Show how strong the method's gradient is at its layer, with a hint if that is odd."""
        whole, hint = shares["gradient_share"], ""
        parts = [rounded(share) for name, share in shares.items() if name != "gradient_share"]
        if whole > HIGH and self.usual:
            hint = ". This is usual for this experiment at its own weight"
        elif whole > HIGH:
            hint = (
                ". This is large: the method outweighs the task at this layer. If the model does "
                "not learn the task, compare with a smaller weight"
            )
        elif whole < LOW and self.weighted:
            hint = ". This is small, and may have no effect: compare with a larger weight"
        detail = " ({} in the charge, {} in the positions)".format(*parts) if parts else ""
        if not self.share or (hint and not self.hinted):
            when = "At the first step" if step == 1 else f"After {counted(step, 'step')}"
            self.say(
                f"{when} the method's gradient at its layer is {rounded(whole)} times the task's"
                f"{detail}{hint}"
            )
        self.share, self.hinted = f", gradient share {rounded(whole)}", bool(hint)

    def no_strength(self, why: str) -> None:
        """Print the sentence."""
        self.say(why)

    def progressed(self, done: int, total: int, parts: Mapping[str, float], rate: float) -> None:
        """Move the bar."""
        losses = printable(", ".join(f"{name} {value:.3g}" for name, value in parts.items()))
        losses += self.share
        speed = f"{rate:,.0f} samples/s"
        self.update(self.bar, completed=done, losses=losses, rate=speed)
        self.say_now_and_then(f"{done} of {total} steps: {losses}; {speed}")

    def evaluated(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Print the metrics."""
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.say(f"Epoch {epoch}, after {counted(step, 'step')}: {numbers}")


class SweepDisplay(_Display):
    """Shows a sweep: one bar for all runs."""

    def __init__(self, console: SafeConsole, doing: str) -> None:
        times = TimeElapsedColumn(), TimeRemainingColumn(), "left"
        columns = ("{task.description}", BarColumn(20), "{task.fields[count]}", *times)
        super().__init__(console, *columns)
        self.bar = self.add_task(doing, total=None, count="")

    def __call__(self, event: Event) -> None:
        """Move the bar."""
        count = f"{int(event.done)} of {event.total}"
        if event.failed:
            count += f", {event.failed} failed"
        if event.running > 1:
            count += f", {event.running} at a time"
        self.update(self.bar, completed=event.done, total=event.total, count=count)
        self.say_now_and_then(f"Runs: {count}")


class CountDisplay(_Display):
    """Shows how many of some things are done."""

    def __init__(self, console: SafeConsole, doing: str, total: int) -> None:
        super().__init__(
            console, "{task.description}", BarColumn(20), TimeRemainingColumn(), "left"
        )
        self.bar = self.add_task(doing, total=total)

    def advance_one(self) -> None:
        """Count one more."""
        self.advance(self.bar)


def show_search(console: SafeConsole, found: Search) -> None:
    """Print all trials of a search, what it chose, what each method tried, and why some failed."""
    console.print(search_table(found))
    for sentence in (*found.summary(), *found.at_an_end()):
        console.say(sentence)
    failed = Counter((trial.method, trial.reason) for trial in found.trials if trial.reason)
    for (method, reason), count in failed.items():
        console.say(f"Failed: {method}, {counted(count, 'setting')}: {reason}")


def search_table(found: Search) -> Table:
    """All trials of a search, with its choices in bold."""
    decays = found.weight_decay is not None
    columns = ("learning rate", *(("weight decay",) if decays else ()), "weight")
    shown = Table("method", *columns, found.metric, title="Search")
    for trial in found.trials:
        value = f"{trial.mean:.4f}" if trial.values and not trial.reason else "failed"
        if trial.broken_down:
            value += f" ({len(trial.broken_down)} broke down)"
        style = "bold" if trial.point == found.point(trial.method) else None
        numbers = [f"{number:g}" for number in trial.point.values() if number is not None]
        shown.add_row(trial.method, *numbers, value, style=style)
    return shown
