"""The texts of `--help`, except those of options."""

DESCRIPTION = """\
Run every step of an inference engine twice, once eagerly and once by CUDA-graph replay,
and compare the results bit by bit.

exit codes:
    0  success: no unexpected result
    1  finding: a property is violated, or a bug was not detected as expected
    2  malformed command line or file, or an unknown name
  125  no verdict: cannot run here, or an internal error
  129  the terminal was closed
  130  interrupted (Ctrl-C)
  143  terminated (SIGTERM)

docs/glossary.md defines runner, bucket, schedule, property, trial, hunt, case and record.
"""

COMMANDS = {
    "regress": "Test the unchanged engine, and test it again with each known bug switched on",
    "watch": "Run a command with the KV sanitizer in each engine process, or drive a release",
    "shrink": "Find a smaller case of watch that shows the same finding",
    "releases": "Watch whole releases of an engine and show which have which finding",
    "export-test": "Write a test for the engine's own suite that fails where a case's finding is",
    "explore": "Explore every schedule of an engine's prefix cache up to a bound",
    "replay": "Replay case files",
    "list": "List bugs, runners, models (presets), shapes and properties",
    "report": "Regenerate the HTML page of a run from its record",
    "compare": "Compare the records of two runs",
    "summary": "Print a Markdown summary of a run, for example for a CI job",
    "bench": "Measure speed, next to the bounds that it must keep",
    "engine": "Download an engine release into its own folder",
}
"""What each command does, in the order in which `paritybit --help` lists them."""

DETAILS = {
    "explore": """\
exit codes:
    0  no violation up to the depth that is printed
    1  a violation, with the shortest schedule
  125  no verdict: unknown classes, a depth not reached in time, or no eviction
""",
    "regress": """\
The run writes a record and an HTML page.
""",
    "replay": """\
exit codes:
  0  one case: every property holds; several: each reproduces its recorded result
  1  one case: a property is violated; several: one does not reproduce its result
""",
    "watch": """\
exit codes:
    0  no finding, and enough was checked
    1  at least one finding
    2  malformed command line
  125  no verdict: the command failed, no engine was loaded, or no graph was
       replayed
  130  interrupted by Ctrl-C without a finding

SIGTERM stops the command, and the verdict is about what was checked until then.
""",
    "shrink": """\
The smaller case is written next to the case, as CASE-small.json.

exit codes:
    1  the finding appeared, and its smallest case was written
  125  the finding did not appear
""",
    "export-test": """\
The test needs the engine, and no paritybit. What it asserts depends on the law
that is broken; a law that only the sanitizer can check has no such test.

exit codes:
    0  the test was written, and fails on ENGINE if one is named
    2  the file is not a case of watch
  125  the case has no such test, or the test does not fail on ENGINE
""",
    "compare": """\
exit codes:
    0  the later run is no worse
    1  a finding is new or worse in the later run
  125  the later run has no verdict where the earlier run had one
""",
}
"""Additional paragraphs of a command's help."""

EXAMPLES = {
    "regress": "regress --bug swa_pad@decode",
    "watch": (
        "watch --engine sglang==0.5.12\nwatch -- python -m sglang.launch_server --model-path MODEL"
    ),
    "shrink": "shrink paritybit-out/latest/cases/finding-1.json --engine sglang==0.5.11",
    "releases": "releases\nreleases --releases 0.5.11,0.5.12 --out releases",
    "export-test": (
        "export-test paritybit-out/latest/cases/finding-1-small.json --engine sglang==0.5.11\n"
        "export-test paritybit-out/latest/cases/finding-1.json --with-paritybit"
    ),
    "explore": "explore --engine sglang==0.5.23 --page-size 2",
    "replay": "replay properties/corpus/swa_pad@decode.json\nreplay properties/corpus",
    "list": "list\nlist bugs\nlist --json",
    "report": "report paritybit-out/latest/run.json --page page.html",
    "compare": "compare before/run.json after/run.json",
    "summary": "summary paritybit-out/latest/run.json",
    "bench": "bench --device cpu --record bench.json",
    "engine": "engine 0.5.12",
}
"""Example command lines by command, one per line."""
