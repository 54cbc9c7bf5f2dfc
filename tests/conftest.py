from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pytest
from hypothesis import settings

# Two busy cores make a deadline a coin toss.
settings.register_profile("retilt", deadline=None, print_blob=True)
settings.load_profile("retilt")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of the real tables, beside the repository."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("needs the folder ../shared with the real tables")
    return folder


def people(rows: int, seed: int, pull: float) -> pa.Table:
    """A table of five columns, whose first three correlate the more the larger ``pull`` is."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=rows) * pull
    age = np.clip(np.rint(45 + 10 * (rng.normal(size=rows) + common)), 17, 90).astype("int64")
    hours = np.clip(np.rint(40 + 8 * (rng.normal(size=rows) + common)), 0, 99).astype("int64")
    income = np.where(rng.normal(size=rows) + common > 0.7, ">50K", "<=50K")
    sex = np.where(rng.random(rows) < 0.45, "F", "M")
    city = rng.choice(["Bern", "Oslo", "Ürümqi, west"], size=rows)
    return pa.table(
        {"age": age, "hours, weekly": hours, "income": income, "sex": sex, "city": city}
    )


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``private.csv`` and ``synthetic.csv``, 4,000 rows each, and a schema."""
    folder = tmp_path_factory.mktemp("tables")
    pc.write_csv(people(4000, seed=1, pull=0.8), folder / "private.csv")
    pc.write_csv(people(4000, seed=2, pull=0.3), folder / "synthetic.csv")
    (folder / "schema.toml").write_text(
        '[columns.age]\nkind = "numeric"\nlower = 17\nupper = 90\n\n'
        '[columns."hours, weekly"]\nkind = "numeric"\nlower = 0\nupper = 99\n',
        encoding="utf-8",
    )
    return folder
