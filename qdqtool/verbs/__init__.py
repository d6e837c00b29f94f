"""The verbs, one a file: `qdqtool.verbs.split` has the class `Split`, whose fields are its options, and the function `split`."""
