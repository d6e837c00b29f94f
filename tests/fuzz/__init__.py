"""The attack: damaged models and texts against every command (`attack`), commands ended in the middle (`kills`), and the watch over
both; what it found is kept in ``found/``. ``python -m tests.fuzz --inputs 1000000 --resume FILE`` goes on for hours."""
