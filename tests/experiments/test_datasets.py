"""The paper's data sets, from a folder and from UCI's package."""

from __future__ import annotations

import gzip
import hashlib
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from experiments.datasets import (
    ADULT,
    ALL,
    BANK,
    HOME_CREDIT,
    MUSHROOM,
    SHOPPER,
    UCI,
    DataSet,
    by_name,
)
from experiments.published import DataError, File, Source, digest, split

from experiments import home_credit

COUNTS = {"Adult": 11_687, "Bank": 5_289, "Mushroom": 3_916, "Shopper": 1_908}
"""Rows of the rarer class, as UCI describes the sets."""


# --- splits and files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "first", "sha256"),
    [
        (ADULT.rows, [26104, 21885, 18074, 29009, 22483], "3dd83a198ad344c1"),
        (BANK.rows, [23248, 14335, 34138, 28600, 5559], None),
        (MUSHROOM.rows, [4319, 485, 4079, 7427, 4549], "5a3dae8172be011d"),
        (SHOPPER.rows, [3451, 5979, 3667, 11491, 3228], "920dfc759800206"),
    ],
)
def test_the_split_is_the_one_that_the_synthetic_files_were_made_from(
    rows: int, first: list[int], sha256: str | None
) -> None:
    parts = split(pd.DataFrame({"row": np.arange(rows)}))
    train = parts.train["row"].to_numpy().astype("<i8")
    assert train[:5].tolist() == first
    assert sha256 is None or hashlib.sha256(train.tobytes()).hexdigest().startswith(sha256)
    both = np.concatenate([train, parts.test["row"]])
    assert sorted(both) == list(range(rows))
    assert len(train) == int(0.8 * rows)


def test_a_file_is_read_plain_or_gzipped_and_checked(tmp_path: Path) -> None:
    file = File("rows.csv", hashlib.sha256(b"a,b\n").hexdigest())
    with pytest.raises(DataError, match=r"holds no rows.csv or rows.csv.gz"):
        file.read(tmp_path)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"a,b\n"))
    assert file.read(tmp_path) == b"a,b\n"
    (tmp_path / "rows.csv").write_bytes(b"a,c\n")
    with pytest.raises(DataError, match=f"is not the published file.*expected {file.sha256}"):
        file.read(tmp_path)


def test_a_file_that_is_no_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.csv.gz").write_bytes(b"a,b\n")
    with pytest.raises(DataError, match=r"rows.csv.gz can't be read: BadGzipFile"):
        File("rows.csv", "").read(tmp_path)


def test_names_are_the_papers(shared: Path) -> None:
    tables = ("tables-1-and-4-uci.csv", "table-2-home-credit.csv")
    printed = {n for t in tables for n in pd.read_csv(shared / "paper" / t)["dataset"]}
    assert {data_set.name for data_set in ALL} == printed
    assert by_name("shopper") is SHOPPER
    with pytest.raises(DataError, match=r"no data set 'iris': expected Adult, Bank, "):
        by_name("iris")


@pytest.mark.parametrize("data_set", UCI, ids=lambda d: d.name)
def test_the_published_tables_are_read(data_set: DataSet, shared: Path) -> None:
    table = data_set.load(shared / "data")
    assert len(table) == data_set.rows
    assert list(table.columns) == list(data_set.schema().entries)
    assert (table[data_set.target] == data_set.positive).sum() == COUNTS[data_set.name]
    assert not table.isna().any(axis=None)
    codes = data_set.description().codes(table)  # refuses what is not listed
    assert len(codes) == data_set.rows


# --- UCI's package -------------------------------------------------------------------------------


def as_uci(data_set: DataSet, table: pd.DataFrame) -> pd.DataFrame:
    """What UCI's package makes of a table: see the notes in each line."""
    text = [
        n
        for n, e in data_set.schema().entries.items()
        if isinstance((e.categories or (0,))[0], str)
    ]
    found = table.copy()
    for name in text:  # words for missing values are missing, in some of the rows
        gone = (found[name] == data_set.missing) & (np.arange(len(found)) % 2 == 0)
        found[name] = found[name].astype(object).mask(gone, np.nan)
    for name in ("Weekend", "Revenue"):  # truth values are such
        if name in found:
            found[name] = found[name] == "TRUE"
    if data_set is ADULT:  # labels of the second file keep their full stop
        found["income"] = found["income"] + np.where(np.arange(len(found)) < 32_561, "", ".")
    theirs = {ours: name for name, ours in data_set.renamed.items()}
    order = [*(n for n in found.columns if n != data_set.target), data_set.target]
    return found[order].rename(columns=theirs)


