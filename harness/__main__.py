"""The command line: the one place where harness and reports meet.

Exit codes: 0 as hoped, 1 a finding, 2 a malformed command line or file or a name no
build has, 125 cannot run here or a crash of ours, 130 interrupted.
"""

import sys
from collections.abc import Sequence

from harness.campaigns.hunt import PlayingFailedError
from harness.checks.play import DeviceLostError
from harness.cli.display import print_errors
from harness.cli.exit_codes import CANNOT_RUN, FINDING, INTERRUPTED, MALFORMED
from harness.cli.parser import parser
from harness.lockstep.config import CannotRunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is reported in one sentence."""
    try:
        options = parser(str(__doc__)).parse_args(arguments)
        options.typed = sys.argv[1:] if arguments is None else arguments
        code: int = options.run(options)
    except CannotRunError as error:
        return refused(error, CANNOT_RUN)
    except (ValueError, OSError) as error:
        return refused(error, MALFORMED)
    except PlayingFailedError as error:
        print_errors([str(error)])
        return CANNOT_RUN
    except DeviceLostError as error:
        return refused(f"the device was lost: {error}", FINDING)
    except KeyboardInterrupt:
        return refused("interrupted", INTERRUPTED)
    return code


def refused(reason: object, code: int) -> int:
    """Print why a command ends early, and return its exit code."""
    print(f"paritybit: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
