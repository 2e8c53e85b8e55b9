"""Where things stand in this tree."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "properties" / "corpus"
