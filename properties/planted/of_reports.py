"""Faults planted in the page, the summary and the comparison of runs."""

from properties.planted.fault import Fault

OF_REPORTS: tuple[Fault, ...] = (
    Fault(
        name="vacuous-trial-needs-no-attention",
        file="reports/review.py",
        old='[] if trial.status in {"green", "red"} else',
        new='[] if trial.status in {"green", "red", "vacuous"} else',
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "attention",
        ),
        why="A clean trial that proved nothing is not named among what needs attention.",
    ),
    Fault(
        name="no-padding-needs-no-attention",
        file="reports/review.py",
        old="if not trial.padded_replays:",
        new="if not trial.replays:",
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "attention",
        ),
        why=(
            "A clean trial that replayed but padded nothing is not named among what"
            " needs attention."
        ),
    ),
    Fault(
        name="one-hunt-speaks-for-all",
        file="reports/verdicts.py",
        old="if all(name in row.seen for row in must)",
        new="if any(name in row.seen for row in must)",
        tests=("properties/reports/test_matrices.py",),
        why="A bug that one of its hunts missed is marked as caught in the matrix.",
    ),
    Fault(
        name="unexpected-effect-is-sound",
        file="reports/verdicts.py",
        old='"affected after all": (False,',
        new='"affected after all": (True,',
        tests=("properties/reports/test_matrices.py",),
        why="A bug that shows where it should not is shown as expected.",
    ),
    Fault(
        name="red-clean-build-is-sound",
        file="reports/verdicts.py",
        old='"fails without the bug too": (False,',
        new='"fails without the bug too": (True,',
        tests=("properties/reports/test_matrices.py",),
        why="A hunt whose finding the clean build shows as well is shown as expected.",
    ),
    Fault(
        name="lead-is-the-first-violation",
        file="reports/cards.py",
        old=(
            "lead = next((other for other in seen if other.property == expected),"
            " [*seen, nothing][0])"
        ),
        new="lead = [*seen, nothing][0]",
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "lead",
        ),
        why="A card leads with the first violation and not with the one expected.",
    ),
    Fault(
        name="untried-hunt-is-mended",
        file="reports/compared/runs.py",
        old="return GONE if was_wrong else None",
        new="return FIXED if was_wrong else None",
        tests=("properties/reports/test_comparison.py",),
        why="A finding whose hunt the later run did not try is said to be mended.",
    ),
    Fault(
        name="worse-finding-alarms-nobody",
        file="reports/compared/kinds.py",
        old="ALARMING = frozenset({NEW, WORSE})",
        new="ALARMING = frozenset({NEW})",
        tests=("properties/reports/test_comparison.py",),
        why="A finding that has become worse raises no alarm.",
    ),
    Fault(
        name="summary-lets-tags-through",
        file="reports/summary.py",
        old="()<>#|!&~@])",
        new="()#|!&~@])",
        tests=("properties/reports/test_summary.py",),
        why="A text of the record may be a tag in the summary.",
    ),
    Fault(
        name="summary-lets-a-bar-through",
        file="reports/summary.py",
        old="<>#|!&~@])",
        new="<>#!&~@])",
        tests=("properties/reports/test_summary.py",),
        why="A vertical bar in a text of the record ends a cell of the summary's table.",
    ),
    Fault(
        name="time-line-keeps-its-beginning",
        file="reports/drawings/timeline.py",
        old="shown = entries[-max(FEWEST_COLUMNS, room // (rows + parked_rows)) :]",
        new="shown = entries[: max(FEWEST_COLUMNS, room // (rows + parked_rows))]",
        tests=("properties/reports/test_timeline.py",),
        why="A long time line keeps its beginning and leaves out where it fails.",
    ),
    Fault(
        name="lacking-pairs-were-not-asked-for",
        file="reports/skipped.py",
        old="if pair.can_be_switched_on and (pair.bug, pair.runner) not in hunted",
        new="if (pair.bug, pair.runner) not in hunted",
        tests=("properties/reports/test_skipped.py",),
        why="What a runner cannot have is listed as not asked for.",
    ),
    Fault(
        name="page-escapes-nothing",
        file="reports/page.py",
        old="autoescape=True,",
        new="autoescape=False,",
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "hostile or tag_is_closed",
        ),
        why="Texts of the record become markup of the page.",
    ),
    Fault(
        name="bfloat16-read-as-the-low-half",
        file="reports/drawings/bit_patterns.py",
        old="bits = int(text, 16) << (32 - width)",
        new="bits = int(text, 16)",
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "float",
        ),
        why="The bits of a bfloat16 are read as the low half of a float.",
    ),
    Fault(
        name="one-live-head-of-all-sections",
        file="reports/drawings/static_inputs.py",
        old='"live" if place % section < row.live',
        new='"live" if place < row.live',
        tests=("properties/reports/test_explanation.py",),
        why="Of an input in several sections the first alone has a live head.",
    ),
    Fault(
        name="last-line-of-a-map-is-cut",
        file="reports/drawings/slot_map.py",
        old="lines = -(-len(owners) // COLUMNS)",
        new="lines = len(owners) // COLUMNS",
        tests=("properties/reports/test_explanation.py",),
        why="The slots of a map's last line lie outside its frame.",
    ),
    Fault(
        name="link-takes-the-comma",
        file="reports/texts.py",
        old='"\',;]+")',
        new='"\']+")',
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "links",
        ),
        why="A link goes on beyond the comma that ends its address.",
    ),
    Fault(
        name="any-scheme-becomes-a-link",
        file="reports/texts.py",
        old='re.compile(r"https?://',
        new='re.compile(r"\\w+://',
        tests=(
            "properties/reports/test_page.py",
            "-k",
            "links",
        ),
        why="An address of any scheme becomes a link.",
    ),
)
