"""Kernels that answer questions of checks on a GPU: they answer as ops do."""

from properties.support.harness.questions import check_questions
from properties.support.interpreting import run_interpreted


def test_each_kernel_answers_as_ops_do_of_a_clean_step_and_of_what_differs(device: str) -> None:
    """Compiled where CUDA is, else interpreted."""
    if device == "cuda":
        assert check_questions(device)
        return
    process = run_interpreted("properties.support.harness.questions")
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 0
