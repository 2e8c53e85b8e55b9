"""What both worlds are asked to do, as data: schedules, where they come from, how they shrink."""
