"""What a run costs on a chip: forms fitted on measured rows, estimates with intervals, profiles from own rows, plans."""
