"""Options of other tools, by their own names: one data file a tool, one reader, and how they are laid over a preset."""
