"""The verbs ``qdq …``, which list and edit pairs, one a file; each is a command of its name."""
