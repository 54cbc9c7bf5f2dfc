"""``retilt demo``: the whole job on the data in the package."""

from __future__ import annotations

from pathlib import Path

from retilt._terminal import (
    Terminal,
    fit_object,
    show_evaluation,
    show_files,
    show_fit,
)
from retilt.data import demo_files
from retilt.exceptions import InputError

TARGET = "income"
COLUMNS = 5
EPSILON = 1.0
GENERATOR_EPSILON = 3.0
SAMPLE_SEED = 0
MARK = "Made by `retilt demo`"
FILES = {
    "table": ("post.csv.gz", "the post-processed synthetic table"),
    "report": ("report.html", "a page about the fit: open it in a browser"),
    "weights": ("weights.parquet", "the weight of each row of the synthetic table, mean 1"),
    "plan": ("plan.json", "what was measured, at what cost"),
    "answers": ("answers.json", "the noisy answers"),
}


def run_demo(terminal: Terminal, folder: Path, *, force: bool = False) -> int:
    """Align the correlations of five columns of AIM's Adult at epsilon 1, and show the gain.

    Parameters
    ----------
    terminal
        Where to print.
    folder
        Where to write the table, the report, the weights, the plan and the answers. Made if
        missing; a folder of an earlier demo is written over.
    force
        Write over files of these names in a folder that no demo made.

    Returns
    -------
    int
        The exit code of the fit.
    """
    from retilt.engines.local import open_table
    from retilt.evaluation import evaluate
    from retilt.fitting import fit
    from retilt.measures.base import Relation
    from retilt.measures.workload import correlation
    from retilt.pipeline import measure
    from retilt.planning import plan, top_correlated
    from retilt.privacy.budget import ApproxDP, Generator

    files = _prepare(folder, force=force)
    with demo_files() as data:
        synthetic = open_table(data.synthetic)
        private = open_table(data.private, private=True)
        columns = top_correlated(synthetic, TARGET, top=COLUMNS, schema=data.schema)
        terminal.say(
            "The private table is UCI Adult's train split: public data, played as if it were "
            f"private, {private.rows:,} rows. The synthetic table is AIM's at ε = "
            f"{GENERATOR_EPSILON:g}, as many rows; that ε leaves out the lists of categories, "
            f"which AIM was given. The correlations of the {COLUMNS} columns that go with "
            f"{TARGET} in the synthetic table are to agree at ε = {EPSILON:g}."
        )
        with terminal.progress("planning"):
            planned = plan(
                synthetic,
                correlation(columns),
                epsilon=EPSILON,
                rows=private.rows,
                # AIM's noise is for tables that differ by one row more or less.
                generator=Generator(
                    ApproxDP(GENERATOR_EPSILON, 1 / private.rows**2), Relation.ADD_REMOVE
                ),
                schema=data.schema,
            )
            planned.save(files["plan"], force=True)
        with terminal.progress("measuring"):
            answers = measure(private, planned)
            answers.save(files["answers"], force=True)
        with terminal.progress("fitting") as step:
            tilt = fit(synthetic, answers, on_step=step)
            tilt.write_sample(files["table"], seed=SAMPLE_SEED, force=True)
            tilt.write_weights(files["weights"], force=True)
            tilt.report(files["report"], force=True)
        with terminal.progress("evaluating"):
            evaluation = evaluate(
                private, synthetic, files["table"], columns=columns, schema=data.schema
            )
    show_fit(terminal, tilt)
    terminal.say("")
    show_evaluation(terminal, evaluation)
    show_files(terminal, files)
    result = fit_object(tilt, files)
    terminal.result({**result, "evaluation": evaluation.to_dict()})
    return tilt.exit_code


def _prepare(folder: Path, *, force: bool) -> dict[str, Path]:
    """Make the folder and its README, unless that would write over somebody's files."""
    from retilt.engines.files import refuse_existing

    files = {role: folder / name for role, (name, _) in FILES.items()}
    readme = folder / "README.md"
    made_by_demo = readme.is_file() and MARK in readme.read_text("utf-8", errors="replace")
    if folder.is_dir():
        for path in [readme, *files.values()]:
            refuse_existing(path, force or made_by_demo)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        readme.write_text(
            f"# retilt demo\n\n{MARK}, which writes over these files when it is run again.\n\n"
            + "".join(f"* `{name}`: {what}\n" for name, what in FILES.values()),
            encoding="utf-8",
        )
    except OSError as error:
        raise InputError(f"folder {folder}: can't be written ({error.strerror}).") from None
    return files
