"""Faults planted in how work is spread over what a machine has."""

from properties.planted.fault import Fault

MPS = ("properties/harness/machine/test_mps.py",)

OF_MACHINE: tuple[Fault, ...] = (
    Fault(
        name="daemon-outlives-its-command",
        file="harness/machine/keeper.py",
        old="            sys.stdin.read()\n",
        new="            return\n",
        tests=(*MPS, "-k", "within_there_is_a_daemon"),
        why="The MPS daemon is stopped before the work under it begins.",
    ),
    Fault(
        name="daemon-sees-some-gpus",
        file="harness/machine/keeper.py",
        old='    variables.pop("CUDA_VISIBLE_DEVICES", None)\n',
        new="",
        tests=(*MPS, "-k", "within_there_is_a_daemon"),
        why="The daemon numbers the GPUs anew, so that a worker's name of one means another.",
    ),
    Fault(
        name="no-daemon-answers-as-one",
        file="harness/machine/keeper.py",
        old="            check=True,\n",
        new="            check=False,\n",
        tests=(*MPS, "-k", "probe_is_carried_out"),
        why="Whether NVIDIA's program failed is not looked at, only what it says.",
    ),
    Fault(
        name="process-is-lost-to-a-signal",
        file="harness/machine/forks.py",
        old="        with undisturbed(*STOPPING):\n",
        new="        with suppress(OSError):\n",
        tests=("properties/harness/machine/test_forks.py", "-k", "loses_nothing"),
        why="A command that is stopped as it hears of a process waits for that one for ever.",
    ),
    Fault(
        name="neighbours-fault-is-told",
        file="harness/campaigns/executor.py",
        old="if workers.mps and (ended.result is None or ended.result.spoiled):",
        new="if workers.mps and ended.result is None:",
        tests=("properties/harness/campaigns/test_executor.py", "-k", "under_mps"),
        why="Under MPS a task that lost its device by another one's fault is told as a finding.",
    ),
    Fault(
        name="second-run-is-not-noted",
        file="harness/campaigns/executor.py",
        old="            workers.again.append((campaign.label(ended.task), why_spoiled(ended)))\n",
        new="",
        tests=("properties/harness/campaigns/test_executor.py", "-k", "run_again"),
        why="A run that repeats many of its tasks only looks slow.",
    ),
    Fault(
        name="known-schedules-left-out",
        file="harness/campaigns/hunt.py",
        old="        for schedule in given:\n            search(schedule)\n",
        new="",
        tests=("properties/harness/campaigns/test_tasks.py",),
        why="What failed before is not tried on the clean build.",
    ),
)
