"""What verbs are made of where two workflows meet: texts of language models as data, folders of graphs, searches."""
