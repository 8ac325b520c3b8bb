"""summary.py TABLE REPORT: totals by region. Runs inside the sandbox."""

import collections
import csv
import json
import sys

totals = collections.defaultdict(float)
with open(sys.argv[1], newline="") as table:
    for row in csv.DictReader(table):
        totals[row["region"]] += float(row["amount"])
with open(sys.argv[2], "w") as report:
    json.dump(dict(sorted(totals.items())), report)
