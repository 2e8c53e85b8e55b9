"""The committed records: they are short, and say what the whole ones say."""

import json

from properties.documents.evidence import shortened
from properties.documents.made import RUN
from properties.support.places import ROOT

MOST_BYTES = 2**20
"""Of all records."""


def test_all_records_together_are_small() -> None:
    files = [file for file in (ROOT / "reports/evidence").rglob("*") if file.is_file()]
    assert files
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES


def test_the_record_that_documents_show_is_shortened() -> None:
    record = json.loads(RUN.read_text(encoding="utf-8"))
    assert shortened(record) == record


def test_one_figure_of_a_record_can_be_kept_alone() -> None:
    record = {"format": "paritybit-bench", "figures": {"profile": [1], "clean": {}, "rows": []}}
    assert shortened(record, only="profile") == {**record, "figures": {"profile": [1]}}
