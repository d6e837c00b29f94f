"""Traps: what real backends do silently wrong, or silently slowly, with a model that is sound. `check` looks for them.

A rule is a frozen dataclass that yields `Trap`s from a `Seen` model, pairs looked through. Rules of `ALWAYS` hold for every
integer backend; the others only where a target lists them. *warning*: some backend computes something else than the model says;
*note*: the same numbers, slower or less exact than they could be."""
