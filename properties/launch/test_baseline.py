"""A baseline: its findings do not fail a run, and new ones do."""

import json
from pathlib import Path

from paritybit.launch.changes import FIXED, NEW
from paritybit.launch.schema import STAYS
from properties.launch.conftest import Script, Watch
from properties.support.harness.command_line import CANNOT_RUN, FINDING, OK
from properties.support.known import STRAY, listed
from properties.support.records import record

LEAK = "replace(STRAY, check='leak', key='leak', cause=None)"
TEXT = f"from dataclasses import replace\nengine([STRAY, {LEAK}][:int(sys.argv[1])])"


def kept(folder: Path, name: str) -> str:
    """Keep the last record as a baseline, and return its path."""
    data = (folder / "out" / "latest" / "watch.json").read_text()
    (folder / name).write_text(data)
    return str(folder / name)


def kinds(folder: Path) -> dict[str, str]:
    """Return the change of each cause in the last record."""
    return {one["cause"]: one["kind"] for one in record(folder)["changes"]}


def test_only_what_the_baseline_lacks_fails_a_run(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    words = script(TEXT)
    assert watch("--", *words, "1").returncode == FINDING
    baseline = kept(tmp_path, "baseline.json")
    done = watch("--baseline", baseline, "--", *words, "1")
    assert done.returncode == OK, done.stderr
    assert "known: in the baseline" in done.stderr
    done = watch("--baseline", baseline, "--", *words, "2")
    assert done.returncode == FINDING
    assert "1 finding with 1 cause in" in done.stderr.splitlines()[-1]
    assert kinds(tmp_path) == {"out_cache_loc_swa": STAYS, "not known (leak, swa)": NEW}
    sarif = json.loads((tmp_path / "out" / "latest" / "findings.sarif").read_text())
    states = {one["ruleId"]: one["baselineState"] for one in sarif["runs"][0]["results"]}
    assert states == {"leak": "new", "stray-write": "unchanged"}
    page = (tmp_path / "out" / "latest" / "index.html").read_text()
    assert "Against the baseline" in page


def test_a_known_finding_that_has_expired_fails_whatever_the_baseline_has(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    words = script(TEXT)
    watch("--", *words, "1")
    baseline = kept(tmp_path, "baseline.json")
    known = listed(tmp_path, {**STRAY, "expires": "2020-01-01"})
    done = watch("--baseline", baseline, "--known", known, "--", *words, "1")
    assert done.returncode == FINDING


def test_a_run_without_a_verdict_fails_unless_it_is_told_not_to(
    watch: Watch, script: Script
) -> None:
    assert watch("--", *script("")).returncode == CANNOT_RUN
    done = watch("--undecided", "warn", "--", *script(""))
    assert done.returncode == OK
    assert "--undecided warn" in done.stderr
    assert watch("--undecided", "warn", "--", *script(TEXT), "1").returncode == FINDING


def test_a_finding_that_could_not_occur_again_is_not_called_fixed(
    watch: Watch, script: Script, tmp_path: Path
) -> None:
    watch("--", *script(TEXT), "2")
    baseline = kept(tmp_path, "baseline.json")
    options = ("--baseline", baseline)
    watch(*options, "--", *script(TEXT), "0")
    changed = {"out_cache_loc_swa": FIXED, "not known (leak, swa)": FIXED}
    assert kinds(tmp_path) == changed
    watch(*options, "--checks", "leak", "--", *script(TEXT), "0")
    changed["out_cache_loc_swa"] = "not checked again"
    assert kinds(tmp_path) == changed
