"""The command line: parse, call, print.

Nothing heavy is imported before a command runs, so that ``retilt --help`` answers at once.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retilt._budget import budget
from retilt._forecast import PLOT, WHAT_IF, amounts_of, show_forecast, show_outlook
from retilt._measures import (
    CDF,
    CLIP,
    CORRELATE,
    CORRELATE_WITH,
    KEEP,
    MARGINAL,
    MARGINALS,
    MEAN,
    MOMENTS,
    QUANTILES,
    QUERY,
    REGRESS,
    SHARE,
    TOP,
    WORKLOAD,
    Measures,
    guards_of,
    names_of,
)
from retilt._options import (
    ANSWERS_OUT,
    BASE_WEIGHTS,
    BASIS,
    BASIS_OF_METHOD,
    CANDIDATES,
    DATASET,
    DELTA,
    DENOISE,
    EPSILON,
    FORCE,
    GENERATOR_DELTA,
    GENERATOR_EPSILON,
    GENERATOR_RHO,
    GENERATOR_UNIT,
    LEDGER,
    MAX_WEIGHT,
    METHOD,
    MIN_ESS,
    MIN_WEIGHT,
    OUTPUT,
    PERSON,
    PLAN_OUT,
    POST,
    PRIVACY_OUT,
    PRIVATE,
    QUIET,
    QUIET_FIGURES,
    REPORT,
    RHO,
    ROWS,
    ROWS_PER_PERSON,
    SAMPLING,
    SCHEMA,
    SEED,
    SELECT,
    SELECT_SHARE,
    SHUFFLE,
    SIZE,
    SUPPORT,
    SYNTHETIC,
    TILT,
    UNIT,
    WEIGHTS,
    Basis,
    Method,
    Output,
    Unit,
    generator_of,
    unit_of,
    value_of,
)
from retilt._output import write_text
from retilt._terminal import (
    Terminal,
    fit_object,
    show_added,
    show_evaluation,
    show_figures,
    show_files,
    show_fit,
    show_notes,
    spell_out_unknown_letters,
    spoken_warnings,
    support_object,
    with_error,
)
from retilt._version import __version__
from retilt.exceptions import InputError, RetiltError

if TYPE_CHECKING:
    from retilt.privacy.answers import Answers
    from retilt.privacy.plan import Plan
    from retilt.tilt import Tilt

INTERNAL_ERROR = 1
INTERRUPTED = 130
COMMANDS = (
    "plan",
    "measure",
    "fit",
    "sample",
    "run",
    "evaluate",
    "schema",
    "demo",
    "budget",
    "audit",
)
NEVER_PRIVATE = frozenset({"plan", "fit", "sample", "schema", "budget", "audit"})
"""Commands that never see the private table: only their internal errors show a traceback."""
_BESIDE = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps beside a database."""

TABLES = ("table", "weights", "candidates")
"""Outputs whose name's ending says their format."""

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Make a synthetic table agree with the statistics you care about, with differential "
        "privacy. The private table is read by measure, run and evaluate only."
    ),
    epilog=(
        "Exit codes: 0 done, 2 bad usage or input, 3 refused for privacy or budget, 4 not all met."
    ),
)


app.add_typer(budget, name="budget")


# -- shared steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Session:
    """What the global options say."""

    quiet: bool = False

    def terminal(self, output: Output, quiet: bool) -> Terminal:
        return Terminal(as_json=output is Output.JSON, quiet=self.quiet or quiet)


def _terminal(context: typer.Context, output: Output, quiet: bool) -> Terminal:
    session: _Session = context.obj
    return session.terminal(output, quiet)


