"""Faults planted in copies of engines.

A fault is an edit of an engine's source, listed in one of the tables `*.toml` of this folder:

| field | meaning |
|---|---|
| `engine` | the release that is edited, such as `sglang==0.5.23` |
| `beside` | the name of a package that its folder also has, as the end of the folder's name |
| `file`, `old`, `new` | `old`, which `file` has exactly once, becomes `new` |
| `edit` | a list of such edits, in place of one |
| `settings` | what `paritybit watch --settings` serves; empty for its default plan |
| `ranks` | the options of `paritybit watch` with its numbers of ranks |
| `environment` | variables of the engine's processes |
| `why` | what the fault breaks, or what a harmless change is |
| `found` | the check of `paritybit watch` that finds it |
| `missed` | why `paritybit watch` does not find it |
| `harmless` | true if `paritybit watch` must end as it does without the change |
| `explore` | the options with which `paritybit explore` finds it |
| `thread` | the public thread whose fix it undoes, or that resembles it |

A table may set a field for all of its faults. Those of `*unseen*.toml` were drawn before any of
them was run. Those of `unseen.toml` also have a `class`, the edited `function`, their `harm`, what
missed ones `need` to show, what the report `named`, and the `commit` of the run.

`run` plants faults and records what finds them; `reports/evidence/planted.json` is that record.
"""
