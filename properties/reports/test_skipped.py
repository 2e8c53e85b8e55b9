"""Tests of what the page lists as stubbed or skipped."""

from paritybit.reports.skipped import skipped

from properties.support.reports.records import green


def test_the_page_says_what_was_stubbed_or_skipped() -> None:
    facts = {fact.name: fact.value for fact in skipped(green())}
    assert "a graph is a tape" in facts["CUDA graphs"]
    assert "Triton kernels" in facts
    assert facts["cannot be switched on"].startswith("3 of 32 pairs")
    assert "swa_pad@target_verify" in facts["hunts not selected, or not reached"]
    assert "swa_pad@cpu_graph" not in facts["hunts not selected, or not reached"]
    assert facts["runners not tested"] == "target_verify, cpu_graph, piecewise"
    assert "compiler arithmetic" not in facts
