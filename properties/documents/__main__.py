"""`python -m properties.documents`: make the blocks of the documents again."""

import os

from paritybit.harness.records.files import write_whole

from properties.documents.made import documents, remade
from properties.support.places import ROOT

os.chdir(ROOT)  # Commands name the cases of the repository.
for path in documents():
    write_whole(path, remade(path.read_text(encoding="utf-8")))