@pytest.fixture
def uci(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """A stub of the package ``ucimlrepo``: tables, or errors to raise, by number."""
    known: dict[int, Any] = {}

    def fetch_ucirepo(name: str | None = None, id: int | None = None) -> SimpleNamespace:
        assert id is not None
        if isinstance(known[id], Exception):
            raise known[id]
        return SimpleNamespace(data=SimpleNamespace(original=known[id]))

    module = ModuleType("ucimlrepo")
    module.fetch_ucirepo = fetch_ucirepo  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ucimlrepo", module)
    return known


@pytest.mark.parametrize("data_set", UCI, ids=lambda d: d.name)
def test_ucis_package_gives_the_same_table(
    data_set: DataSet, uci: dict[int, Any], shared: Path, tmp_path: Path
) -> None:
    published = data_set.load(shared / "data")
    uci[data_set.uci] = as_uci(data_set, published)
    pd.testing.assert_frame_equal(data_set.load(tmp_path), published)


SMALL = pd.DataFrame({"age": [30, 41], "day": [3, 7], "job": ["unknown", "admin."]})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DataSet:
    """A data set of two rows, of which there is no file."""
    (tmp_path / "small.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 0\nupper = 90\n[columns.day]\nkind = "numeric"\n'
        'lower = 1\nupper = 31\n[columns.job]\nkind = "categorical"\n'
        'categories = ["admin.", "unknown"]\n'
    )
    monkeypatch.setattr("experiments.datasets.SCHEMAS", tmp_path)
    return replace(BANK, name="Small", folder="small", sha256=digest(SMALL))


def test_a_table_of_another_order_is_refused(
    small: DataSet, uci: dict[int, Any], tmp_path: Path
) -> None:
    uci[BANK.uci] = pd.DataFrame(
        {"job": [None, " admin."], "age": [30, 41], "day_of_week": [3, 7], "more": [0, 0]}
    )
    pd.testing.assert_frame_equal(small.load(tmp_path), SMALL)
    uci[BANK.uci] = uci[BANK.uci].iloc[::-1].reset_index(drop=True)
    with pytest.raises(DataError, match=r"Small: the table is not the published one.*order of its"):
        small.load(tmp_path)
    uci[BANK.uci] = uci[BANK.uci].drop(columns="age")
    with pytest.raises(DataError, match="UCI's table has no column 'age'"):
        small.load(tmp_path)


def test_what_uci_does_not_give_is_told(
    small: DataSet, uci: dict[int, Any], tmp_path: Path
) -> None:
    uci[BANK.uci] = ConnectionError("no route")
    with pytest.raises(DataError, match=r"could not be fetched from UCI: ConnectionError.*--data"):
        small.load(tmp_path)


def test_without_folder_and_package_both_are_named(
    small: DataSet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ucimlrepo", None)
    with pytest.raises(DataError, match=r"`pip install ucimlrepo`.*--data"):
        small.load(tmp_path)


# --- Home Credit ---------------------------------------------------------------------------------


def test_the_stand_in_says_so_and_tests_on_other_rows(shared: Path) -> None:
    parts = HOME_CREDIT.split(shared / "data")
    assert parts.stand_in
    assert (len(parts.train), len(parts.test)) == (246_008, 61_503)
    assert parts.train.shape[1] == 104 + 1
    assert not parts.train.isna().any(axis=None)
    assert 0.07 < (parts.train["TARGET"] == 1).mean() < 0.09
    train, test = (
        set(map(tuple, t.drop_duplicates().to_numpy())) for t in (parts.train, parts.test)
    )
    assert len(train) > 5_000
    assert not train & test
    again = HOME_CREDIT.split(shared / "data")
    pd.testing.assert_frame_equal(again.test, parts.test)


def test_the_public_files_come_from_the_sample(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "home-credit"
    table = home_credit.read_sample(folder).select_dtypes("number")
    table = table[["TARGET", *(n for n in table if n not in ("TARGET", "SK_ID_CURR"))]]
    for text, name in (
        (home_credit.schema_text(table), "home-credit.toml"),
        (home_credit.bins_text(table), "home-credit-bins.toml"),
    ):
        assert (home_credit.SCHEMAS / name).read_text() == text


def application(rows: int) -> pd.DataFrame:
    """A made-up table with the columns of the real one, missing numbers and text among them."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"SK_ID_CURR": range(rows), "NAME_CONTRACT_TYPE": ["Cash"] * rows}
    for name in HOME_CREDIT.schema().entries:
        columns[name] = rng.integers(0, 2, rows)
    return pd.DataFrame(columns).astype({"EXT_SOURCE_1": float})


def test_the_users_own_table_is_no_stand_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(home_credit, "ROWS", 50)
    (tmp_path / "home-credit").mkdir()
    table = application(50)
    table.loc[:, "EXT_SOURCE_1"] = np.nan
    table.to_csv(tmp_path / "home-credit" / "application_train.csv", index=False)
    parts = HOME_CREDIT.split(tmp_path)
    assert not parts.stand_in
    assert (len(parts.train), len(parts.test)) == (40, 10)
    median = home_credit.medians()["EXT_SOURCE_1"]
    assert 0 < median < 1
    assert (parts.train["EXT_SOURCE_1"] == median).all()
    assert parts.train["CNT_CHILDREN"].dtype == np.int64


def test_another_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no application_train.csv: the table is not openly"):
        HOME_CREDIT.split(tmp_path)
    (tmp_path / "home-credit").mkdir()
    application(5).to_csv(tmp_path / "home-credit" / "application_train.csv", index=False)
    with pytest.raises(DataError, match="has 5 rows, expected 307,511"):
        HOME_CREDIT.split(tmp_path)


def test_missing_columns_of_the_users_own_table_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(home_credit, "ROWS", 5)
    (tmp_path / "home-credit").mkdir()
    path = tmp_path / "home-credit" / "application_train.csv"
    application(5).drop(columns="DAYS_BIRTH").to_csv(path, index=False)
    with pytest.raises(DataError, match="application_train has no column 'DAYS_BIRTH'"):
        HOME_CREDIT.split(tmp_path)


def test_every_set_has_what_the_experiments_ask(shared: Path) -> None:
    def rarer(data_set: Source) -> float:
        train = data_set.split(shared / "data").train
        return float((train[data_set.target] == data_set.positive).mean())

    shares = {data_set.name: rarer(data_set) for data_set in ALL}
    assert all(0 < share < 0.5 for share in shares.values()), shares
