"""`view --overlay`: a page beside Netron where graphs have the colours of a metric, and where clicks are recorded edits."""
