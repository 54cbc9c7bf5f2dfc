"""A generator that speaks the worker's protocol: it hands back the rows that it was given.

The mechanism says what goes wrong; ``settings`` come back, to be looked at.
"""

from __future__ import annotations

import json
import os
import sys

import pandas as pd

table = pd.DataFrame()
for line in sys.stdin:
    request = json.loads(line)
    done = {"wall_seconds": 1.5, "cpu_seconds": 1.25, "peak_megabytes": 7}
    if request["do"] == "fit":
        print("a library's own words", file=sys.stderr)
        if request["mechanism"] == "DPCTGAN":
            print(json.dumps({"failed": "RuntimeError in dpctgan.py, line 7"}), flush=True)
            continue
        if request["mechanism"] == "AIM":
            os._exit(3)
        table = pd.read_parquet(request["table"])
        done |= {"delta": 1e-9, "seen": request["levels"], "versions": {"stub": "1"}}
        done |= {"isolated": sys.flags.isolated, "threads": os.environ["OMP_NUM_THREADS"]}
    else:
        rows = [row % len(table) for row in range(request["rows"])]
        table.iloc[rows].reset_index(drop=True).to_parquet(request["table"])
    print(json.dumps({"done": done}), flush=True)
