"""A toy allocator whose faults can be switched on."""

from collections.abc import Hashable

from paritybit.explore.laws import Shadow, ownership

PAGES = (0, 1, 2)


class Toy:
    """Pages of two requests, from a free list. A request takes a page, or gives all back."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.reached = fault, set[str]()
        self.free = list(PAGES)
        self.held: list[list[int]] = [[], []]
        self.shadow = Shadow()

    def actions(self) -> list[str]:
        """Return what can be done."""
        takes = [f"take {number}" for number in (0, 1) if self.free]
        return takes + [f"give {number}" for number in (0, 1) if self.held[number]]

    def act(self, action: str) -> None:
        """Do it; a request that takes a second page reads its first."""
        name, number = action.split()
        mine = self.held[int(number)]
        self.reached.add(name)
        if name == "take":
            page = self.free[0] if self.fault == "kept free" else self.free.pop(0)
            mine.append(page)
            self.shadow.write(0, page, (int(number),) * len(mine))
            self.shadow.read(0, mine, (int(number),) * len(mine), f"request {number}")
            return
        given = mine[1:] if self.fault == "lost" else mine
        self.free += given * (2 if self.fault == "twice" and len(mine) == 2 else 1)
        mine.clear()

    def check(self) -> None:
        """Check who holds which pages."""
        holders = {
            page: [f"request {number}" for number in (0, 1) if page in self.held[number]]
            for page in PAGES
        }
        ownership(self.free, holders, PAGES)

    def key(self) -> Hashable:
        """Return the state, with pages named in the order in which they occur."""
        return tuple(len(held) for held in self.held), len(self.free)