def _check_outputs(
    outputs: Mapping[str, Path | None], inputs: Sequence[str | Path | None], *, force: bool
) -> dict[str, Path]:
    """Refuse what can't be written, before anything is read or measured."""
    from retilt.engines.files import refuse_existing, refuse_table_path
    from retilt.engines.local import would_change

    wanted = {role: path for role, path in outputs.items() if path is not None}
    read = [path for path in inputs if path is not None]
    seen: set[str] = set()
    for role, path in wanted.items():
        place = os.path.realpath(path)
        if any(would_change(source, path) for source in read):
            raise InputError(f"output {path}: that is an input file. Name another one.")
        if any(place == os.path.realpath(f"{source}{end}") for source in read for end in _BESIDE):
            raise InputError(f"output {path}: that name belongs to a ledger. Name another one.")
        if place in seen:
            raise InputError(f"output {path}: two outputs have this name. Name each another one.")
        seen.add(place)
        check = refuse_table_path if role in TABLES else refuse_existing
        check(path, force)
    return wanted


@dataclass(slots=True)
class _Keeper:
    """Keeps the plan and the answers of a command: what was paid for must not be lost.

    If the command fails after measuring, or its fit falls short (``short``), answers that are in
    no file yet are written to one of their own in the current folder, or else in the system's
    folder for temporary files (``kept``), so that ``retilt fit`` can go on from there.
    """

    plan_file: Path | None
    answers_file: Path | None
    force: bool
    privacy_file: Path | None = None
    ledger: Path | None = None
    answers: Answers | None = None
    saved: bool = False
    short: bool = False
    kept: Path | None = None

    def keep_plan(self, plan: Plan) -> None:
        if self.plan_file is not None:
            plan.save(self.plan_file, force=self.force)

    def keep_answers(self, answers: Answers) -> None:
        self.answers = answers
        if self.answers_file is not None:
            answers.save(self.answers_file, force=self.force)
            self.saved = True
            self._tell_ledger(self.answers_file)
        if self.privacy_file is not None:
            try:
                write_text(self.privacy_file, answers.privacy_page(), force=self.force)
            except InputError as error:
                if self.saved:
                    error.add_note(f"The answers are paid for and written: {self.answers_file}.")
                raise

    def _tell_ledger(self, path: Path) -> None:
        """Note where the answers are; they are there whether or not the ledger knows."""
        entry = None if self.answers is None else self.answers.ledger
        if self.ledger is not None and entry is not None:
            from retilt.privacy.ledger import Ledger

            with suppress(InputError):
                Ledger(self.ledger).note_file(entry.charge, path)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
        # With a ledger they are kept in any case: it tells whoever measures again to fit them.
        unwanted = kind is None and self.ledger is None and not self.short
        if unwanted or self.answers is None or self.saved:
            return
        name = f"retilt-answers-{secrets.token_hex(4)}.json"
        said = "The budget is spent, and the answers could not be kept in any file."
        for place in (Path(name), Path(tempfile.gettempdir(), name)):
            with suppress(InputError):  # the error that led here is the one to tell
                self.answers.save(place)
                self._tell_ledger(place)
                self.kept = place
                said = f"The budget is spent; the answers were kept in {place}: go on with "
                said += "`retilt fit`."
                break
        print(said, file=sys.stderr)


def _need_output(
    outputs: Mapping[str, Path], options: str, size: int | None, sampling: object, shuffle: bool
) -> None:
    if not outputs:
        raise InputError(f"nothing to write: name at least one of {options}.")
    if "table" not in outputs and (size is not None or sampling is not None or shuffle):
        raise InputError(
            "-n, --sampling and --shuffle say how a table is drawn: name the table with -o, too."
        )


def _check_candidates(files: Mapping[str, Path], support: object) -> None:
    """Refuse weights of rows that the user has no table of."""
    if support is None and "candidates" in files:
        raise InputError("--candidates: without --support the candidates are SYNTHETIC itself.")
    if support is not None and "weights" in files and "candidates" not in files:
        raise InputError(
            "--weights: with --support there are more candidate rows than SYNTHETIC has. Name a "
            "file for them all with --candidates, too: the weights are one for each of its rows."
        )


def _write_fit(
    tilt: Tilt, files: Mapping[str, Path], draw: Mapping[str, Any], *, force: bool
) -> int | None:
    """Write what is asked for; how many rows of the table are candidates that were added."""
    added = None
    if "table" in files:
        added = tilt.write_sample(files["table"], force=force, **draw)
    if "candidates" in files:
        tilt.write_candidates(files["candidates"], force=force)
    if "weights" in files:
        tilt.write_weights(files["weights"], force=force)
    if "tilt" in files:
        tilt.save(files["tilt"], force=force)
    if "report" in files:
        tilt.report(files["report"], force=force)
    return added


