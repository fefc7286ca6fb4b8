"""Tables that lay trainings side by side: their weights, memory, idle time and speed."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from experiments.study.differences import bit_equal, largest_difference, relative_difference
from experiments.study.training import PipelineTraining, Training, train_plain
from pipekit.schedules import check
from pipekit.traces import Trace

References = Mapping[tuple[int, int, int], Training]
"""Plain loops by (seed, microbatches, threads)."""


def key(training: Training) -> tuple[int, int, int]:
    """Return which plain loop a training must be compared with."""
    return training.recipe.seed, training.microbatches, training.threads


def references(trainings: Iterable[Training]) -> dict[tuple[int, int, int], Training]:
    """Train, for each training, the plain loop over the same microbatches with the same threads."""
    recipes = {key(training): training.recipe for training in trainings}
    return {k: train_plain(recipe, *k[1:]) for k, recipe in recipes.items()}


def difference_row(training: Training, reference: Training) -> dict[str, object]:
    """Return how far a training is from another, one row of a table (measured).

    Weights are compared after the first and after the last epoch: between the two, a difference in
    the last bit grows. ``loss`` is the mean of the last epoch's batches.
    """
    first, last = ((training.weights[e], reference.weights[e]) for e in (0, -1))
    points = 100 * (training.accuracies[-1] - reference.accuracies[-1])
    return {
        "method": training.name,
        "stages": training.stages,
        "microbatches": training.microbatches,
        "seed": training.recipe.seed,
        "bit-equal": bit_equal(*last) and training.losses == reference.losses,
        "max |Δw|, epoch 1": largest_difference(*first),
        "max |Δw|, end": largest_difference(*last),
        "‖Δw‖/‖w‖, end": relative_difference(*last),
        "loss": training.last_epoch_loss,
        "Δloss": training.last_epoch_loss - reference.last_epoch_loss,
        "accuracy (%)": 100 * training.accuracies[-1],
        "Δaccuracy (points)": points,
        "label": "measured",
    }


def difference_table(trainings: Iterable[Training], loops: References) -> pd.DataFrame:
    """Return a :func:`difference_row` of each training from its own plain loop."""
    return pd.DataFrame([difference_row(t, loops[key(t)]) for t in trainings])


def verdicts(differences: pd.DataFrame) -> list[str]:
    """Return a sentence for each method of a :func:`difference_table`."""
    sentences = []
    for name, rows in differences.groupby("method", sort=False):
        equal = f"equal to the plain loop to the bit in {rows['bit-equal'].sum()} of {len(rows)}"
        weights, points = rows["‖Δw‖/‖w‖, end"], rows["Δaccuracy (points)"]
        distance = (
            f"; weights at most {weights.max():.1%} of their norm away, "
            f"accuracy {points.min():+.1f} to {points.max():+.1f} points"
        )
        away = "" if rows["bit-equal"].all() else distance
        sentences.append(f"{name}: {equal} {'run' if len(rows) == 1 else 'runs'}{away} (measured)")
    return sentences


def memory_table(trainings: Iterable[PipelineTraining]) -> pd.DataFrame:
    """Return what each worker held at most, worker 0 first: measured by the engine, and exact.

    ``examples in flight`` counts rows instead of microbatches, so that methods with large and with
    small microbatches can be compared.
    """
    rows = []
    for training in trainings:
        run, report = training.run, check(training.run.schedule)
        rows_each = training.recipe.batch_rows / training.microbatches
        rows.append(
            {
                "method": training.name,
                "stages": training.stages,
                "weight slots (measured)": _list(run.weight_slots),
                "weight slots (exact)": _list(report.peak_versions),
                "in flight (measured)": _list(run.peak_in_flight),
                "in flight (exact)": _list(report.peak_in_flight),
                "examples in flight (measured)": _list(
                    [round(count * rows_each) for count in run.peak_in_flight]
                ),
            }
        )
    return pd.DataFrame(rows).drop_duplicates(ignore_index=True)


def speed_table(trainings: Iterable[PipelineTraining]) -> pd.DataFrame:
    """Return the idle share of an epoch's worker time, and examples a second.

    The exact bubble is that of the whole epoch in slots, a backward taking two; the measured one is
    the last epoch's.  The speed is that of the median epoch, evaluation left out.
    """
    return pd.DataFrame(
        {
            "method": training.name,
            "stages": training.stages,
            "seed": training.recipe.seed,
            "bubble of makespan, % (exact)": 100
            * Trace.from_schedule(training.run.schedule).bubble,
            "bubble of makespan, % (measured)": 100 * training.run.trace.bubble,
            "examples/s (measured)": examples_per_s(training),
        }
        for training in trainings
    )


def examples_per_s(training: Training) -> float:
    """Return the training speed of the median epoch (measured)."""
    batches = len(training.losses) // training.recipe.epochs
    return batches * training.recipe.batch_rows / statistics.median(training.epoch_s)


def loss_curves(trainings: Iterable[Training], window: int) -> pd.DataFrame:
    """Return (method, batch, loss): a batch's loss, averaged with the ``window - 1`` before it."""
    return pd.concat(
        pd.DataFrame(
            {
                "method": training.name,
                "batch": range(1, len(training.losses) + 1),
                "loss": pd.Series(training.losses).rolling(window, min_periods=1).mean(),
            }
        )
        for training in trainings
    )


def accuracy_curves(trainings: Iterable[Training]) -> pd.DataFrame:
    """Return (method, epoch, accuracy in percent) on the test set, after each epoch."""
    return pd.concat(
        pd.DataFrame(
            {
                "method": training.name,
                "epoch": range(1, training.recipe.epochs + 1),
                "accuracy": [100 * value for value in training.accuracies],
            }
        )
        for training in trainings
    )


def excerpt(trace: Trace, microbatches: int) -> Trace:
    """Return a trace up to the end of its first microbatches, with all that ran meanwhile."""
    frame = trace.frame
    end = frame.loc[frame["microbatch"] < microbatches, "end_s"].max()
    return replace(trace, frame=frame[frame["end_s"] <= end])


def _list(values: Sequence[int]) -> str:
    return " ".join(map(str, values))
