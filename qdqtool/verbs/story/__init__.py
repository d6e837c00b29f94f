"""The verbs about what quantizing did to a model, one a file: what each tensor costs, and why."""