# -- commands --------------------------------------------------------------------------------------


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"retilt {__version__}")
        raise typer.Exit(0)


@app.callback(invoke_without_command=True)
def _global(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            help="No progress, and no text beside errors, warnings and evaluate's figures.",
        ),
    ] = False,
) -> None:
    context.obj = _Session(quiet=quiet)
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(2)


@app.command()
def plan(
    context: typer.Context,
    synthetic: SYNTHETIC,
    correlate: CORRELATE = None,
    moments: MOMENTS = None,
    mean: MEAN = None,
    regress: REGRESS = None,
    marginal: MARGINAL = None,
    marginals: MARGINALS = None,
    share: SHARE = None,
    query: QUERY = None,
    cdf: CDF = None,
    quantiles: QUANTILES = None,
    correlate_with: CORRELATE_WITH = None,
    top: TOP = None,
    keep: KEEP = None,
    clip: CLIP = "auto",
    workload: WORKLOAD = None,
    basis: BASIS = Basis.CENTRED,
    schema: SCHEMA = None,
    epsilon: EPSILON = None,
    delta: DELTA = None,
    rho: RHO = None,
    select: SELECT = None,
    select_share: SELECT_SHARE = None,
    rows: ROWS = None,
    unit: UNIT = Unit.REPLACE,
    person: PERSON = None,
    rows_per_person: ROWS_PER_PERSON = None,
    generator_epsilon: GENERATOR_EPSILON = None,
    generator_delta: GENERATOR_DELTA = None,
    generator_rho: GENERATOR_RHO = None,
    generator_unit: GENERATOR_UNIT = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="plan.json", help="Where to save the plan."),
    ] = None,
    what_if: WHAT_IF = None,
    plot: PLOT = None,
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Say what to measure, at what cost, and how precise it will be. Reads SYNTHETIC only."""
    from retilt.engines.local import open_table
    from retilt.forecasting import forecast
    from retilt.outlooks import outlook
    from retilt.planning import plan as make_plan

    terminal = _terminal(context, output, quiet)
    measures = Measures(
        correlate=correlate,
        moments=moments,
        mean=mean,
        regress=regress,
        marginal=marginal,
        marginals=marginals,
        share=share,
        query=query,
        cdf=cdf,
        quantiles=quantiles,
        correlate_with=correlate_with,
        top=top,
        keep=keep,
        clip=clip,
        workload=workload,
    )
    measures.check_any()
    amounts = _what_if(what_if, plot, out, spends=epsilon is not None or rho is not None)
    files = _check_outputs(
        {"plan": out, "plot": plot}, [synthetic, schema, *(workload or ())], force=force
    )
    options: dict[str, Any] = {
        "delta": delta,
        "rows": rows,
        "unit": unit_of(unit, person, rows_per_person),
        "generator": generator_of(
            generator_epsilon, generator_delta, generator_rho, generator_unit
        ),
        "schema": schema,
        "basis": basis.value,
        "select": select,
        "select_share": select_share,
    }
    made = seen = expected = None
    with terminal.progress("planning"):
        table = open_table(synthetic)
        asked = measures.build(table, schema)
        if amounts is None or epsilon is not None or rho is not None:
            made = make_plan(table, asked, epsilon=epsilon, rho=rho, **options)
            seen = outlook(table, made)
        if amounts is not None:
            expected = forecast(table, asked, **amounts, **options)
        if made is not None and out is not None:
            made.save(out, force=force)
        if expected is not None and plot is not None:
            expected.plot(plot, force=force)
    found: dict[str, Any] = {}
    if made is not None and seen is not None:
        show_outlook(terminal, seen)
        found = {
            "plan": made.to_dict(),
            "privacy": made.privacy,
            "statistics": seen.statistics_table(),
            "costs": seen.costs.to_dict(),
            "notes": [*made.notes, *seen.notes],
        }
    if expected is not None:
        show_forecast(terminal, expected)
        found["what_if"] = expected.to_dict()
    show_files(terminal, files)
    terminal.result({**found, "files": files})
    return 0


def _what_if(
    text: str | None, plot: Path | None, out: Path | None, *, spends: bool
) -> dict[str, list[float]] | None:
    """The budgets of ``--what-if``, and no file that nothing would be written to."""
    if text is None:
        if plot is not None:
            raise InputError("--plot: it draws --what-if; give that, too.")
        return None
    if out is not None and not spends:
        raise InputError("-o: a plan needs its own --epsilon or --rho beside --what-if.")
    if plot is not None:
        from retilt.forecasting import check_plot

        check_plot(plot, force=True)  # an existing file is refused with the other outputs
    return amounts_of(text)


@app.command()
def measure(
    context: typer.Context,
    private: PRIVATE,
    plan_file: Annotated[Path, typer.Argument(metavar="plan.json", help="What to measure.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="answers.json", help="The noisy answers.")
    ],
    ledger: LEDGER = None,
    dataset: DATASET = None,
    privacy: PRIVACY_OUT = None,
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Measure PRIVATE as planned, with noise: the only step that spends privacy."""
    from retilt.pipeline import measure as take
    from retilt.privacy.plan import load_plan

    terminal = _terminal(context, output, quiet)
    files = _check_outputs(
        {"answers": out, "privacy": privacy}, [private, plan_file, ledger], force=force
    )
    made = load_plan(plan_file)
    keeper = _Keeper(None, out, force, privacy, ledger)
    with spoken_warnings(), keeper, terminal.progress("measuring"):
        answers = take(private, made, ledger=ledger, dataset=dataset)
        keeper.keep_answers(answers)
    rows = [
        [str(s["statistic"]), with_error(s["estimate"], s["standard_error"])]
        for s in answers.statistics_table()
    ]
    terminal.table("Released, with noise", ["statistic", "estimate ± s.e."], rows)
    if answers.plan.selection is not None:
        terminal.say(answers.plan.selected)
    terminal.say(f"Privacy: {answers.statement}")
    show_files(terminal, files)
    terminal.result(
        {
            "private": answers.private,
            "privacy": answers.privacy,
            "statistics": answers.statistics_table(),
            "notes": list(answers.notes),
            "files": files,
        }
    )
    return 0


