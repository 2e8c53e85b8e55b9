"""A record of the sanitizer as a JUnit file: a test case per row, and one for the verdict."""

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from paritybit.launch.schema import LegRecord, RecordedFinding, WatchRecord
from paritybit.launch.words import lines_of, source_of

NAME = "paritybit"

NOT_XML = dict.fromkeys((*range(9), 11, 12, *range(14, 32)), "�")
"""Control characters that XML does not allow."""


def junit_of(record: WatchRecord, prefix: str = "") -> str:
    """Return the JUnit file of a record. `prefix` is as in `sarif_of`."""
    cases = [*(case_of(leg, record, prefix) for leg in record.legs), *skipped(record)]
    cases.append(verdict_of(record))
    suite = ET.Element("testsuite", name=NAME, time=f"{record.seconds:.1f}")
    for count, tag in (("tests", None), ("failures", "failure"), ("errors", "error")):
        number = sum(tag is None or case.find(tag) is not None for case in cases)
        suite.set(count, str(number))
    suite.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return ET.tostring(root, "unicode", xml_declaration=True) + "\n"


def case_of(leg: LegRecord, record: WatchRecord, prefix: str) -> ET.Element:
    """Return the test case of a row. It fails if the row has an unknown finding."""
    case = element("testcase", classname=classname(record), name=leg.name)
    case.set("time", f"{leg.seconds:.1f}")
    findings = [one for one in record.findings if one.leg == leg.name]
    failing = [one for one in findings if one.known is None]
    if failing:
        source = next(filter(None, map(source_of, failing)), None)
        if source is not None:
            case.set("file", f"{prefix}{source[0]}")
            case.set("line", str(source[1]))
        message = f"{failing[0].check}: {failing[0].text}"
        failure = element("failure", message=message, type=failing[0].check)
        failure.text = "\n\n".join(map(text_of, failing)).translate(NOT_XML)
        case.append(failure)
    known = [text_of(one) for one in findings if one.known is not None]
    if known:
        out = ET.SubElement(case, "system-out")
        out.text = "\n\n".join(known).translate(NOT_XML)
    return case


def text_of(finding: RecordedFinding) -> str:
    """Return a finding as text, as printed on the terminal."""
    lines = [f"  {name}: {text}" for name, text in lines_of(finding)]
    return "\n".join([f"{finding.check}: {finding.text}", *lines])


def skipped(record: WatchRecord) -> Iterator[ET.Element]:
    """Yield the test cases of rows that were not served."""
    tried = {leg.name for leg in record.legs}
    for one in record.not_tried:
        for name in one.rows:
            if name not in tried:
                case = element("testcase", classname=classname(record), name=name)
                case.append(element("skipped", message=one.why))
                yield case


def verdict_of(record: WatchRecord) -> ET.Element:
    """Return the test case of the verdict. It is an error if there is no verdict."""
    case = element("testcase", classname=classname(record), name="verdict")
    if record.verdict == "undecided":
        error = element("error", message=record.message, type="undecided")
        error.text = "\n".join(record.undecided).translate(NOT_XML)
        case.append(error)
    return case


def classname(record: WatchRecord) -> str:
    """Return the class name of a record's test cases."""
    return f"{NAME}.{record.engine or 'command'}"


def element(tag: str, **attributes: str) -> ET.Element:
    """Return an element whose attributes have no invalid characters."""
    return ET.Element(tag, {name: text.translate(NOT_XML) for name, text in attributes.items()})
