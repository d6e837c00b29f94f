"""The verbs ``encodings …``, which exchange encodings with other tools, one a file."""
