"""What is refused or doubted before a run.

`combinations.py` checks the config alone, when it is loaded. `against_data.py` checks it with its data, and `trial.py`
tries a round of every method. `describe.py` says what would run, and warns.
"""
