"""Options of other tools' quantizers, as options of ours."""
