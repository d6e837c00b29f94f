"""The verbs that change a model by a pipeline, one a file; each is a command of its name."""
