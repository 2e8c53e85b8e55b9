"""The table of all planted faults, in the order of the packages."""

from properties.planted.fault import Fault
from properties.planted.of_harness import OF_HARNESS
from properties.planted.of_machine import OF_MACHINE
from properties.planted.of_reference import OF_REFERENCE
from properties.planted.of_reports import OF_REPORTS
from properties.planted.of_subjects import OF_SUBJECTS
from properties.planted.of_suite import OF_SUITE

FAULTS: tuple[Fault, ...] = (
    *OF_REFERENCE,
    *OF_SUBJECTS,
    *OF_HARNESS,
    *OF_MACHINE,
    *OF_REPORTS,
    *OF_SUITE,
)
