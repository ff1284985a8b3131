"""Count the words of a file; write the count of each to words.csv."""

import csv
import re
import sys
from collections import Counter
from pathlib import Path

words = Counter(re.findall(r"\w+", Path(sys.argv[1]).read_text().lower()))
with Path("words.csv").open("w", newline="") as file:
    csv.writer(file).writerows([("word", "count"), *words.most_common()])
print(f"{words.total()} words, {len(words)} different")  # noqa: T201
