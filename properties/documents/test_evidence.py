"""The committed records: they are short, and say what the whole ones say."""

import json

from properties.documents.evidence import LISTS, shortened
from properties.documents.made import RUN
from properties.support.places import ROOT

MOST_BYTES = 2**20
"""Of all records."""

RECORD = {
    "verdict": "red",
    "clean": [{"finding": None, "events": {"replay": 1}, "status": "clean"}],
    "bugs": [
        {"finding": {"long": 1}, "events": {"replay": 1}, "mechanism": "m", "status": "caught"}
    ],
    "figures": {
        "rows": [{"properties": ["kv_parity"]}, {"properties": [], "mutant": "unseen"}],
        "clean": {"steps": 3, "trials": [{}]},
    },
    "pairs": [{}],
}


def test_all_records_together_are_small() -> None:
    files = [file for file in (ROOT / "reports/evidence").rglob("*") if file.is_file()]
    assert files
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES


def test_a_shortened_record_keeps_the_verdict_the_states_and_what_was_not_detected() -> None:
    assert shortened(RECORD) == {
        "verdict": "red",
        "clean": RECORD["clean"],
        "bugs": [{"finding": None, "events": {}, "mechanism": "", "status": "caught"}],
        "figures": {"rows": [{"properties": [], "mutant": "unseen"}], "clean": {"steps": 3}},
        "pairs": [{}],
    }
    head = shortened(RECORD, head=True)
    assert head["verdict"] == "red"
    assert not set(head) & set(LISTS)


def test_the_record_that_documents_show_is_shortened() -> None:
    record = json.loads(RUN.read_text(encoding="utf-8"))
    assert shortened(record) == record
