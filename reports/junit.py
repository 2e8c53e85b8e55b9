"""A record of the sanitizer as JUnit: a test case per configuration, and one for the verdict."""

from xml.etree import ElementTree as ET

from paritybit.launch.schema import WatchRecord
from paritybit.launch.words import named, source_of, text_of

NAME = "paritybit"

NOT_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "�")
"""Control characters that XML does not allow."""


def junit_of(record: WatchRecord, prefix: str = "") -> str:
    """Return the JUnit file of a record. Unknown findings fail. `prefix` is as in `sarif_of`."""
    suite = ET.Element("testsuite", name=NAME, time=f"{record.seconds:.1f}")
    for config in record.configs:
        case = case_in(suite, record, config.name)
        case.set("time", f"{config.seconds:.1f}")
        findings = [one for one in record.findings if one.config == config.name]
        failing = [one for one in findings if one.known is None]
        if source := next(filter(None, map(source_of, failing)), None):
            case.set("file", f"{prefix}{source[0]}")
            case.set("line", str(source[1]))
        if failing:
            message = named(failing[0])
            failure = ET.SubElement(case, "failure", message=message, type=failing[0].check)
            failure.text = "\n\n".join(map(text_of, failing))
        if len(failing) < len(findings):
            known = (one for one in findings if one.known is not None)
            ET.SubElement(case, "system-out").text = "\n\n".join(map(text_of, known))
    tried = {config.name for config in record.configs}
    for one in record.not_tried:
        for name in sorted({*one.configs} - tried):
            why = one.what if len(one.configs) > 1 else one.why
            ET.SubElement(case_in(suite, record, name), "skipped", message=why)
    verdict = case_in(suite, record, "verdict")
    if record.verdict == "undecided":
        error = ET.SubElement(verdict, "error", message=record.message, type="undecided")
        error.text = "\n".join(record.undecided)
    suite.set("tests", str(len(suite)))
    for count, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(len(suite.findall(f"testcase/{tag}"))))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, "unicode", xml_declaration=True).translate(NOT_XML) + "\n"


def case_in(suite: ET.Element, record: WatchRecord, name: str) -> ET.Element:
    """Add a test case to a suite."""
    return ET.SubElement(
        suite, "testcase", classname=f"{NAME}.{record.engine or 'command'}", name=name
    )
