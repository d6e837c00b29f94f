"""Sample data in every form of ``--data``."""
