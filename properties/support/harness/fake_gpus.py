"""Stand-ins for NVIDIA's programs, for a PATH: a driver that names GPUs, and an MPS daemon.

The daemon listens as long as the file `control` stands in its pipe folder; `daemons` and
`commands` beside the programs say which were started, with which GPUs visible, and asked what.
"""

import time
from dataclasses import dataclass
from pathlib import Path

DRIVER = """#!/bin/sh
for place in {places}; do echo "GPU $place: One (UUID: GPU-$place)"; done
"""

CONTROL = """#!/bin/sh
pipe=${CUDA_MPS_PIPE_DIRECTORY:-/nowhere}
here=$(dirname "$0")
if [ "$1" = -f ]; then
  if [ -e "$here/refuses" ]; then echo "the daemon's reason"; exit 1; fi
  echo "$$ $pipe ${CUDA_VISIBLE_DEVICES-all}" >> "$here/daemons"
  echo > "$pipe/control"
  while [ -e "$pipe/control" ]; do sleep 0.05; done
  exit 0
fi
if [ ! -e "$pipe/control" ]; then echo "Cannot find MPS control daemon process"; exit 1; fi
read -r words
echo "$words" >> "$here/commands"
case $words in quit*) rm "$pipe/control";; esac
"""


@dataclass(frozen=True)
class FakeGpus:
    """A folder of a PATH in which NVIDIA's programs are ours."""

    folder: Path

    @classmethod
    def made(cls, folder: Path, gpus: int) -> "FakeGpus":
        """Write the programs into a new folder."""
        folder.mkdir()
        places = " ".join(map(str, range(gpus)))
        for name, text in (
            ("nvidia-smi", DRIVER.format(places=places)),
            ("nvidia-cuda-mps-control", CONTROL),
        ):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        return cls(folder)

    @property
    def daemons(self) -> list[tuple[int, Path, str]]:
        """The process, the pipe folder and the visible GPUs of every daemon that was started."""
        path = self.folder / "daemons"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(process), Path(pipe), gpus) for process, pipe, gpus in rows]

    @property
    def commands(self) -> list[str]:
        """What daemons were asked."""
        return (self.folder / "commands").read_text().splitlines()

    def gone(self) -> bool:
        """Whether every daemon has ended, or does within some seconds."""
        assert self.daemons
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if not any(Path(f"/proc/{process}").exists() for process, _, _ in self.daemons):
                return True
            time.sleep(0.05)
        return False
