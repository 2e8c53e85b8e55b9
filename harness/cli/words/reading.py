"""An argument parser that accepts a command line completely or rejects it in one sentence."""

import argparse
import textwrap
from typing import Any, NoReturn

from paritybit.harness.cli.words.values import names
from paritybit.harness.errors import MalformedError, cut, known, meant


class Together(argparse.Action):
    """Joins the values of an option that is given several times."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Add the names, or numbers, that are not there yet."""
        given = (*getattr(namespace, self.dest), *values)
        setattr(namespace, self.dest, tuple(dict.fromkeys(given)))


class Once(argparse.Action):
    """Rejects an option that is given twice, because the second value would replace the first."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """Store the value, and that the option was given."""
        given = vars(namespace).setdefault("given", set[str]())
        if self.dest in given:
            parser.error(f"{option_string} accepts one value but was given more than once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """A formatter that does not wrap lines inside a path or an option."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Return the lines of an option's help."""
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one sentence."""

    runs_command = False
    """Whether the words after the first `--` are a command to run, left in `command`."""

    def error(self, message: str) -> NoReturn:
        """Raise MalformedError with the message."""
        raise MalformedError(f"{message} (see {self.prog} --help)")

    def add_argument(self, *flags: Any, **named: Any) -> Any:
        """Add an argument. If an option that takes a list is given again, the values are joined."""
        if named.get("type") is names:
            named["action"] = Together
        elif "action" not in named and flags[0].startswith("-"):
            named["action"] = Once
        return super().add_argument(*flags, **named)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Return the value of an argument. A lone `--` is the value where one is needed.

        Some releases of Python drop it after `--option=`, or as the second `--` of a command line,
        and return an empty list for the value.
        """
        if arg_strings == ["--"] and (action.option_strings or action.nargs is None):
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise MalformedError for an unknown command or an invalid value of an option."""
        what = "command" if action.dest == argparse.SUPPRESS else action.dest
        try:
            known(what, value, action.choices or (value,))
        except MalformedError as error:
            self.error(str(error))

    def parse_known_args(self, *words: Any, **named: Any) -> Any:
        """Return the options of a command line. Raises MalformedError for unknown arguments.

        Each command does so itself, so the message names the options and help of the command.
        """
        command = None
        if self.runs_command and "--" in words[0]:
            place = words[0].index("--")
            command, words = tuple(words[0][place + 1 :]), (words[0][:place], *words[1:])
        options, unknown = super().parse_known_args(*words, **named)
        if self.runs_command:
            options.command = command
        if unknown:
            likeliest = meant(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {cut(' '.join(unknown))}{likeliest}")
        return options, unknown