@app.command()
def fit(
    context: typer.Context,
    synthetic: SYNTHETIC,
    answers_file: Annotated[
        Path,
        typer.Argument(
            metavar="answers.json",
            help="What `retilt measure` wrote, or statistics published elsewhere.",
        ),
    ],
    method: METHOD = Method.DEFAULT,
    base_weights: BASE_WEIGHTS = None,
    min_ess: MIN_ESS = None,
    max_weight: MAX_WEIGHT = None,
    min_weight: MIN_WEIGHT = None,
    denoise: DENOISE = None,
    support: SUPPORT = None,
    keep: KEEP = None,
    size: SIZE = None,
    sampling: SAMPLING = None,
    seed: SEED = None,
    shuffle: SHUFFLE = False,
    out: POST = None,
    weights: WEIGHTS = None,
    candidates: CANDIDATES = None,
    tilt: TILT = None,
    report: REPORT = None,
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Weight SYNTHETIC towards the answers and draw a table. Costs no privacy."""
    from retilt.fitting import fit as make_tilt
    from retilt.privacy.targets import load_targets

    terminal = _terminal(context, output, quiet)
    files = _check_outputs(
        {
            "table": out,
            "weights": weights,
            "candidates": candidates,
            "tilt": tilt,
            "report": report,
        },
        [synthetic, answers_file],
        force=force,
    )
    options = "-o (the table), --weights, --tilt, --report"
    _need_output(files, options, size, sampling, shuffle)
    _check_candidates(files, support)
    answers = load_targets(answers_file)
    with terminal.progress("fitting") as step:
        made = make_tilt(
            synthetic,
            answers,
            method=method.value,
            base_weights=base_weights,
            min_ess=min_ess,
            max_weight=max_weight,
            min_weight=min_weight,
            denoise=value_of(denoise),
            support=value_of(support),
            keep=guards_of(keep),
            seed=seed,
            on_step=step,
        )
        draw = {"rows": size, "method": value_of(sampling), "seed": seed, "shuffle": shuffle}
        added = _write_fit(made, files, draw, force=force)
    show_fit(terminal, made, added)
    show_files(terminal, files)
    terminal.result(fit_object(made, files, added))
    return made.exit_code


@app.command()
def sample(
    context: typer.Context,
    synthetic: SYNTHETIC,
    tilt_file: Annotated[
        Path, typer.Argument(metavar="tilt.json", help="What `retilt fit --tilt` wrote.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FILE", help="The new table.")],
    base_weights: BASE_WEIGHTS = None,
    size: SIZE = None,
    sampling: SAMPLING = None,
    seed: SEED = None,
    shuffle: SHUFFLE = False,
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Draw another table from a tilt, of any size. Costs no privacy."""
    from retilt.tilt import load_tilt

    terminal = _terminal(context, output, quiet)
    files = _check_outputs({"table": out}, [synthetic, tilt_file], force=force)
    with terminal.progress("sampling"):
        tilt = load_tilt(tilt_file, synthetic, base_weights=base_weights)
        added = tilt.write_sample(
            out, size, method=value_of(sampling), seed=seed, shuffle=shuffle, force=force
        )
    rows = tilt.own_rows if size is None else size
    terminal.say(f"{rows:,} rows drawn.")
    show_added(terminal, tilt, added)
    show_notes(terminal, tilt.notes)
    show_files(terminal, files)
    terminal.result(
        {"rows": rows, "support": support_object(tilt, added), "notes": tilt.notes, "files": files}
    )
    return 0


@app.command()
def run(
    context: typer.Context,
    private: PRIVATE,
    synthetic: SYNTHETIC,
    correlate: CORRELATE = None,
    moments: MOMENTS = None,
    mean: MEAN = None,
    regress: REGRESS = None,
    marginal: MARGINAL = None,
    marginals: MARGINALS = None,
    share: SHARE = None,
    query: QUERY = None,
    cdf: CDF = None,
    quantiles: QUANTILES = None,
    correlate_with: CORRELATE_WITH = None,
    top: TOP = None,
    keep: KEEP = None,
    clip: CLIP = "auto",
    workload: WORKLOAD = None,
    basis: BASIS_OF_METHOD = None,
    schema: SCHEMA = None,
    epsilon: EPSILON = None,
    delta: DELTA = None,
    rho: RHO = None,
    select: SELECT = None,
    select_share: SELECT_SHARE = None,
    rows: ROWS = None,
    unit: UNIT = Unit.REPLACE,
    person: PERSON = None,
    rows_per_person: ROWS_PER_PERSON = None,
    generator_epsilon: GENERATOR_EPSILON = None,
    generator_delta: GENERATOR_DELTA = None,
    generator_rho: GENERATOR_RHO = None,
    generator_unit: GENERATOR_UNIT = None,
    ledger: LEDGER = None,
    dataset: DATASET = None,
    method: METHOD = Method.DEFAULT,
    base_weights: BASE_WEIGHTS = None,
    min_ess: MIN_ESS = None,
    max_weight: MAX_WEIGHT = None,
    min_weight: MIN_WEIGHT = None,
    denoise: DENOISE = None,
    support: SUPPORT = None,
    size: SIZE = None,
    sampling: SAMPLING = None,
    seed: SEED = None,
    shuffle: SHUFFLE = False,
    out: POST = None,
    weights: WEIGHTS = None,
    candidates: CANDIDATES = None,
    tilt: TILT = None,
    report: REPORT = None,
    plan_file: PLAN_OUT = None,
    answers_file: ANSWERS_OUT = None,
    privacy: PRIVACY_OUT = None,
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Plan, measure, fit and sample in one go."""
    from retilt.pipeline import align
    from retilt.tilt import check_sample

    terminal = _terminal(context, output, quiet)
    measures = Measures(
        correlate=correlate,
        moments=moments,
        mean=mean,
        regress=regress,
        marginal=marginal,
        marginals=marginals,
        share=share,
        query=query,
        cdf=cdf,
        quantiles=quantiles,
        correlate_with=correlate_with,
        top=top,
        keep=keep,
        clip=clip,
        workload=workload,
    )
    measures.check_any()
    files = _check_outputs(
        {
            "table": out,
            "weights": weights,
            "candidates": candidates,
            "tilt": tilt,
            "report": report,
            "plan": plan_file,
            "answers": answers_file,
            "privacy": privacy,
        },
        [private, synthetic, schema, ledger, *(workload or ())],
        force=force,
    )
    options = "-o (the table), --weights, --tilt, --report, --plan, --answers, --privacy"
    _need_output(files, options, size, sampling, shuffle)
    _check_candidates(files, support)
    check_sample(size, value_of(sampling), seed)
    keeper = _Keeper(plan_file, answers_file, force, privacy, ledger)
    with spoken_warnings(), keeper, terminal.progress("running") as step:
        made = align(
            private,
            synthetic,
            lambda table: measures.build(table, schema),
            epsilon=epsilon,
            delta=delta,
            rho=rho,
            rows=rows,
            unit=unit_of(unit, person, rows_per_person),
            generator=generator_of(
                generator_epsilon, generator_delta, generator_rho, generator_unit
            ),
            schema=schema,
            ledger=ledger,
            dataset=dataset,
            basis=value_of(basis),
            select=select,
            select_share=select_share,
            method=method.value,
            base_weights=base_weights,
            min_ess=min_ess,
            max_weight=max_weight,
            min_weight=min_weight,
            denoise=value_of(denoise),
            support=value_of(support),
            seed=seed,
            on_plan=keeper.keep_plan,
            on_answers=keeper.keep_answers,
            on_step=step,
        )
        keeper.short = made.exit_code != 0  # what is advised then is to fit them again
        draw = {"rows": size, "method": value_of(sampling), "seed": seed, "shuffle": shuffle}
        added = _write_fit(made, files, draw, force=force)
    if keeper.kept is not None:
        files = {**files, "answers": keeper.kept}
    show_fit(terminal, made, added)
    show_files(terminal, files)
    terminal.result(fit_object(made, files, added))
    return made.exit_code


@app.command()
def evaluate(
    context: typer.Context,
    private: PRIVATE,
    synthetic: SYNTHETIC,
    post: Annotated[str, typer.Argument(metavar="POST", help="The new table.")],
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...", help="The columns whose correlations are shown apart; default all."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="What models trained on each table predict in --test, and whose rates in groups "
            "are compared.",
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Real rows that SYNTHETIC was not made from (needs retilt\\[evaluation]).",
        ),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE", help="The target's value that counts as 1; default the rarer of two."
        ),
    ] = None,
    detection: Annotated[
        bool,
        typer.Option(
            "--detection",
            help="Train classifiers that tell the tables from PRIVATE (needs "
            "retilt\\[evaluation]).",
        ),
    ] = False,
    schema: SCHEMA = None,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET_FIGURES = False,
) -> int:
    """Compare with PRIVATE itself. NOT private: its figures must never be released."""
    from retilt.evaluation import evaluate as compare

    terminal = _terminal(context, output, quiet)
    with terminal.progress("evaluating"):
        result = compare(
            private,
            synthetic,
            post,
            columns=None if columns is None else names_of(columns, "--columns"),
            target=target,
            test=test,
            positive=positive,
            detection=detection,
            schema=schema,
        )
    shown = Terminal(as_json=terminal.as_json)  # as --quiet's help says
    show_evaluation(shown, result)
    show_figures(shown, result)
    terminal.result(result.to_dict())
    return 0


@app.command(name="schema")
def write_schema_file(
    context: typer.Context,
    synthetic: SYNTHETIC,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="schema.toml", help="Where to write it; default: print it."
        ),
    ] = None,
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Write the schema that SYNTHETIC shows, to be corrected by hand."""
    from retilt.engines.local import open_table
    from retilt.schema.formats import schema_to_dict, schema_to_toml, write_schema
    from retilt.schema.infer import infer_all

    terminal = _terminal(context, output, quiet)
    files = _check_outputs({"schema": out}, [synthetic], force=force)
    with terminal.progress("reading"):
        found, undecided = infer_all(open_table(synthetic))
    if out is not None:
        write_schema(found, out, undecided=undecided, force=force)
        for name, why in undecided.items():
            terminal.say(f"Undecided: {name}: {why}")
    elif not terminal.as_json:
        print(schema_to_toml(found, undecided), end="")
    show_files(terminal, files)
    terminal.result({"schema": schema_to_dict(found), "undecided": undecided, "files": files})
    return 0


@app.command()
def audit(
    context: typer.Context,
    plan_file: Annotated[Path, typer.Argument(metavar="plan.json", help="The plan to check.")],
    draws: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How often the noise is drawn; default 100,000, fewer where many sums differ.",
        ),
    ] = None,
    pairs: Annotated[
        int, typer.Option(metavar="N", help="About how many pairs of rows are compared.")
    ] = 100_000,
    seed: Annotated[
        int | None,
        typer.Option(metavar="S", help="Of the invented rows; the noise has none."),
    ] = None,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Try to show that a plan gives away more than it claims. Reads no table."""
    from retilt.auditing import audit as try_plan

    terminal = _terminal(context, output, quiet)
    with terminal.progress("auditing") as step:
        found = try_plan(plan_file, draws=draws, pairs=pairs, seed=seed, on_step=step)
    for sentence in found.findings:
        terminal.say(sentence)
    terminal.result(found.to_dict())
    return found.exit_code


@app.command()
def demo(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to write the demo's files.")
    ] = Path("retilt-demo"),
    force: FORCE = False,
    output: OUTPUT = Output.TEXT,
    quiet: QUIET = False,
) -> int:
    """Align five correlations of a synthetic UCI Adult at ε = 1, on data in the package."""
    from retilt.demo import run_demo

    return run_demo(_terminal(context, output, quiet), folder, force=force)


# -- entry -----------------------------------------------------------------------------------------


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors are to be JSON too, asked before the arguments are known to be valid."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(a == "--output=json" or (a == "--output" and b == "json") for a, b in pairs)


def _report_internal(terminal: Terminal, error: Exception, command: str) -> None:
    """Report an error that nobody foresaw, without its text where that could hold private data."""
    kind = type(error).__name__
    withheld = "Its text is withheld, for it could hold private values. "
    if command in NEVER_PRIVATE:
        import traceback

        withheld = ""
        traceback.print_exception(error)
    terminal.error(
        kind,
        f"internal error ({kind}) in `retilt {command}`. {withheld}Please report it with the "
        f"command's options, the version ({__version__}) and no data.",
        INTERNAL_ERROR,
    )


def _end_as_interrupted() -> None:
    """Let SIGTERM end a command as Ctrl-C does, so that answers that were paid for are kept."""
    import signal
    import threading

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if default and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    arguments
        Without the program's name; default those of the process.

    Returns
    -------
    int
        0 done; 1 internal error; 2 bad usage or input; 3 refused for privacy or budget; 4 the fit
        did not reach its tolerance, or measures can't be met (outputs are written); 130
        interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    spell_out_unknown_letters()
    terminal = Terminal(as_json=_wants_json(given))
    # The global options take no values, so the first plain word is the command.
    command = next((a for a in given if not a.startswith("-")), "")
    try:
        _end_as_interrupted()
        code = app(args=given, prog_name="retilt", standalone_mode=False)
    except RetiltError as error:
        terminal.error(type(error).__name__, str(error), error.exit_code)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except Exception as error:
        # typer's usage errors; their common class is not public
        if hasattr(error, "format_message"):
            help_of = " ".join(["retilt", *([command] if command in COMMANDS else []), "--help"])
            terminal.error("UsageError", f"{error.format_message()} See `{help_of}`.", 2)
            return 2
        _report_internal(terminal, error, command)
        return INTERNAL_ERROR
    if code == INTERRUPTED:  # typer makes this code of an interrupt by itself
        terminal.error("Interrupted", "interrupted; no output was left half written.", INTERRUPTED)
    return code if isinstance(code, int) else 0
