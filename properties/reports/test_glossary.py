"""The words of this project are explained wherever a reader meets them first."""

import re

from paritybit.harness.cli.parser import parser
from paritybit.reports.glossary import GLOSSARY

OURS = r"\b(hunt(?:s|er|ed)?|trials?|eras?|line-?ups?|memo|legs?|presets?)\b"
"""Words that mean nothing to a stranger, or something else."""


def helps() -> dict[str, str]:
    """Return the help of every command by its name."""
    top = parser()
    (commands,) = (action for action in top._actions if action.choices)
    assert isinstance(commands.choices, dict)
    return {name: command.format_help() for name, command in commands.choices.items()}


def test_no_help_has_a_word_of_ours_without_saying_what_it_means() -> None:
    """The option --preset names a model, and its line says so, as does what `list` prints."""
    kinds = r"\{bugs,runners,presets,[a-z,-]+\}"
    for name, text in helps().items():
        plain = re.sub(r"--preset [A-Z]+|models \(presets\)|engines?'s? trials?|" + kinds, "", text)
        assert re.findall(OURS, plain, re.IGNORECASE) == [], name
    assert "models (presets)" in helps()["list"]
    assert all("Comma-separated models" in text for text in helps().values() if "--preset" in text)


def test_the_help_names_the_glossary_and_every_word_that_it_lists_is_there() -> None:
    text = parser().format_help()
    line = " ".join(text.split())
    listed = line[line.index("docs/glossary.md defines ") :].removeprefix(
        "docs/glossary.md defines "
    )
    listed = listed.partition(".")[0].replace(" and ", ", ")
    assert set(listed.split(", ")) <= {part for word in GLOSSARY for part in word.split(", ")}
