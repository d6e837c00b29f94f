"""The verbs ``qdq …``, which edit pairs, one a file."""
